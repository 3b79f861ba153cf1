"""Waits until one of some files is saved, however an editor does that."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from gputop_llm.errors import UsageError

#: A look is one stat for each file.
_LOOK_S = 0.2
#: Editors write, rename and write again: a save is over once nothing has changed for so long.
_STILL_S = 0.2

#: Of each file: device, inode, size, time of its last change; None where it is not there.
_Marks = tuple[tuple[int, int, int, int] | None, ...]


class Saved:
    """Some files, as they were when they were last looked at.

    Raises:
        UsageError: one isn't there, or is no file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        for path in paths:
            if not path.is_file():
                why = "it is a folder: name the files in it" if path.is_dir() else "it is not there"
                raise UsageError(f"can't watch {path}", why)
        self._seen = self._marks()

    def mark(self) -> None:
        """What is saved from now on counts."""
        self._seen = self._marks()

    def wait(self) -> list[Path]:
        """Waits for a save since the last `mark`, and for its end; the files that changed.

        Files that are away (an editor that writes another one and renames it) are waited for.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        while (now := self._marks()) == self._seen:
            time.sleep(_LOOK_S)
        still_since = time.monotonic()
        while time.monotonic() - still_since < _STILL_S or None in now:
            time.sleep(_LOOK_S / 4)
            before, now = now, self._marks()
            if now != before:
                still_since = time.monotonic()
        return [path for path, old, new in zip(self._paths, self._seen, now, strict=True) if old != new]

    def _marks(self) -> _Marks:
        return tuple(map(_mark, self._paths))


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    try:
        about = os.stat(path)
    except OSError:
        return None
    return (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns) if stat.S_ISREG(about.st_mode) else None
