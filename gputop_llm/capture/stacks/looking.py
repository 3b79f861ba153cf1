"""Looks at the Python stacks of all processes of a target at the same time, twice: what stands still is told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gputop_llm.capture.process import Ran
from gputop_llm.capture.stacks import pyspy
from gputop_llm.capture.stacks.compare import compared, headline
from gputop_llm.capture.stacks.refused import situation, unreadable, zombie
from gputop_llm.capture.ways import open_without_ptrace
from gputop_llm.errors import GputopError, NothingFound
from gputop_llm.follow import describe
from gputop_llm.model import Target, TargetProcess
from gputop_llm.model.stacks import ProcessStacks, StackReport, ThreadStack, Unreadable

#: Between both looks: longer than a step of nearly any engine, so that what works is elsewhere.
_BETWEEN_S = 0.25
#: A stack that changes while it is read is read again.
_TRIES = 4
_AT_ONCE = 16

#: How one process is looked at, once.
Look = Callable[[int], Ran]


@dataclass(frozen=True, slots=True)
class Seen:
    """One process of a target, whose stacks are read; `target` is whose it is, where that is known."""

    pid: int
    title: str
    role: str
    rank: str | None = None
    target: Target | None = None


def processes_of(target: Target) -> tuple[Seen, ...]:
    """The processes of a target that may have Python stacks: all that can be seen from here.

    Raises:
        NothingFound: there are none.
    """
    found = tuple(
        Seen(one.pid, one.title, _role(one), one.rank, target)
        for one in target.processes
        if one.pid is not None and one.unseen is None and one.role != "other"
    )
    found = found or tuple(Seen(pid, target.engine, "process", target=target) for pid in target.pids)
    if not found:
        raise NothingFound(
            f"cannot read the stacks of {describe(target)}",
            "none of its processes can be seen from here",
            "run gputop-llm on its node, outside of containers",
        )
    return found


def _role(process: TargetProcess) -> str:
    return process.role if process.role != "other" else "process"


def report(
    name: str, processes: Sequence[Seen], looks: int = 2, look: Look = pyspy.dump, now_s: float | None = None
) -> StackReport:
    """The stacks of some processes, all read at the same moments.

    Args:
        name: of the target, in words.
        looks: 2 tells what moves from what stands still.

    Raises:
        GputopError: py-spy isn't there.
    """
    at_s = time.time() if now_s is None else now_s
    with ThreadPoolExecutor(min(_AT_ONCE, len(processes))) as pool:
        first = list(pool.map(lambda one: _looked(one, look), processes))
        if looks > 1 and any(one.unreadable is None for one in first):
            time.sleep(_BETWEEN_S)
            again = list(pool.map(lambda one, before: _once_more(one, before, look), processes, first))
        else:
            again = first
    again = [_with_others(one, seen) for one, seen in zip(again, processes, strict=True)]
    roles = {one.pid: one.role for one in processes}
    kinds = compared(again, roles)
    return StackReport(name, at_s, tuple(again), kinds, headline(again, kinds))


def _looked(seen: Seen, look: Look) -> ProcessStacks:
    found = ProcessStacks(seen.pid, seen.title, seen.rank)
    if (ended := zombie(seen.pid)) is not None:
        return replace(found, unreadable=ended)
    began = time.monotonic()
    for _ in range(_TRIES):
        done = look(seen.pid)
        if done.code == 0:
            try:
                threads = pyspy.threads_of(done.out)
            except (ValueError, RecursionError):
                return replace(found, unreadable=Unreadable("py-spy's answer makes no sense", "try another version"))
            return replace(found, threads=threads, took_s=time.monotonic() - began, looks=1)
        refused = unreadable(done.err.decode("utf-8", "replace"), done.code is not None, situation(seen.pid))
        if not refused.why.startswith("py-spy could not"):
            break
    return replace(found, unreadable=refused)


def _once_more(seen: Seen, first: ProcessStacks, look: Look) -> ProcessStacks:
    if first.unreadable is not None:
        return first
    second = _looked(seen, look)
    if second.unreadable is not None:
        return first
    before: Mapping[int, ThreadStack] = {one.thread_id: one for one in first.threads}
    threads = tuple(
        replace(now, moved=before[now.thread_id].calls != now.calls if now.thread_id in before else None)
        for now in second.threads
    )
    return replace(second, threads=threads, looks=2)


def _with_others(found: ProcessStacks, seen: Seen) -> ProcessStacks:
    """What can't be read may tell of itself: the ways into an engine's process that need no right to read it."""
    if found.unreadable is None or seen.target is None:
        return found
    titles = open_without_ptrace(seen.pid, seen.target)
    if not titles:
        return found
    others = f"open without that right, by `gputop-llm capture`: {', '.join(titles)}"
    todo = "; ".join(part for part in (found.unreadable.todo, others) if part)
    return replace(found, unreadable=replace(found.unreadable, todo=todo))


def unreadable_of(report: StackReport) -> GputopError | None:
    """Why nothing could be read; None where something was."""
    refusals = [one.unreadable for one in report.processes if one.unreadable is not None]
    if len(refusals) < len(report.processes) or not refusals:
        return None
    return GputopError("cannot read Python stacks", refusals[0].why, refusals[0].todo)
