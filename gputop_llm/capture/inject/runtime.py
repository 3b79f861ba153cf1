"""What of the target's C library a chain and our thread need, found in the target's memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.capture.inject.elf import Library
from gputop_llm.capture.inject.frames import GADGET, RESTORER
from gputop_llm.capture.inject.memory import Maps, Memory
from gputop_llm.capture.inject.refused import InjectionRefused
from gputop_llm.capture.inject.stub import FUNCTIONS

CLIENT_PREFIX = "gputop-llm-client-"
_LIBC = re.compile(rb"/libc(\.so\.6|-2\.\d+\.so)( \(deleted\))?$", re.MULTILINE)
_HELPERS = re.compile(rb"/lib(pthread|dl)(\.so\.[02]|-2\.\d+\.so)( \(deleted\))?$", re.MULTILINE)
_MUSL = re.compile(rb"/(ld-musl-[^/\n]*|libc\.musl-[^/\n]*)$", re.MULTILINE)
_CLIENT = re.compile(rb" /memfd:gputop-llm-client-[0-9a-f]+ \(deleted\)$", re.MULTILINE)
_CODE_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Runtime:
    """Addresses in one target.

    Attributes:
        pthread_create: the function.
        functions: what our thread calls, in the order of `FUNCTIONS`.
        restorers: every `__restore_rt`; the first one is libc's.
        gadget: a `syscall; ret` of libc.
        libraries: the C library, and where it has parts of its own for threads and loading, these.
    """

    pthread_create: int
    functions: tuple[int, ...]
    restorers: tuple[int, ...]
    gadget: int
    libraries: tuple[Library, ...]

    def function(self, name: bytes) -> int:
        """The address of one more function of the C library.

        Raises:
            InjectionRefused: it has none of that name.
        """
        return _find(self.libraries, name)


def closed_by_libc(maps: Maps) -> InjectionRefused | None:
    """Why a process with these mappings has no C library that we know; None when it has."""
    if maps.files(_LIBC):
        return None
    if maps.files(_MUSL):
        return InjectionRefused(
            "its C library is musl, and the client is built for glibc",
            "run the server from an image with glibc (Debian, Ubuntu, RHEL), not Alpine",
        )
    return InjectionRefused(
        "it has no libc.so.6 mapped: the program is linked statically or uses another C library",
        "run a dynamically linked build",
    )


def find_runtime(maps: Maps, memory: Memory) -> Runtime:
    """The addresses of what is needed.

    Raises:
        InjectionRefused: something of it is not there.
    """
    if (closed := closed_by_libc(maps)) is not None:
        raise closed
    libraries = (*_libraries(maps, memory, _LIBC), *_libraries(maps, memory, _HELPERS))
    found = {name: _find(libraries, name) for name in (b"pthread_create", *FUNCTIONS)}
    code = [piece for library in libraries for piece in _code(library, memory)]
    restorers = tuple(address for start, text in code for address in _all(text, RESTORER, start))
    gadgets = [start + at for start, text in code if (at := text.find(GADGET)) >= 0]
    if not restorers or not gadgets:
        raise InjectionRefused(
            "its C library returns from signals in a way that is not known here",
            "report the version of its glibc (ldd --version)",
        )
    functions = tuple(found[name] for name in FUNCTIONS)
    return Runtime(found[b"pthread_create"], functions, restorers, gadgets[0], libraries)


def clients(maps: Maps) -> dict[str, int]:
    """The client libraries that are mapped, the base of each by its name."""
    found: dict[str, int] = {}
    for mapping in maps.files(_CLIENT):
        name = mapping.name.removeprefix("/memfd:").removesuffix(" (deleted)")
        found.setdefault(name, mapping.start)
    return found


def _find(libraries: Sequence[Library], name: bytes) -> int:
    addresses = (library.function(name) for library in libraries)
    address = next((address for address in addresses if address), None)
    if address is None:
        raise InjectionRefused(
            f"its C library has no {name.decode()} (the program has neither threads nor libraries to load)",
            "there is nothing to record in it",
        )
    return address


def _libraries(maps: Maps, memory: Memory, name: re.Pattern[bytes]) -> list[Library]:
    libraries = []
    for mapping in maps.files(name):
        with suppress(OSError, ValueError):
            libraries.append(Library(memory, mapping.start))
    if not libraries and name is _LIBC:
        raise InjectionRefused("its C library can't be read in its memory", "")
    return libraries


def _code(library: Library, memory: Memory) -> list[tuple[int, bytes]]:
    return [(address, memory.read(address, min(count, _CODE_MOST_BYTES))) for address, count in library.code()]


def _all(text: bytes, pattern: bytes, start: int) -> list[int]:
    found, at = [], text.find(pattern)
    while at >= 0:
        found.append(start + at)
        at = text.find(pattern, at + 1)
    return found
