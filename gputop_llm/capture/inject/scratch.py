"""Where our code and our block are in a target: two pages at an address that says whose they are."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.capture.inject.frames import Call
from gputop_llm.capture.inject.memory import Maps, Memory

_PAGE = 4096
#: "gpu" and zeros: far from where the kernel, the loader and CUDA put anything.
_FIRST = 0x6770_7500_0000
_STEP = 0x10000
_SLOTS = 256
_MMAP = 9
_PRIVATE_ANONYMOUS_AT_FREE_ADDRESS = 0x02 | 0x20 | 0x100000
_READ, _WRITE, _EXECUTE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class Scratch:
    """A pair of pages: code at `address`, data behind it."""

    address: int

    @property
    def data(self) -> int:
        """Address of the data."""
        return self.address + _PAGE

    @property
    def whole(self) -> tuple[int, int]:
        """Address and bytes of both."""
        return self.address, 2 * _PAGE

    def calls(self) -> tuple[Call, Call]:
        """The system calls that map it."""
        flags = _PRIVATE_ANONYMOUS_AT_FREE_ADDRESS
        no_file = (1 << 64) - 1
        return (
            Call(_MMAP, (self.address, _PAGE, _READ | _EXECUTE, flags, no_file, 0)),
            Call(_MMAP, (self.data, _PAGE, _READ | _WRITE, flags, no_file, 0)),
        )

    def is_there(self, maps: Maps) -> bool:
        """Whether exactly these two pages are mapped."""
        return [(m.start, m.end, m.rights, m.name) for m in maps.between(self.address, self.address + _STEP)] == [
            (self.address, self.data, "r-xp", ""),
            (self.data, self.data + _PAGE, "rw-p", ""),
        ]

    def is_untouched(self, memory: Memory) -> bool:
        """Whether both pages are readable, and empty."""
        try:
            return memory.read(self.address, 2 * _PAGE) == bytes(2 * _PAGE)
        except OSError:
            return False


def choose(maps: Maps, memory: Memory) -> tuple[Scratch, bool] | None:
    """Where to put the pages, and whether they are there already: a killed injection may have left them empty.

    None: there is no room, which takes hundreds of killed injections.
    """
    for slot in range(_SLOTS):
        scratch = Scratch(_FIRST + slot * _STEP)
        if not maps.between(scratch.address, scratch.address + _STEP):
            return scratch, False
        if scratch.is_there(maps) and scratch.is_untouched(memory):
            return scratch, True
    return None


def is_any_there(maps: Maps) -> bool:
    """Whether something is where our pages would be."""
    return bool(maps.between(_FIRST, _FIRST + _SLOTS * _STEP))
