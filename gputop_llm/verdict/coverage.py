"""How much of the window each device worked: the union of all its activity, never a sum of durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gputop_llm.timeline.intervals import clip, complement, length, union
from gputop_llm.timeline.model import I64, DeviceOps, Kind, Timeline

Intervals = tuple[I64, I64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceCoverage:
    """One device over the window.

    `busy_pct` = |∪ of its activity| ÷ window; `active_pct` the same from its first to its last activity
    (`active_ns` long). `work_ns` are summed durations by kind, which may exceed the window: work, never latency.
    `busy` and `gaps` are disjoint and sorted, and together make up the window.
    """

    device: int
    window_ns: int
    busy_ns: int
    active_ns: int
    kernel_busy_ns: int
    copy_busy_ns: int
    work_ns: dict[Kind, int]
    counts: dict[Kind, int]
    busy: Intervals
    gaps: Intervals

    @property
    def busy_pct(self) -> float:
        """Share of the window with any activity."""
        return 100.0 * self.busy_ns / self.window_ns if self.window_ns else 0.0

    @property
    def active_pct(self) -> float:
        """Share of the time from its first to its last activity."""
        return 100.0 * self.busy_ns / self.active_ns if self.active_ns else 0.0

    @property
    def idle_ns(self) -> int:
        """Window without activity."""
        return self.window_ns - self.busy_ns


def coverage(timeline: Timeline) -> tuple[DeviceCoverage, ...]:
    """One entry per device with activity in the window, by number."""
    return tuple(_of_device(timeline, int(number)) for number in np.unique(timeline.ops.device))


def in_window(timeline: Timeline) -> DeviceOps:
    """The device rows that reach into the window (not clipped to it)."""
    ops = timeline.ops
    taken: DeviceOps = ops.take((ops.end > timeline.start) & (ops.start < timeline.end))
    return taken


def kernel_intervals(timeline: Timeline, device: int) -> Intervals:
    """When a kernel or graph replay ran on a device, disjoint and sorted, within the window."""
    ops = timeline.ops
    rows = (ops.device == device) & ((ops.kind == Kind.KERNEL) | (ops.kind == Kind.GRAPH))
    return union(*clip(ops.start[rows], ops.end[rows], timeline.start, timeline.end))


def _of_device(timeline: Timeline, number: int) -> DeviceCoverage:
    ops = timeline.ops
    # Only the columns that are needed: the whole table of a large capture is 100 MB.
    rows = (ops.device == number) & (ops.end > timeline.start) & (ops.start < timeline.end)
    kind = ops.kind[rows]
    start, end = ops.start[rows], ops.end[rows]
    np.maximum(start, timeline.start, out=start)
    np.minimum(end, timeline.end, out=end)
    del rows
    busy = union(start, end)
    work, counts = {}, {}
    for each in Kind:
        of_kind = kind == each
        work[each] = int(end[of_kind].sum()) - int(start[of_kind].sum())
        counts[each] = int(of_kind.sum())
    compute = (kind == Kind.KERNEL) | (kind == Kind.GRAPH)
    return DeviceCoverage(
        device=number,
        window_ns=timeline.window_ns,
        busy_ns=length(*busy),
        active_ns=int(busy[1][-1] - busy[0][0]) if len(busy[0]) else 0,
        kernel_busy_ns=length(*(busy if compute.all() else union(start[compute], end[compute]))),
        copy_busy_ns=length(*union(start[~compute], end[~compute])),
        work_ns=work,
        counts=counts,
        busy=busy,
        gaps=complement(*busy, timeline.start, timeline.end),
    )
