"""What was examined, as lines of text: for the command and for the screen."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gputop_llm.capture.doctor import Examined, Process
from gputop_llm.capture.leftovers import Mapped
from gputop_llm.capture.way import Route

_MARKS = {"open": "open", "closed": "no"}


def examined_lines(examined: Examined) -> Iterator[str]:
    """Each process with the ways into it, then the node.

    Names are as the target has them: whoever shows the lines makes them printable.
    """
    if not examined.processes and examined.target is not None:
        yield f"{examined.target}: none of its processes can be seen from here; run gputop-llm on its node"
    elif not examined.processes:
        yield "no target: no engine or process on a GPU was found, or several were (name one with --pid)"
    else:
        yield examined.target or f"process {examined.processes[0].pid}"
    for routes, processes in _alike(examined.processes):
        yield ""
        yield ", ".join(f"PID {one.pid} ({one.title}, user {one.user or 'unknown'})" for one in processes)
        yield from (f"  {_MARKS[one.state]:<6} {one.title}{_because(one)}" for one in routes if one.state in _MARKS)
        if later := "; ".join(one.title for one in routes if one.state == "unbuilt"):
            yield f"  later  not built yet: {later}"
    yield ""
    yield f"this user      {'root' if examined.root else 'not root'}"
    yield f"capture lock   {examined.holder.words(time.time()) if examined.holder is not None else 'free'}"
    yield f"captures go to {examined.folder or 'nowhere'}{f' ({examined.room})' if examined.room else ''}"
    yield from mapped_lines(examined.mapped)


def _alike(processes: tuple[Process, ...]) -> Iterator[tuple[tuple[Route, ...], list[Process]]]:
    """Processes with the same ways into them, together."""
    groups: dict[tuple[Route, ...], list[Process]] = {}
    for process in processes:
        groups.setdefault(process.routes, []).append(process)
    yield from groups.items()


def _because(route: Route) -> str:
    if route.state == "open":
        return ""
    return f": {route.why}{f' -> {route.opens}' if route.opens else ''}"


def mapped_lines(still: tuple[Mapped, ...]) -> Iterator[str]:
    """What stays on purpose."""
    for one in still:
        yield f"stays          PID {one.pid} ({one.name}) has {', '.join(one.libraries)} mapped, idle, until it ends"
