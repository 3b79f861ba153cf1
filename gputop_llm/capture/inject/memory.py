"""The memory of a target, read and written through one /proc/PID/mem that belongs to one address space."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from types import TracebackType

_KERNEL_HALF = 1 << 63
_MAPS_MOST_BYTES = 64 << 20


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


class Maps:
    """What is mapped in a process: thousands of lines for an engine, of which a few are looked at.

    Args:
        text: /proc/PID/maps, in ascending order.
    """

    def __init__(self, text: bytes) -> None:
        self._text = text if text.endswith(b"\n") or not text else text[: text.rfind(b"\n") + 1]

    @classmethod
    def of(cls, pid: int) -> Maps:
        """Those of a process.

        Raises:
            OSError: they can't be read.
        """
        with open(f"/proc/{pid}/maps", "rb") as file:
            return cls(file.read(_MAPS_MOST_BYTES))

    def at(self, address: int) -> Mapping | None:
        """The mapping that an address is in."""
        found = self.between(address, address + 1)
        return found[0] if found else None

    def between(self, low: int, high: int) -> list[Mapping]:
        """The mappings that have a part in [low, high)."""
        found = []
        position = self._first_that_ends_behind(low)
        while position < len(self._text):
            mapping = self._line(position)
            if mapping.start >= high:
                break
            found.append(mapping)
            position = self._text.index(b"\n", position) + 1
        return found

    def files(self, name: re.Pattern[bytes]) -> list[Mapping]:
        """The first parts of files whose name matches; a pattern that begins with letters is found fast."""
        lines = (self._line(self._text.rfind(b"\n", 0, match.start()) + 1) for match in name.finditer(self._text))
        return [mapping for mapping in lines if mapping.offset == 0]

    def _first_that_ends_behind(self, address: int) -> int:
        low, high = 0, len(self._text)
        while low < high:
            start = self._text.rfind(b"\n", low, (low + high) // 2) + 1 or low
            if self._line(start).end > address:
                high = start
            else:
                low = self._text.index(b"\n", start) + 1
        return low

    def _line(self, start: int) -> Mapping:
        line = self._text[start : self._text.index(b"\n", start)]
        addresses, rights, offset, _, _, *name = line.split(None, 5)
        first, _, last = addresses.partition(b"-")
        text = name[0].decode("utf-8", "backslashreplace") if name else ""
        return Mapping(int(first, 16), int(last, 16), rights.decode(), int(offset, 16), text)
