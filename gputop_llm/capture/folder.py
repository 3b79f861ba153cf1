"""The folder of a capture while it is being made, and what becomes of it: whole, kept as incomplete, or gone.

While it is made its name begins with a dot and ends in ".partial", and a record's in ".part". Whoever finds such a
folder without a worker (the watchdog, `doctor --leftovers`) can keep what it holds. The worker is there as long as
the file `LOCK` in it is locked, which the kernel tells across PID namespaces, and a network file system across nodes.

The folder may lie where another user can exchange it for a link (root may write to a user's own place): it is opened
once, as what was just made, and everything in it is reached from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.store.bundle import RECORD, RECORDS
from gputop_llm.store.bundle_write import PARTIAL, PARTIAL_BUNDLE
from gputop_llm.timeline import native_format as form

PART = ".part"
INCOMPLETE = "-incomplete"
LOCK = f"lock{PART}"
#: What the worker knows of the capture; written when it begins, and again when it ends.
FACTS = "capture.json"
#: What comes before a window: the magic, and one greeting with the path of a library.
_GREETING_BYTES = 16 << 10
_MOST_FACTS_BYTES = 4 << 20
_YOUNG_S = 60.0
_DYING_S, _LOOK_S = 2.0, 0.02
_WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CaptureFolder:
    """One capture's folder below `folder`; neither need exist. Use `make` or `open`, then close it.

    Args:
        folder: where captures go.
        name: of this one.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._fd = -1
        self._lock_fd = -1
        self.path = folder / f".{name}{PARTIAL}"

    def make(self) -> None:
        """Makes it, readable by this user only, and claims it where the file system knows locks.

        Raises:
            GputopError: it can't be made.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)
            self.open()
            if self.claim() is False:
                self.close()
                raise FileExistsError(self.path)
        except FileExistsError:
            raise GputopError(f"cannot make {self.path}", "it is there already", "try again") from None
        except OSError as error:
            raise GputopError(
                f"cannot make {self.path}", error.strerror or str(error), "name another folder with --output"
            ) from error

    def open(self) -> None:
        """Opens it as it was left.

        Raises:
            OSError: it is not there, a link, or another user's (EPERM).
        """
        self._fd = os.open(self.path, _DIRECTORY)
        if os.fstat(self._fd).st_uid != os.geteuid():
            self.close()
            raise PermissionError(f"{self.path} is another user's")

    def close(self) -> None:
        """Lets go of it."""
        for fd in (self._fd, self._lock_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._lock_fd = -1

    @property
    def claimed(self) -> bool:
        """Whether it is this one's, by `make` or `claim`."""
        return self._lock_fd >= 0

    def claim(self) -> bool | None:
        """Takes what is open: false where its worker, or another that settles it, has it.

        None where this file system knows no locks; it is this one's then, as far as can be told.

        Raises:
            OSError: its file can't be made.
        """
        fd = os.open(LOCK, _LOCK, 0o600, dir_fd=self._fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            self._lock_fd = fd
            return None
        self._lock_fd = fd
        return True

    @property
    def being_made(self) -> bool:
        """Whether it may not have been claimed yet: there is no `LOCK` in it, and it is young."""
        young = time.time() - os.fstat(self._fd).st_mtime < _YOUNG_S
        return young and LOCK not in os.listdir(self._fd)

    @property
    def named(self) -> tuple[str, str]:
        """Where captures go, and its own name, as they were given."""
        return str(self._folder), self._name

    @property
    def inside(self) -> Path:
        """A path to it that can't be exchanged while it is open in this process."""
        return Path(f"/proc/self/fd/{self._fd}")

    def open_record(self, name: str) -> int:
        """A new file for a record, open for writing; `name` is without the suffix that it has until it is whole.

        Raises:
            OSError: it can't be made.
        """
        return os.open(f"{name}{PART}", _WRITE_NEW, 0o600, dir_fd=self._fd)

    def whole(self, name: str) -> None:
        """A file has its end: it gets its own name."""
        os.rename(f"{name}{PART}", name, src_dir_fd=self._fd, dst_dir_fd=self._fd)

    def write_json(self, name: str, value: Any) -> None:
        """Writes a JSON file, whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        self.write_text(name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Writes a text file, whole or not at all.

        Raises:
            OSError: it can't be written.
        """
        with suppress(FileNotFoundError):
            self._unlink(f"{name}{PART}")
        try:
            with open(self.open_record(name), "w", encoding="utf-8") as file:
                file.write(text)
            self.whole(name)
        except OSError:
            with suppress(OSError):
                self._unlink(f"{name}{PART}")
            raise

    def facts(self) -> dict[str, Any]:
        """What is written in `FACTS`; empty where nothing can be read."""
        with suppress(OSError, ValueError):
            with open(os.open(FACTS, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd), "rb") as file:
                facts = json.loads(file.read(_MOST_FACTS_BYTES))
            return facts if isinstance(facts, dict) else {}
        return {}

    def has_records(self) -> bool:
        """Whether anything is recorded in it."""
        return any(self._begun(name) for name in os.listdir(self._fd) if name.endswith((*RECORDS, f"{RECORD}{PART}")))

    def keep(self, whole: bool) -> Path:
        """Gives it its lasting name, which says when it is not whole, and closes it; returns where it is.

        Raises:
            OSError: it can't be renamed.
        """
        for name in os.listdir(self._fd):
            if name.endswith(f"{RECORD}{PART}") and self._begun(name):
                self.whole(name.removesuffix(PART))
            elif name.endswith(PART):
                self._unlink(name)
        last = self._name if whole else f"{self._name}{INCOMPLETE}"
        for attempt in range(1, 100):
            path = self._folder / (last if attempt == 1 else f"{last}-{attempt}")
            # Renaming onto an empty folder would replace it.
            if not os.path.lexists(path):
                os.rename(self.path, path)
                self.close()
                return path
        raise FileExistsError(f"{self._folder / last} and 98 others like it")

    def remove(self) -> None:
        """Removes it with its files, and closes it."""
        with suppress(OSError):
            for name in os.listdir(self._fd):
                self._unlink(name)
            os.rmdir(self.path)
        self.close()

    def settle(self, why: str) -> Path | None:
        """What becomes of it without a worker: kept as incomplete where anything is recorded (the path), else gone.

        One that is not there, or is another's, is left alone. Closes it.

        Raises:
            OSError: it can't be opened or renamed.
        """
        if not self.claimed:
            try:
                self.open()
            except FileNotFoundError:
                return None
            # A worker that has just died lets go of its files one after the other.
            until = time.monotonic() + _DYING_S
            while self.claim() is False:
                if time.monotonic() >= until:
                    self.close()
                    return None
                time.sleep(_LOOK_S)
        if not self.has_records():
            self.remove()
            return None
        with suppress(OSError):
            self.write_json(FACTS, {**self.facts(), "outcome": "incomplete", "why": why})
        return self.keep(whole=False)

    def _begun(self, name: str) -> bool:
        """Whether a record has anything; a native one more than its client's greeting."""
        if not name.endswith((RECORD, f"{RECORD}{PART}")):
            return os.stat(name, dir_fd=self._fd, follow_symlinks=False).st_size > 0
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd), "rb") as file:
            head = file.read(_GREETING_BYTES)
        at = len(form.MAGIC)
        while at + form.CHUNK_HEADER.size <= len(head):
            kind, length = form.CHUNK_HEADER.unpack_from(head, at)
            if kind not in (form.Chunk.HELLO, form.Chunk.REFUSED):
                return True
            at += form.CHUNK_HEADER.size + length
        return False

    def _unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self._fd)


def partial_folders(folder: Path) -> list[CaptureFolder]:
    """The unfinished captures below a folder."""
    try:
        found = sorted(path for path in folder.glob(f".*{PARTIAL}") if path.is_dir())
    except OSError:
        return []
    names = [path.name[1 : -len(PARTIAL)] for path in found if not path.name.endswith(PARTIAL_BUNDLE)]
    return [CaptureFolder(folder, name) for name in names if name]
