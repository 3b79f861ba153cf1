"""All ways of capturing, best first, and which of them is taken for a target."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.capture import endpoint_way, kineto_daemon_way, kineto_way, native_way
from gputop_llm.capture.nsys import gated_way, session_way, system_way
from gputop_llm.capture.way import Route, Seen, Way
from gputop_llm.errors import UsageError
from gputop_llm.model import Target
from gputop_llm.sources.procfs import ProcFs

WAYS: tuple[Way, ...] = (
    native_way.WAY,
    session_way.WAY,
    gated_way.WAY,
    endpoint_way.WAY,
    kineto_daemon_way.WAY,
    kineto_way.WAY,
    system_way.WAY,
)

#: Routes that borrow a thread, or write into the memory.
_PTRACE = ("native-ptrace", "remote-exec", kineto_way.KEY)


def way_of(key: str) -> Way:
    """The way of that key.

    Raises:
        UsageError: there is none.
    """
    for way in WAYS:
        if way.key == key:
            return way
    raise UsageError(f"there is no route {key}", todo=f"name one of {', '.join(way.key for way in WAYS)}")


def open_routes(way: Way, processes: Sequence[Seen]) -> tuple[Route, ...]:
    """The open route of a way into each of the processes; empty where it isn't open for all of them."""
    found = []
    for seen in processes:
        opened = next((route for route in way.look(seen) if route.state == "open"), None)
        if opened is None:
            return ()
        found.append(opened)
    return tuple(found)


def open_without_ptrace(pid: int, target: Target) -> tuple[str, ...]:
    """Titles of the open ways into a process of a target that need no right to read its memory."""
    proc = ProcFs()
    try:
        stat = proc.stat(pid)
    except (OSError, ValueError):
        return ()
    if stat.state in "ZX":
        return ()
    seen = Seen(pid, stat.start_ticks, proc, target)
    return tuple(
        route.title for way in WAYS for route in way.look(seen) if route.state == "open" and route.key not in _PTRACE
    )


def best_way(processes: Sequence[Seen]) -> Way:
    """The best way that is open for all of the processes; the best one at all, which will say why not, where none is.

    Args:
        processes: at least one.
    """
    return next((way for way in WAYS if way.chosen and open_routes(way, processes)), WAYS[0])
