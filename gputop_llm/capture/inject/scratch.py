"""Where our code and our block are in a target: two pages at an address that says whose they are."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from gputop_llm.capture.inject.frames import Call
from gputop_llm.capture.inject.memory import Maps, Memory

_PAGE = 4096
#: "gpu" and zeros: far from where the kernel, the loader and CUDA put anything.
FIRST = 0x6770_7500_0000
_STEP = 0x10000
_SLOTS = 1 << 18
END = FIRST + _SLOTS * _STEP
_MOST_LEFT, _TRIES = 256, 64
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

    def is_untouched(self, memory: Memory) -> bool:
        """Whether both pages are readable, and empty."""
        try:
            return memory.read(self.address, 2 * _PAGE) == bytes(2 * _PAGE)
        except OSError:
            return False


def choose(maps: Maps) -> Scratch | None:
    """Where to put the pages: by chance, so that two who inject at once do not share them.

    Pages that are there already are never used, though a killed injection may have left them: another one that is just
    being made would look the same.

    None: too much is there, which takes hundreds of killed injections.
    """
    if len(maps.between(FIRST, END)) >= 2 * _MOST_LEFT:
        return None
    for _ in range(_TRIES):
        scratch = Scratch(FIRST + secrets.randbelow(_SLOTS) * _STEP)
        if not maps.between(scratch.address, scratch.address + _STEP):
            return scratch
    return None


def is_any_there(maps: Maps) -> bool:
    """Whether something is where our pages would be."""
    return bool(maps.between(FIRST, END))
