"""One log file: of a long one its beginning and its end, and from then on what is added, so much a time and no more."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

HEAD_BYTES = 256 << 10
TAIL_BYTES = 64 << 10
# A server that logs each of 300 requests a second writes half of that.
STEP_BYTES = 64 << 10
_PROBE_BYTES = 8 << 10
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Piece(NamedTuple):
    """Some of the file: `follows` the piece before it, or begins the file, or neither."""

    data: bytes
    follows: bool
    begins: bool


class NotAFile(OSError):
    """What lies there is no regular file."""


class LogFile:
    """A regular file that somebody else writes; closed after use.

    Args:
        path: may be a magic link in /proc, which leads to the file itself, renamed, deleted or in a container.
        follow: look again and again what lies at the path: the writer (a container's runtime) renames full files.

    Raises:
        OSError: there is none, it may not be read (`NotAFile`: it is something else, and was not opened).
    """

    def __init__(self, path: str, follow: bool = False) -> None:
        self._path, self._follow = path, follow
        self._handle, self.id = _opened(path)
        self._offset: int | None = None
        self.unread_bytes = 0
        self.written_s = 0.0

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._handle)

    def read(self, begins_at: int = 0) -> list[Piece]:
        """What is new: at first the beginning and the end, then at most `STEP_BYTES`, the newest ones.

        Args:
            begins_at: where the part that counts begins; for the first read.

        Raises:
            OSError: it can't be read any more.
        """
        pieces = self._pieces(begins_at)
        if self._follow and not pieces and self._replaced():
            return self.read()
        return pieces

    def size(self) -> int:
        """Its size now, in bytes; also takes note of when it was written to last."""
        found = os.fstat(self._handle)
        self.written_s = found.st_mtime
        return found.st_size

    def probe(self, offset: int) -> bytes:
        """A little of it, to see what is written there."""
        return os.pread(self._handle, _PROBE_BYTES, offset)

    def _pieces(self, begins_at: int) -> list[Piece]:
        size = self.size()
        before = self._offset
        if before == size:
            return []
        if before is None and size - begins_at > HEAD_BYTES + TAIL_BYTES:
            self.unread_bytes += size - begins_at - HEAD_BYTES - TAIL_BYTES
            head = Piece(self._read(begins_at, HEAD_BYTES), False, begins_at == 0)
            self._offset = size
            return [head, Piece(self._read(size - TAIL_BYTES, TAIL_BYTES), False, False)]
        if before is None:
            start, begins, most = begins_at, begins_at == 0, size - begins_at
        elif size < before:
            # Cut to be written anew.
            start, begins, most = 0, True, STEP_BYTES
        else:
            start, begins, most = before, False, STEP_BYTES
        skipped = max(0, size - start - most)
        self.unread_bytes += skipped
        data = self._read(start + skipped, size - start - skipped)
        self._offset = start + skipped + len(data)
        return [Piece(data, before is not None and not begins and not skipped, begins and not skipped)]

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._handle, length, offset)

    def _replaced(self) -> bool:
        try:
            found = os.stat(self._path)
            if (found.st_dev, found.st_ino) == self.id:
                return False
            handle, self.id = _opened(self._path)
        except OSError:
            # Between two files there is none; the next look finds it.
            return False
        os.close(self._handle)
        self._handle, self._offset = handle, None
        return True


def _opened(path: str) -> tuple[int, tuple[int, int]]:
    """A handle of a regular file and its identity. What lies there is only pointed at until that is known."""
    pointer = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.fstat(pointer)
        if not stat.S_ISREG(found.st_mode):
            raise NotAFile(f"{path} is no regular file")
        return os.open(f"/proc/self/fd/{pointer}", _READ), (found.st_dev, found.st_ino)
    finally:
        os.close(pointer)
