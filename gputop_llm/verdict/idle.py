"""Why a device was idle: what the host thread that issued its next work was doing during each gap.

Until the launch of the next work has returned, each nanosecond of a gap goes to the first of these that holds for the
thread that launches it: blocked in a synchronising call, in an allocator call, inside a launch (or copy, memset) call,
waiting for another rank as far as the record proves it, blocked by the OS with no request in flight, blocked by the OS,
inside a framework operator, no request in flight; what is left is Python or other host code where operators were
recorded, else host time that the record can't explain. Once the launch has returned, the host is not what the device
waits for: that time is "submitted". Where the next work is a collective it is "another rank": the whole device is
idle, so nothing on it can hold the collective up. A gap whose launch is not in the record is left unexplained, but for
the time in which no request is known to have been in flight.
The shares sum to the idle time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gputop_llm.timeline.intervals import clip, intersect, length, overlap_with, union
from gputop_llm.timeline.model import I32, I64, U8, CpuOps, HostCalls, OsWaits, Timeline
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.causes import ByCause, Cause, Collected
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals, Mask
from gputop_llm.verdict.waited_for import WaitedFor
from gputop_llm.verdict.wake import in_the_wake


class Began(IntEnum):
    """How a gap came about, by what was under way in its first moment.

    SYNC, ALLOC: the thread that issues the next work was in such a call, so it could not run ahead.
    DRY: it was on its way, but later than the device. QUEUED: the next work had been submitted (inside of a graph
    replay, or waiting for another stream). UNKNOWN: the launch of the next work is not in the record.
    END: no work came any more. RANK, NO_REQUEST: however it began, most of it was that wait. AFTER_ALLOC: as DRY, but
    the thread had waited in an allocator call before, and had not caught up (`wake`).
    """

    SYNC = 0
    ALLOC = 1
    DRY = 2
    QUEUED = 3
    UNKNOWN = 4
    END = 5
    RANK = 6
    NO_REQUEST = 7
    AFTER_ALLOC = 8


_CAUSE_OF_USE = np.full(len(Api), Cause.LAUNCH, dtype=np.uint8)
_CAUSE_OF_USE[[Api.SYNC, Api.BLOCKING_COPY]] = Cause.SYNC
_CAUSE_OF_USE[[Api.ALLOC, Api.ASYNC_ALLOC]] = Cause.ALLOC

_HostTable = HostCalls | OsWaits | CpuOps
#: Gaps whose host side is looked up at once.
_CHUNK = 16_384
#: Rows whose latest end is kept together: it tells where to look first for what reaches into a stretch of time.
_BLOCK = 1_024
#: A collective begins so soon after its launch has returned; from here on it waits for something.
_START_LATENCY_NS = 20_000

#: Gaps are listed from the length on above which this share of the idle time lies, but none shorter than 1 µs.
_LISTED_SHARE = 0.9
_SHORTEST_LISTED_NS = 1_000


@dataclass(frozen=True)
class Gaps:
    """The gaps of one device, in time order.

    Per gap: its bounds, the row in `ops` of the work that ended it (-1 for the last one), the thread that issued that
    work (-1 unknown), how it began (`Began`), and its time by cause.
    """

    start: I64
    end: I64
    next_op: I32
    thread: I32
    began: U8
    by_cause: ByCause

    @property
    def length(self) -> I64:
        """Length of each gap (ns)."""
        return self.end - self.start


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


def idle(timeline: Timeline, covered: DeviceCoverage, use: U8, waited_for: WaitedFor) -> Idle:
    """Attributes every idle nanosecond of one device. `use` is the use of each call (`apis.uses`)."""
    start, end = covered.gaps
    next_op, launch, thread = _what_ended(timeline, covered)
    # Until here the device waited for the host.
    host_end = np.where(next_op < 0, end, start)
    known = launch >= 0
    host_end[known] = np.clip(timeline.calls.end[launch[known]], start[known], end[known])
    unknown = ~known & (next_op >= 0)
    began = np.full(len(start), Began.DRY, dtype=np.uint8)
    most = np.zeros(len(start), dtype=np.uint8)
    awaits = _await_ranks(np.where(unknown, 0, end - host_end), next_op, waited_for)
    hosts = _Hosts(timeline, use, waited_for, covered.device)
    collected = Collected()
    for first in range(0, len(start), _CHUNK):
        some = slice(first, first + _CHUNK)
        low, high = start[some], end[some]
        by_cause = np.zeros((len(low), len(Cause)), dtype=np.int64)
        submitted = np.where(unknown[some], 0, high - host_end[some])
        by_cause[:, Cause.SUBMITTED] = np.where(awaits[some], 0, submitted)
        by_cause[:, Cause.RANK] = np.where(awaits[some], submitted, 0)
        # Nobody's: no thread is known to have kept the device waiting.
        nobodys = np.where(unknown[some], high, np.where(thread[some] < 0, host_end[some], low))
        by_cause[:, Cause.NO_REQUEST] = overlap_with(low, nobodys, waited_for.given)
        by_cause[:, Cause.UNATTRIBUTED] = nobodys - low - by_cause[:, Cause.NO_REQUEST]
        for number in np.unique(thread[some]):
            rows = np.flatnonzero((thread[some] == number) & (host_end[some] > low) & ~unknown[some])
            if number >= 0 and len(rows):
                by_cause[rows], began[first + rows] = hosts.spent(
                    int(number), low[rows], host_end[some][rows], by_cause[rows]
                )
        for cause, way in ((Cause.RANK, Began.RANK), (Cause.NO_REQUEST, Began.NO_REQUEST)):
            most[some][2 * by_cause[:, cause] > high - low] = way
        collected.add(by_cause)
    began[known & (host_end <= start)] = Began.QUEUED
    began[unknown] = Began.UNKNOWN
    began[next_op < 0] = Began.END
    began[most > 0] = most[most > 0]
    wake = in_the_wake((start, end), began == Began.ALLOC, began == Began.DRY, hosts.allocations(thread[next_op >= 0]))
    began[wake] = Began.AFTER_ALLOC
    found = collected.done()
    total = found.total()
    assert sum(total.values()) == length(start, end), "idle causes must sum to the idle time"
    lengths = end - start
    began_ns = {way: int(lengths[began == way].sum()) for way in Began}
    return Idle(covered.device, covered.idle_ns, total, began_ns, Gaps(start, end, next_op, thread, began, found))


def _await_ranks(submitted: I64, next_op: I32, waited_for: WaitedFor) -> Mask:
    """The gaps in which a collective had been submitted for so long (ns) that it must have waited for another rank.

    None where most of such waiting is before other work: the device then did something that the record lacks.
    """
    waits = (submitted > _START_LATENCY_NS) & (next_op >= 0)
    if not waits.any():
        return waits
    found: Mask = waits & waited_for.launched_collectives[np.maximum(next_op, 0)]
    if 2 * int(submitted[found].sum()) < int(submitted[waits].sum()):
        found[:] = False
    return found


class _Hosts:
    """What host threads did, looked up for a stretch of time at once: large captures never need all of it in memory."""

    def __init__(self, timeline: Timeline, use: U8, waited_for: WaitedFor, device: int) -> None:
        self._timeline = timeline
        self._waited_for = waited_for
        self._device = device
        self._waits: dict[int, tuple[Intervals, Intervals]] = {}
        self._cause = _CAUSE_OF_USE[use]
        # The latest end so far, by block.
        self._reach = {
            id(table): np.maximum.accumulate(np.maximum.reduceat(table.end, np.arange(0, len(table), _BLOCK)))
            if len(table)
            else table.end
            for table in (timeline.calls, timeline.os_waits, timeline.cpu_ops)
        }

    def spent(self, thread: int, low: I64, high: I64, by_cause: I64) -> tuple[I64, U8]:
        """For some gaps of one thread, in time order: time by cause added to `by_cause`, and how they began."""
        began = np.full(len(low), Began.DRY, dtype=np.uint8)
        before: I64 | int = 0
        known: Intervals | None = None
        for cause, intervals in self._activities(thread, int(low[0]), int(high.max())):
            # Each set holds those before it too: what is new in it is this cause's own.
            if intervals is known or not len(intervals[0]):
                continue
            known = intervals
            reached = overlap_with(low, high, intervals)
            by_cause[:, cause] += reached - before
            before = reached
            if cause in (Cause.SYNC, Cause.ALLOC):
                inside = contains(intervals, low) & (began == Began.DRY)
                began[inside] = Began.SYNC if cause is Cause.SYNC else Began.ALLOC
        # Time outside of calls and operators is known to be host code where operators of the thread were recorded.
        recorded = bool((self._timeline.cpu_ops.thread == thread).any())
        by_cause[:, Cause.HOST_CODE if recorded else Cause.UNATTRIBUTED] += high - low - before
        return by_cause, began

    def allocations(self, threads: I32) -> Intervals:
        """The allocator calls of some threads."""
        calls = self._timeline.calls
        rows = (self._cause == Cause.ALLOC) & np.isin(calls.thread, threads[threads >= 0])
        return calls.start[rows], calls.end[rows]

    def _activities(self, thread: int, low: int, high: int) -> list[tuple[Cause, Intervals]]:
        """What a thread was in, in the order of precedence: each set is the union of its cause and all before it."""
        timeline = self._timeline
        calls = self._rows(timeline.calls, thread, low, high)
        waits = self._rows(timeline.os_waits, thread, low, high)
        operators = self._rows(timeline.cpu_ops, thread, low, high)
        rank, request = (clip(*times, low, high) for times in self._waits_of(thread))
        cause = self._cause[calls]
        blocked = (timeline.os_waits.start[waits], timeline.os_waits.end[waits])
        parts: list[tuple[Cause, Intervals]] = [
            (kind, (timeline.calls.start[calls[cause == kind]], timeline.calls.end[calls[cause == kind]]))
            for kind in (Cause.SYNC, Cause.ALLOC, Cause.LAUNCH)
        ]
        parts += [
            (Cause.RANK, rank),
            (Cause.NO_REQUEST, intersect(union(*clip(*blocked, low, high)), request) if len(request[0]) else request),
            (Cause.OS_BLOCKED, blocked),
            (Cause.FRAMEWORK, (timeline.cpu_ops.start[operators], timeline.cpu_ops.end[operators])),
            (Cause.NO_REQUEST, request),
        ]
        found: list[tuple[Cause, Intervals]] = []
        reached: Intervals = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
        for kind, intervals in parts:
            start, end = clip(*intervals, low, high)
            if len(start):
                reached = union(np.concatenate((reached[0], start)), np.concatenate((reached[1], end)))
            found.append((kind, reached))
        return found

    def _waits_of(self, thread: int) -> tuple[Intervals, Intervals]:
        if thread not in self._waits:
            waited_for = self._waited_for
            self._waits[thread] = (waited_for.rank(thread, self._device), waited_for.request(thread))
        return self._waits[thread]

    def _rows(self, table: _HostTable, thread: int, low: int, high: int) -> I64:
        """The rows of a thread that reach into [low, high)."""
        first = _BLOCK * int(np.searchsorted(self._reach[id(table)], low, side="right"))
        last = int(np.searchsorted(table.start, high, side="left"))
        rows: I64 = first + np.flatnonzero(table.thread[first:last] == thread)
        return rows


def _what_ended(timeline: Timeline, covered: DeviceCoverage) -> tuple[I32, I64, I32]:
    """For each gap the row in `ops` that ended it, the row in `calls` that launched that, and the launching thread.

    After the last work it is the thread that issued most of the device's work.
    """
    ops, calls = timeline.ops, timeline.calls
    # Rows without a duration end no gap.
    own = np.flatnonzero((ops.device == covered.device) & (ops.end > ops.start))
    gap_end = covered.gaps[1]
    position = np.searchsorted(ops.start[own], gap_end, side="left")
    exists = (position < len(own)) & (gap_end < timeline.end)
    next_op = np.full(len(gap_end), -1, dtype=np.int32)
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
