"""Stored baselines: one JSON file per model and hardware in the user's state directory.

A file is replaced as a whole or not at all, readable by its owner only, and worth nothing
that can't be learnt anew: one that can't be read is forgotten with a line in the log.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

SCHEMA = 1
MOST_FILES = 64
_MOST_BYTES = 8_000_000
# A temporary file this old was left behind by a program that was killed.
_LEFT_BEHIND_S = 3600.0

Key = tuple[str, str, str]
"""Engine, model, hardware."""


def file_of(folder: Path, key: Sequence[str]) -> Path:
    """The file of a key: the model's name for people, a hash for the rest."""
    # Imported when needed, on the keeper's thread: 10 ms at the start would be felt.
    import hashlib

    name = re.sub(r"[^A-Za-z0-9]+", "-", key[1]).strip("-")[:40]
    digest = hashlib.sha256("\0".join(key).encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return folder / f"{name or 'model'}-{digest}.json"


def load(folder: Path, key: Sequence[str]) -> Any:
    """What was stored for a key; None when there is nothing, or nothing that can be used (the log says why)."""
    path = file_of(folder, key)
    try:
        with open(path, "rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        stored = json.loads(raw)
        if stored["schema"] != SCHEMA:
            raise ValueError(f"its schema is {stored['schema']!r} and not {SCHEMA}")
        if stored["key"] != list(key):
            raise ValueError("it is another model's")
        return stored["buckets"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        _forgotten(path, error)
        return None


def _forgotten(path: Path, error: Exception) -> None:
    log.warning("cannot use the baseline in %s: %s: %s; it is learnt anew", path, type(error).__name__, error)


def save(folder: Path, key: Sequence[str], buckets: Any) -> None:
    """Stores what was learnt for a key, and forgets the oldest files beyond `MOST_FILES`.

    Raises:
        OSError: it can't be written; what was stored before is still there.
    """
    import tempfile

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"schema": SCHEMA, "key": list(key), "saved_s": round(time.time()), "buckets": buckets})
    # Made with mode 0600.
    number, temporary = tempfile.mkstemp(prefix=".new-", dir=folder)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, file_of(folder, key))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    _tidy(folder)


def _tidy(folder: Path) -> None:
    with suppress(OSError):
        stored = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        left = [path for path in folder.glob(".new-*") if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S]
        for path in (*stored[MOST_FILES:], *left):
            path.unlink(missing_ok=True)


class BaselineKeeper:
    """Reads and writes baselines on a thread of its own: a home directory that hangs holds up nobody.

    Args:
        folder: where they are.
    """

    # More than an engine per work waiting means that the disk hangs.
    _MOST_WAITING = 64

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._work: deque[Callable[[], None]] = deque(maxlen=self._MOST_WAITING)
        self._found: deque[tuple[Key, Any]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def ask(self, key: Key) -> None:
        """Looks for the stored past of a key; `found` hands it out when it is there."""
        self._do(lambda: self._load(key))

    def found(self) -> list[tuple[Key, Any]]:
        """What was found since the last call."""
        return [self._found.popleft() for _ in range(len(self._found))]

    def forget(self, key: Key, error: Exception) -> None:
        """What was found for a key can't be used: the log says so, and the file goes with the next `keep`."""
        _forgotten(file_of(self.folder, key), error)

    def keep(self, key: Key, buckets: Any) -> None:
        """Stores a past soon."""
        self._do(lambda: self._save(key, buckets))

    def close(self, wait_s: float) -> None:
        """Ends when all is stored, or is left behind after `wait_s` seconds."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(wait_s)

    def _do(self, work: Callable[[], None]) -> None:
        with self._wake:
            self._work.append(work)
            self._wake.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="baselines", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._work:
                    if self._closing:
                        return
                    self._wake.wait()
                work = self._work.popleft()
            work()

    def _load(self, key: Key) -> None:
        buckets = load(self.folder, key)
        if buckets is not None:
            self._found.append((key, buckets))

    def _save(self, key: Key, buckets: Any) -> None:
        try:
            save(self.folder, key, buckets)
        except OSError as error:
            log.warning("cannot store the baseline in %s: %s", self.folder, error.strerror or error)
