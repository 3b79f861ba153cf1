"""Why a device was idle: what the host thread that issued its next work was doing during each gap.

Until the launch of the next work has returned, each nanosecond of a gap goes to the first of these that holds for the
thread that launches it: blocked in a synchronising call, in an allocator call, inside a launch (or copy, memset) call,
blocked by the OS, inside a framework operator; what is left is Python or other host code where operators were
recorded, else host time that the record can't explain. Once the launch has returned, the host is not what the device
waits for: that time is "submitted". A gap whose launch is not in the record is left unexplained.
The shares sum to the idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gputop_llm.timeline.intervals import clip, length, overlap_with, union
from gputop_llm.timeline.model import I32, I64, U8, CpuOps, HostCalls, OsWaits, Timeline
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals, Mask


class Cause(IntEnum):
    """What the submitting thread was doing, in the order of precedence; SUBMITTED: it was done."""

    SYNC = 0
    ALLOC = 1
    LAUNCH = 2
    OS_BLOCKED = 3
    FRAMEWORK = 4
    HOST_CODE = 5
    UNATTRIBUTED = 6
    SUBMITTED = 7


CAUSE_LABELS = {
    Cause.SYNC: "blocked in a synchronising call",
    Cause.ALLOC: "in an allocator call",
    Cause.LAUNCH: "inside launch and copy calls",
    Cause.OS_BLOCKED: "blocked by the OS",
    Cause.FRAMEWORK: "inside framework operators",
    Cause.HOST_CODE: "Python or other host code",
    Cause.UNATTRIBUTED: "host, unattributed",
    Cause.SUBMITTED: "submitted, not yet begun by the device",
}


class Began(IntEnum):
    """How a gap came about, by what was under way in its first moment.

    SYNC, ALLOC: the thread that issues the next work was in such a call, so it could not run ahead.
    DRY: it was on its way, but later than the device. QUEUED: the next work had been submitted (inside of a graph
    replay, or waiting for another stream). UNKNOWN: the launch of the next work is not in the record.
    END: no work came any more.
    """

    SYNC = 0
    ALLOC = 1
    DRY = 2
    QUEUED = 3
    UNKNOWN = 4
    END = 5


_CAUSE_OF_USE = np.full(len(Api), Cause.LAUNCH, dtype=np.uint8)
_CAUSE_OF_USE[[Api.SYNC, Api.BLOCKING_COPY]] = Cause.SYNC
_CAUSE_OF_USE[[Api.ALLOC, Api.ASYNC_ALLOC]] = Cause.ALLOC

_HostTable = HostCalls | OsWaits | CpuOps
#: Gaps whose host side is looked up at once.
_CHUNK = 65_536

#: Gaps are listed from the length on above which this share of the idle time lies, but none shorter than 1 µs.
_LISTED_SHARE = 0.9
_SHORTEST_LISTED_NS = 1_000


@dataclass(frozen=True)
class Gaps:
    """The gaps of one device, in time order.

    Per gap: its bounds, the row in `ops` of the work that ended it (-1 for the last one), the thread that issued that
    work (-1 unknown), how it began (`Began`), and its time by `Cause` (ns, one column each).
    """

    start: I64
    end: I64
    next_op: I64
    thread: I32
    began: U8
    by_cause: I64 | I32

    @property
    def length(self) -> I64:
        """Length of each gap (ns)."""
        return self.end - self.start

    @property
    def dominant(self) -> U8:
        """The cause that holds the largest part of each gap."""
        found: U8 = np.argmax(self.by_cause, axis=1).astype(np.uint8)
        return found


@dataclass(frozen=True)
class Idle:
    """Idle time of one device by cause, and by how its gaps began; both sum to the device's idle time."""

    device: int
    idle_ns: int
    total_ns: dict[Cause, int]
    began_ns: dict[Began, int]
    gaps: Gaps

    def share_pct(self, cause: Cause) -> float:
        """Share of the idle time."""
        return 100.0 * self.total_ns[cause] / self.idle_ns if self.idle_ns else 0.0

    def listing_threshold_ns(self) -> int:
        """The length from which on gaps are worth listing: those hold 90 % of the idle time.

        It follows the capture: microseconds in an eager decode, milliseconds where the engine waits for requests.
        """
        longest_first = np.sort(self.gaps.length)[::-1]
        if not len(longest_first):
            return _SHORTEST_LISTED_NS
        reached = int(np.searchsorted(np.cumsum(longest_first), _LISTED_SHARE * self.idle_ns))
        return max(_SHORTEST_LISTED_NS, int(longest_first[min(reached, len(longest_first) - 1)]))

    def longest(self, count: int) -> I64:
        """Positions of the longest gaps worth listing, the longest first."""
        sizes = self.gaps.length
        listed = np.flatnonzero(sizes >= self.listing_threshold_ns())
        return listed[np.argsort(-sizes[listed], kind="stable")][:count]


