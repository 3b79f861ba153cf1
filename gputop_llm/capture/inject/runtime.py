"""What of the target's C library a chain and our thread need, found in the target's memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gputop_llm.capture.inject.elf import Library
from gputop_llm.capture.inject.frames import GADGET, RESTORER
from gputop_llm.capture.inject.memory import Mapping, Memory
from gputop_llm.capture.inject.refused import InjectionRefused
from gputop_llm.capture.inject.stub import FUNCTIONS

CLIENT_PREFIX = "gputop-llm-client-"
_LIBC = re.compile(r"/libc(\.so\.6|-2\.\d+\.so)( \(deleted\))?$")
_HELPERS = re.compile(r"/lib(pthread|dl)(\.so\.[02]|-2\.\d+\.so)( \(deleted\))?$")
_MUSL = re.compile(r"/(ld-musl-[^/]*|libc\.musl-[^/]*)$")
_CLIENT = re.compile(rf"^/memfd:({re.escape(CLIENT_PREFIX)}[0-9a-f]+) \(deleted\)$")
_CODE_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Runtime:
    """Addresses in one target.

    Attributes:
        pthread_create: the function.
        functions: what our thread calls, in the order of `FUNCTIONS`.
        restorers: every `__restore_rt`; the first one is libc's.
        gadget: a `syscall; ret` of libc.
    """

    pthread_create: int
    functions: tuple[int, ...]
    restorers: tuple[int, ...]
    gadget: int


def closed_by_libc(maps: Iterable[Mapping]) -> InjectionRefused | None:
    """Why a process with these mappings has no C library that we know; None when it has."""
    names = [mapping.name for mapping in maps]
    if any(_LIBC.search(name) for name in names):
        return None
    if any(_MUSL.search(name) for name in names):
        return InjectionRefused(
            "its C library is musl, and the client is built for glibc",
            "run the server from an image with glibc (Debian, Ubuntu, RHEL), not Alpine",
        )
    return InjectionRefused(
        "it has no libc.so.6 mapped: the program is linked statically or uses another C library",
        "run a dynamically linked build",
    )


def find_runtime(maps: list[Mapping], memory: Memory) -> Runtime:
    """The addresses of what is needed.

    Raises:
        InjectionRefused: something of it is not there.
    """
    if (closed := closed_by_libc(maps)) is not None:
        raise closed
    libc, *others = _libraries(maps, memory, _LIBC) + _libraries(maps, memory, _HELPERS)
    found: dict[bytes, int] = {}
    for name in (b"pthread_create", *FUNCTIONS):
        addresses = (library.function(name) for library in (libc, *others))
        address = next((address for address in addresses if address), None)
        if address is None:
            raise InjectionRefused(
                f"its C library has no {name.decode()} (the program has neither threads nor libraries to load)",
                "there is nothing to record in it",
            )
        found[name] = address
    code = [piece for library in (libc, *others) for piece in _code(library, memory)]
    restorers = tuple(address for start, text in code for address in _all(text, RESTORER, start))
    gadgets = [start + at for start, text in code if (at := text.find(GADGET)) >= 0]
    if not restorers or not gadgets:
        raise InjectionRefused(
            "its C library returns from signals in a way that is not known here",
            "report the version of its glibc (ldd --version)",
        )
    return Runtime(found[b"pthread_create"], tuple(found[name] for name in FUNCTIONS), restorers, gadgets[0])


def clients(maps: Iterable[Mapping]) -> dict[str, int]:
    """The client libraries that are mapped, the oldest mapping's base by name."""
    found: dict[str, int] = {}
    for mapping in maps:
        match = _CLIENT.match(mapping.name)
        if match and mapping.offset == 0:
            found.setdefault(match[1], mapping.start)
    return found


def _libraries(maps: Iterable[Mapping], memory: Memory, name: re.Pattern[str]) -> list[Library]:
    libraries = []
    for mapping in maps:
        if mapping.offset == 0 and name.search(mapping.name):
            try:
                libraries.append(Library(memory, mapping.start))
            except (OSError, ValueError):
                continue
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
