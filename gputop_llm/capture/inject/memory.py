"""The memory of a target, read and written through one /proc/PID/mem that belongs to one address space."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from types import TracebackType

_KERNEL_HALF = 1 << 63
_MAPS_MOST_BYTES = 64 << 20
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([r-][w-][x-][ps]) ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)$", re.MULTILINE
)


class Memory:
    """Open it once: after an exec, or in another process with the same PID, it reads nothing.

    Raises:
        OSError: no right to it (EACCES), or no such process.
    """

    def __init__(self, pid: int) -> None:
        self._handle = os.open(f"/proc/{pid}/mem", os.O_RDWR | os.O_CLOEXEC)

    def read(self, address: int, count: int) -> bytes:
        """As many of these bytes as are mapped in one piece.

        Raises:
            OSError: nothing is mapped there.
        """
        if address >= _KERNEL_HALF:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(self._handle, count, address)

    def write(self, address: int, data: bytes) -> None:
        """Writes all of it.

        Raises:
            OSError: it can't be written there; what came before may have been.
        """
        if os.pwrite(self._handle, data, address) != len(data):
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))

    def close(self) -> None:
        """Lets it go."""
        os.close(self._handle)

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Mapping:
    """A line of /proc/PID/maps; `name` is as the kernel writes it."""

    start: int
    end: int
    rights: str
    offset: int
    name: str


def mappings(pid: int) -> list[Mapping]:
    """What is mapped in a process.

    Raises:
        OSError: it can't be read.
    """
    with open(f"/proc/{pid}/maps", "rb") as file:
        text = file.read(_MAPS_MOST_BYTES)
    return [
        Mapping(
            int(start, 16), int(end, 16), rights.decode(), int(offset, 16), name.decode("utf-8", "backslashreplace")
        )
        for start, end, rights, offset, _, _, name in _LINE.findall(text)
    ]