def idle(timeline: Timeline, covered: DeviceCoverage, use: U8) -> Idle:
    """Attributes every idle nanosecond of one device. `use` is the use of each call (`apis.uses`)."""
    start, end = covered.gaps
    next_op, launch, thread = _what_ended(timeline, covered)
    # Until here the device waited for the host.
    host_end = np.where(next_op < 0, end, start)
    known = launch >= 0
    host_end[known] = np.clip(timeline.calls.end[launch[known]], start[known], end[known])
    unknown = ~known & (next_op >= 0)
    short = not len(start) or int((end - start).max()) < 1 << 31
    by_cause = np.zeros((len(start), len(Cause)), dtype=np.int32 if short else np.int64)
    by_cause[:, Cause.SUBMITTED] = np.where(unknown, 0, end - host_end)
    by_cause[:, Cause.UNATTRIBUTED] = np.where(unknown, end - start, 0)
    began = np.full(len(start), Began.DRY, dtype=np.uint8)
    hosts = _Hosts(timeline, use)
    for number in np.unique(thread):
        rows = np.flatnonzero((thread == number) & (host_end > start))
        if number < 0:
            by_cause[rows, Cause.UNATTRIBUTED] += (host_end[rows] - start[rows]).astype(by_cause.dtype)
            continue
        for first in range(0, len(rows), _CHUNK):
            some = rows[first : first + _CHUNK]
            by_cause[some], began[some] = hosts.spent(int(number), start[some], host_end[some], by_cause[some])
    began[known & (host_end <= start)] = Began.QUEUED
    began[unknown] = Began.UNKNOWN
    began[next_op < 0] = Began.END
    total = {cause: int(by_cause[:, cause].sum(dtype=np.int64)) for cause in Cause}
    assert sum(total.values()) == length(start, end), "idle causes must sum to the idle time"
    lengths = end - start
    began_ns = {way: int(lengths[began == way].sum()) for way in Began}
    return Idle(covered.device, covered.idle_ns, total, began_ns, Gaps(start, end, next_op, thread, began, by_cause))


