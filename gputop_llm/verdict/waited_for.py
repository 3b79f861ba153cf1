"""What a host thread waits for beyond this process, where the record proves it: another rank, or a request.

Another rank: the thread is inside a collective that blocks the host (gloo, MPI, a barrier); or it waits for input while
a device works that shares collectives with its own, so that one's step isn't over.

No request in flight: whoever took the capture knows it (a live count of running requests); or an annotation of the
engine's says so; or, in a known engine, the thread waits for input for a millisecond or more in which nothing recorded
moves: every device is idle, every thread is kept by the OS, no call and no operator is under way. Without OS waits in
the record that can't be told, and the time stays with the host.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gputop_llm.timeline.intervals import clip, complement, intersect, subtract, union
from gputop_llm.timeline.model import I32, CpuOps, HostCalls, OsWaits, Ranges
from gputop_llm.verdict.coverage import Intervals, Mask
from gputop_llm.verdict.grouped import FAMILIES, from_graphs
from gputop_llm.verdict.kernel_names import Family

if TYPE_CHECKING:
    from gputop_llm.verdict.context import Context

#: Calls into the OS in which a thread waits for what others bring: sockets, pipes, queues. Never sleeps or files.
INPUT_WAITS = frozenset(
    (
        *("poll", "ppoll", "epoll_wait", "epoll_pwait", "epoll_pwait2", "select", "pselect", "recv", "recvfrom"),
        *("recvmsg", "sem_wait", "sem_timedwait", "sem_clockwait", "futex", "pthread_cond_wait"),
        *("pthread_cond_timedwait", "pthread_cond_clockwait"),
    )
)
# Collectives on the host block it until the others are there; those on a device only launch.
_HOST_COLLECTIVE = re.compile(
    r"^gloo:|^(c10d::)?(monitored_)?barrier\b|^NCCL:ncclComm(Init|Split|Finalize)"
    r"|^(MPI:)?MPI_(Barrier|Wait|Recv|Probe|Bcast|Reduce|Allreduce|Gather|Allgather|Scatter|Alltoall)",
    re.IGNORECASE,
)
_ENGINE_IDLE = re.compile(
    r"\bwait(s|ing)?[ _]for[ _](new[ _])?(work|requests?|input)\b|\bno[ _](running[ _])?requests?\b", re.IGNORECASE
)
#: Shorter stretches in which nothing moves are threads on their way from one to the next.
_LEAST_QUIET_NS = 1_000_000

_NOTHING: Intervals = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class WaitedFor:
    """The evidence of one capture. `given` are the times without a request in flight that its taker knows of."""

    def __init__(self, context: Context, given: Intervals | None) -> None:
        timeline = self._timeline = context.timeline
        self._context = context
        #: Disjoint and sorted, within the window.
        self.given = _NOTHING if given is None else union(*clip(*given, timeline.start, timeline.end))

    @cached_property
    def collectives(self) -> Mask:
        """Which rows of `ops` are collectives."""
        found: Mask = self._context.families == FAMILIES.index(Family.NCCL)
        return found

    @cached_property
    def launched_collectives(self) -> Mask:
        """Those that a launch of their own began. How the nodes of a replay follow each other is the recorder's."""
        return self.collectives & ~from_graphs(self._timeline.ops, self._context.uses)

    def rank(self, thread: int, device: int) -> Intervals:
        """When a thread that launches onto a device waited for another rank."""
        named = self._named(_HOST_COLLECTIVE, thread)
        return _either(named, intersect(self._input_waits(thread), self._busy_peers(device)))

    def request(self, thread: int) -> Intervals:
        """When a thread had nothing to do because no request was in flight."""
        waits = self._input_waits(thread)
        quiet = intersect(waits, self._quiet) if len(waits[0]) and self._context.engine else _NOTHING
        long = quiet[1] - quiet[0] >= _LEAST_QUIET_NS
        return _either(self.given, _either(self._named(_ENGINE_IDLE, thread), (quiet[0][long], quiet[1][long])))

    def _named(self, pattern: re.Pattern[str], thread: int) -> Intervals:
        """When a thread was inside of ranges or operators with such a name."""
        found = _NOTHING
        tables: tuple[Ranges | CpuOps, ...] = (self._timeline.ranges, self._timeline.cpu_ops)
        for table in tables:
            ids = [int(i) for i in np.unique(table.name_id) if i >= 0 and pattern.search(self._timeline.name(int(i)))]
            if ids:
                found = _either(found, self._union(table, np.isin(table.name_id, ids) & (table.thread == thread)))
        return found

    def _input_waits(self, thread: int) -> Intervals:
        waits = self._timeline.os_waits
        own = waits.thread == thread
        return self._union(waits, own & np.isin(waits.name_id, self._input_ids)) if own.any() else _NOTHING

    @cached_property
    def _input_ids(self) -> I32:
        names = self._timeline.strings
        return np.array([i for i, name in enumerate(names) if name in INPUT_WAITS], dtype=np.int32)

    def _busy_peers(self, device: int) -> Intervals:
        """When another device worked that takes part in collectives as this one does."""
        ops = self._timeline.ops
        sharing = {int(number) for number in np.unique(ops.device[self.collectives])}
        if device not in sharing:
            return _NOTHING
        peers = [c.busy for c in self._context.coverage if c.device != device and c.device in sharing]
        return _joined(peers)

    @cached_property
    def _quiet(self) -> Intervals:
        """When nothing that was recorded moved."""
        timeline = self._timeline
        calls, operators, waits = timeline.calls, timeline.cpu_ops, timeline.os_waits
        moving = [c.busy for c in self._context.coverage]
        tables: tuple[HostCalls | CpuOps, ...] = (calls, operators)
        moving += [self._union(table, np.ones(len(table), dtype=np.bool_)) for table in tables if len(table)]
        for thread in np.unique(waits.thread):
            kept = self._union(waits, waits.thread == thread)
            if len(kept[0]):
                # Before its first wait and after its last nothing is known of a thread.
                moving.append(complement(*kept, int(kept[0][0]), int(kept[1][-1])))
        everything = (np.array([timeline.start]), np.array([timeline.end]))
        return subtract(everything, _joined(moving))

    def _union(self, table: HostCalls | CpuOps | Ranges | OsWaits, rows: Mask) -> Intervals:
        return union(*clip(table.start[rows], table.end[rows], self._timeline.start, self._timeline.end))


def _joined(sets: list[Intervals]) -> Intervals:
    if not sets:
        return _NOTHING
    return union(np.concatenate([start for start, _ in sets]), np.concatenate([end for _, end in sets]))


def _either(one: Intervals, other: Intervals) -> Intervals:
    if not len(one[0]) or not len(other[0]):
        return one if len(one[0]) else other
    return _joined([one, other])
