"""Why a device was idle: what the host thread that issued its next work was doing during each gap.

Within a gap each nanosecond goes to the first of these that holds for that thread: blocked in a synchronising call,
in an allocator call, inside a launch (or copy, memset) call, blocked by the OS, inside a framework operator; what is
left is Python or other host code where operators were recorded, else host time that the record can't explain.
The shares sum to the idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gputop_llm.timeline.intervals import clip, covered_until, intersect, length, subtract, union
from gputop_llm.timeline.model import I32, I64, U8, Timeline
from gputop_llm.verdict.apis import Api, uses
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals


class Cause(IntEnum):
    """What the submitting thread was doing, in the order of precedence."""

    SYNC = 0
    ALLOC = 1
    LAUNCH = 2
    OS_BLOCKED = 3
    FRAMEWORK = 4
    HOST_CODE = 5
    UNATTRIBUTED = 6


CAUSE_LABELS = {
    Cause.SYNC: "blocked in a synchronising call",
    Cause.ALLOC: "in an allocator call",
    Cause.LAUNCH: "inside launch and copy calls",
    Cause.OS_BLOCKED: "blocked by the OS",
    Cause.FRAMEWORK: "inside framework operators",
    Cause.HOST_CODE: "Python or other host code",
    Cause.UNATTRIBUTED: "host, unattributed",
}
_BY_USE: dict[Cause, tuple[Api, ...]] = {
    Cause.SYNC: (Api.SYNC, Api.BLOCKING_COPY),
    Cause.ALLOC: (Api.ALLOC, Api.ASYNC_ALLOC),
    Cause.LAUNCH: (Api.LAUNCH, Api.GRAPH_LAUNCH, Api.ASYNC_COPY, Api.MEMSET, Api.OTHER),
}


@dataclass(frozen=True)
class Gaps:
    """The gaps of one device: per gap its bounds, the row in `ops` of the work that
    ended it (-1 for the last one), the thread that issued that work (-1 unknown), and the time by cause (ns)."""

    start: I64
    end: I64
    next_op: I64
    thread: I32
    by_cause: I64

    @property
    def length(self) -> I64:
        """Length of each gap."""
        return self.end - self.start

    @property
    def dominant(self) -> U8:
        """The cause that holds the largest part of each gap."""
        found: U8 = np.argmax(self.by_cause, axis=1).astype(np.uint8)
        return found


@dataclass(frozen=True)
class Idle:
    """Idle time of one device by cause; `total_ns` sums to the device's idle time."""

    device: int
    idle_ns: int
    total_ns: dict[Cause, int]
    gaps: Gaps

    def share_pct(self, cause: Cause) -> float:
        """Share of the idle time."""
        return 100.0 * self.total_ns[cause] / self.idle_ns if self.idle_ns else 0.0


def idle(timeline: Timeline, covered: DeviceCoverage) -> Idle:
    """Attributes every idle nanosecond of one device."""
    start, end = covered.gaps
    next_op, thread = _what_ended(timeline, covered)
    by_cause = np.zeros((len(start), len(Cause)), dtype=np.int64)
    use = uses(timeline)
    for number in np.unique(thread):
        rows = np.nonzero(thread == number)[0]
        remaining: Intervals = (start[rows], end[rows])
        activities = _activities(timeline, int(number), use) if number >= 0 else []
        for cause, intervals in activities:
            hit = intersect(remaining, intervals)
            by_cause[rows, cause] += _per_gap(start[rows], end[rows], hit)
            remaining = subtract(remaining, hit)
        rest = Cause.HOST_CODE if number >= 0 and _records_host_code(timeline, int(number)) else Cause.UNATTRIBUTED
        by_cause[rows, rest] += _per_gap(start[rows], end[rows], remaining)
    total = {cause: int(by_cause[:, cause].sum()) for cause in Cause}
    assert sum(total.values()) == length(start, end), "idle causes must sum to the idle time"
    return Idle(covered.device, covered.idle_ns, total, Gaps(start, end, next_op, thread, by_cause))


def _what_ended(timeline: Timeline, covered: DeviceCoverage) -> tuple[I64, I32]:
    """For each gap the row in `ops` that ended it, and the thread that issued it.

    Work whose launch is unknown, and the gap at the window's end, go to the thread that issued most of its work.
    """
    ops, calls = timeline.ops, timeline.calls
    own = np.nonzero(ops.device == covered.device)[0]
    gap_end = covered.gaps[1]
    position = np.searchsorted(ops.start[own], gap_end, side="left")
    exists = position < len(own)
    next_op = np.where(exists, own[np.minimum(position, max(len(own) - 1, 0))] if len(own) else -1, -1)
    thread = np.full(len(gap_end), -1, dtype=np.int32)
    if not len(calls) or not len(own):
        return next_op, thread
    launches = ops.launch[own]
    issued = calls.thread[launches[launches >= 0]]
    usual = int(np.bincount(issued).argmax()) if len(issued) else -1
    launch = np.where(next_op >= 0, ops.launch[np.maximum(next_op, 0)], -1)
    thread = np.where(launch >= 0, calls.thread[np.maximum(launch, 0)], usual).astype(np.int32)
    return next_op, thread


def _activities(timeline: Timeline, thread: int, use: U8) -> list[tuple[Cause, Intervals]]:
    """What one thread was in, by cause, as disjoint intervals inside the window, in the order of precedence."""
    calls, ops, waits = timeline.calls, timeline.cpu_ops, timeline.os_waits
    own = calls.thread == thread
    found: list[tuple[Cause, Intervals]] = []
    for cause, kinds in _BY_USE.items():
        rows = own & np.isin(use, kinds)
        found.append((cause, _union_of(calls.start[rows], calls.end[rows], timeline)))
    rows = waits.thread == thread
    found.append((Cause.OS_BLOCKED, _union_of(waits.start[rows], waits.end[rows], timeline)))
    rows = ops.thread == thread
    found.append((Cause.FRAMEWORK, _union_of(ops.start[rows], ops.end[rows], timeline)))
    return found


def _union_of(start: I64, end: I64, timeline: Timeline) -> Intervals:
    return union(*clip(start, end, timeline.start, timeline.end))


def _records_host_code(timeline: Timeline, thread: int) -> bool:
    """Whether time outside of calls and operators is known to be host code: operators of this thread were recorded."""
    return bool((timeline.cpu_ops.thread == thread).any())


def _per_gap(start: I64, end: I64, disjoint: Intervals) -> I64:
    return covered_until(end, disjoint) - covered_until(start, disjoint)