class _Hosts:
    """What host threads did, looked up for a stretch of time at once: large captures never need all of it in memory."""

    def __init__(self, timeline: Timeline, use: U8) -> None:
        self._timeline = timeline
        self._cause = _CAUSE_OF_USE[use]
        # The latest end so far, by row: it tells where to look first for what reaches into a stretch.
        self._reach = {
            id(table): np.maximum.accumulate(table.end) if len(table) else table.end
            for table in (timeline.calls, timeline.os_waits, timeline.cpu_ops)
        }

    def spent(self, thread: int, low: I64, high: I64, by_cause: I64 | I32) -> tuple[I64 | I32, U8]:
        """For some gaps of one thread, in time order: time by cause added to `by_cause`, and how they began."""
        began = np.full(len(low), Began.DRY, dtype=np.uint8)
        before: I64 | int = 0
        for cause, intervals in self._activities(thread, int(low[0]), int(high.max())):
            # Each set holds those before it too: what is new in it is this cause's own.
            reached = overlap_with(low, high, intervals)
            by_cause[:, cause] = reached - before
            before = reached
            if cause in (Cause.SYNC, Cause.ALLOC):
                inside = contains(intervals, low) & (began == Began.DRY)
                began[inside] = Began.SYNC if cause is Cause.SYNC else Began.ALLOC
        # Time outside of calls and operators is known to be host code where operators of the thread were recorded.
        recorded = bool((self._timeline.cpu_ops.thread == thread).any())
        by_cause[:, Cause.HOST_CODE if recorded else Cause.UNATTRIBUTED] += (high - low - before).astype(by_cause.dtype)
        return by_cause, began

    def _activities(self, thread: int, low: int, high: int) -> list[tuple[Cause, Intervals]]:
        """What a thread was in, in the order of precedence: each set is the union of its cause and all before it."""
        timeline = self._timeline
        calls = self._rows(timeline.calls, thread, low, high)
        cause = self._cause[calls]
        parts: list[tuple[Cause, _HostTable, I64]] = [
            (kind, timeline.calls, calls[cause == kind]) for kind in (Cause.SYNC, Cause.ALLOC, Cause.LAUNCH)
        ]
        parts.append((Cause.OS_BLOCKED, timeline.os_waits, self._rows(timeline.os_waits, thread, low, high)))
        parts.append((Cause.FRAMEWORK, timeline.cpu_ops, self._rows(timeline.cpu_ops, thread, low, high)))
        found: list[tuple[Cause, Intervals]] = []
        reached: Intervals = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        for kind, table, rows in parts:
            start, end = clip(table.start[rows], table.end[rows], low, high)
            if len(start):
                reached = union(np.concatenate((reached[0], start)), np.concatenate((reached[1], end)))
            found.append((kind, reached))
        return found

    def _rows(self, table: _HostTable, thread: int, low: int, high: int) -> I64:
        """The rows of a thread that reach into [low, high)."""
        first = int(np.searchsorted(self._reach[id(table)], low, side="right"))
        last = int(np.searchsorted(table.start, high, side="left"))
        rows: I64 = first + np.flatnonzero(table.thread[first:last] == thread)
        return rows


def _what_ended(timeline: Timeline, covered: DeviceCoverage) -> tuple[I64, I64, I32]:
    """For each gap the row in `ops` that ended it, the row in `calls` that launched that, and the launching thread.

    After the last work it is the thread that issued most of the device's work.
    """
    ops, calls = timeline.ops, timeline.calls
    # Rows without a duration end no gap.
    own = np.flatnonzero((ops.device == covered.device) & (ops.end > ops.start))
    gap_end = covered.gaps[1]
    position = np.searchsorted(ops.start[own], gap_end, side="left")
    exists = (position < len(own)) & (gap_end < timeline.end)
    next_op = np.full(len(gap_end), -1, dtype=np.int64)
    next_op[exists] = own[position[exists]]
    launch = np.full(len(gap_end), -1, dtype=np.int64)
    launch[exists] = ops.launch[next_op[exists]]
    thread = np.full(len(gap_end), -1, dtype=np.int32)
    if not len(calls) or not len(own):
        return next_op, launch, thread
    thread[launch >= 0] = calls.thread[launch[launch >= 0]]
    issued = ops.launch[own]
    issuers = calls.thread[issued[issued >= 0]]
    if len(issuers):
        thread[~exists] = int(np.bincount(issuers).argmax())
    return next_op, launch, thread


def contains(disjoint: Intervals, at: I64) -> Mask:
    """Whether each moment lies inside of one of the intervals."""
    starts, ends = disjoint
    if not len(starts):
        return np.zeros(len(at), dtype=np.bool_)
    position = np.searchsorted(starts, at, side="right") - 1
    inside: Mask = (position >= 0) & (at < ends[np.maximum(position, 0)])
    return inside
