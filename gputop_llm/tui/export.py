"""Saves a screen to a file: in the current folder, or in the program's own where that can't be written."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.paths import log_file


def save(content: str, suffix: str, wall_s: float) -> Path:
    """Writes `content` whole or not at all, and returns where: `gputop-llm-<UTC time>.<suffix>`.

    Raises:
        GputopError: neither folder can be written.
    """
    return save_by(lambda draft: _fill(draft, content), suffix, wall_s)


def save_by(write: Callable[[Path], object], suffix: str, wall_s: float) -> Path:
    """The same for what `write` puts into the file that it is given.

    Raises:
        GputopError: neither folder can be written.
    """
    name = f"gputop-llm-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(wall_s))}"
    reasons = []
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _write(folder, name, suffix, write)
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror or error}")
    raise GputopError("cannot save the screen", "; ".join(reasons) or "there is no folder for it")


def _folders() -> list[Path]:
    """The current folder, unless it was deleted, and the program's own, if the user has one."""
    folders = []
    with suppress(FileNotFoundError):
        folders.append(Path.cwd())
    if (log := log_file()) is not None:
        folders.append(log.parent)
    return folders


def _fill(path: Path, content: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(content)


def _write(folder: Path, name: str, suffix: str, write: Callable[[Path], object]) -> Path:
    handle, draft = tempfile.mkstemp(prefix=".gputop-llm-", dir=folder)
    os.close(handle)
    try:
        write(Path(draft))
        for count in range(1, 1000):
            path = folder / (f"{name}.{suffix}" if count == 1 else f"{name}-{count}.{suffix}")
            try:
                # Unlike a rename, a link never replaces a file that is there.
                os.link(draft, path)
            except FileExistsError:
                continue
            return path
        raise OSError(f"too many files called {name}")
    finally:
        os.unlink(draft)
