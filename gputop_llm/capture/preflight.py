"""Whether a capture may begin: looked at again, in the worker, just before anything is done to the target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gputop_llm.capture import clients
from gputop_llm.capture.conflicts import has_cuda, other_profiler
from gputop_llm.capture.guards import disk_at, disk_full, process_trouble
from gputop_llm.capture.plan import Plan, PlannedRank
from gputop_llm.capture.way import Route, Seen
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import GONE, ProcFs


class Refused(GputopError):
    """Nothing was done to the target."""


def check(plan: Plan, prepared: set[int], proc: ProcFs | None = None) -> None:
    """Looks at the disk, at each process and at what is in the way.

    Args:
        plan: what is to be done.
        prepared: PIDs whose client is there already and need not be injected.

    Raises:
        Refused: something is in the way.
    """
    proc = proc or ProcFs()
    check_room(plan)
    for rank in plan.ranks:
        _check_process(rank, rank.pid in prepared, proc)


def check_room(plan: Plan) -> None:
    """Looks at the disk alone.

    Raises:
        Refused: there is too little room.
    """
    try:
        full = disk_full(disk_at(Path(plan.folder)), plan.max_bytes * len(plan.ranks))
    except OSError as error:
        raise Refused("cannot capture", f"the room in {plan.folder} can't be told ({error.strerror})") from error
    if full:
        raise Refused(
            "cannot capture",
            f"too little room in {plan.folder}: {full}",
            "free some, or name another place with --output",
        )


def check_ways(plan: Plan, look: Callable[[Seen], Sequence[Route]], proc: ProcFs | None = None) -> None:
    """Looks whether each process can answer, and whether a way into it is still open.

    Raises:
        Refused: a process has ended or is stopped, or no route into it is open.
    """
    proc = proc or ProcFs()
    for rank in plan.ranks:
        if (trouble := process_trouble(rank, proc)) is not None:
            raise Refused("cannot capture", trouble, "try again when the engine serves")
        routes = look(Seen(rank.pid, rank.start_ticks, proc))
        if not any(route.state == "open" for route in routes):
            raise Refused(f"cannot capture PID {rank.pid} ({rank.title})", routes[0].why, routes[0].opens)


def _check_process(rank: PlannedRank, prepared: bool, proc: ProcFs) -> None:
    if (trouble := process_trouble(rank, proc)) is not None:
        raise Refused("cannot capture", trouble, "try again when the engine serves")
    uses_cuda = True
    try:
        other = other_profiler(rank.pid, proc)
        uses_cuda = has_cuda(rank.pid, proc)
    except GONE:
        raise Refused("cannot capture", f"PID {rank.pid} ({rank.title}) has just ended") from None
    except OSError:
        # What can't be read can't be injected either: the next check has the better sentence.
        other = None
    if other is not None:
        raise Refused(
            "cannot capture",
            f"{other} is loaded in PID {rank.pid}, and CUPTI serves one profiler at a time",
            "capture with that tool, or start the engine without it",
        )
    if not prepared and not uses_cuda:
        raise Refused("cannot capture", f"PID {rank.pid} ({rank.title}) doesn't use CUDA", "choose a process on a GPU")
    if not prepared and (closed := clients.closed(rank.pid)) is not None:
        raise Refused(f"cannot capture PID {rank.pid} ({rank.title})", closed.why, closed.todo)
