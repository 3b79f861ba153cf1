"""The hot kernels of a capture, each with its one grid and block, and which of them can't be run again alone."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from gputop_llm.timeline.intervals import clip, length, union
from gputop_llm.timeline.launch_shape import Extents, extents_of
from gputop_llm.timeline.model import I64, Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.grouped import from_graphs
from gputop_llm.verdict.kernel_names import Family, family_of, short_name

#: Of a device's busy time: below it a kernel is not worth a process of its own.
LEAST_PCT = 1.0
MOST = 12
_UNNAMED = re.compile(r"kernel 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class HotLaunch:
    """One kernel with one grid and block on one device.

    Args:
        name: as recorded, with all its template arguments.
        grid, block: None where the record doesn't have them.
        busy_pct: |∪ its rows| ÷ |∪ device activity|; `window_pct` of the window.
        median_ns: of its durations.
        by_graph: calls that a graph replay ran.
        rows: in `Timeline.ops`.
    """

    name: str
    grid: Extents | None
    block: Extents | None
    device: int
    calls: int
    by_graph: int
    busy_pct: float
    window_pct: float
    median_ns: float
    rows: I64 = field(repr=False, compare=False)

    @property
    def short(self) -> str:
        """The name as an engineer says it."""
        return short_name(self.name)

    @property
    def family(self) -> Family:
        return family_of(self.name)


def hot_launches(context: Context, pattern: re.Pattern[str] | None = None, most: int = MOST) -> tuple[HotLaunch, ...]:
    """The hottest kernels of the device that did most, the longest union of time first.

    Args:
        pattern: only those whose name it is found in, however little time they take.
    """
    timeline, main = context.timeline, context.main
    if main is None or not main.busy_ns:
        return ()
    ops = timeline.ops
    inside = (ops.end > timeline.start) & (ops.start < timeline.end)
    rows = np.flatnonzero((ops.kind == Kind.KERNEL) & (ops.device == main.device) & inside)
    if not len(rows):
        return ()
    keys, of_key = np.unique(
        np.stack((ops.name_id[rows].astype(np.int64), ops.grid[rows], ops.block[rows])), axis=1, return_inverse=True
    )
    of_key = of_key.reshape(-1)
    duration = ops.end[rows] - ops.start[rows]
    work = np.bincount(of_key, weights=duration, minlength=keys.shape[1])
    in_graph = from_graphs(ops, context.uses)
    found: list[HotLaunch] = []
    for position in np.argsort(-work, kind="stable"):
        name = timeline.name(int(keys[0, position]))
        if pattern is not None and not pattern.search(name):
            continue
        # A union is at most the sum, and the sums fall.
        if len(found) >= most or (pattern is None and 100.0 * work[position] / main.busy_ns < LEAST_PCT):
            break
        own = rows[of_key == position]
        busy = length(*union(*clip(ops.start[own], ops.end[own], timeline.start, timeline.end)))
        found.append(
            HotLaunch(
                name=name,
                grid=extents_of(int(keys[1, position])),
                block=extents_of(int(keys[2, position])),
                device=main.device,
                calls=len(own),
                by_graph=int(in_graph[own].sum()),
                busy_pct=100.0 * busy / main.busy_ns,
                window_pct=100.0 * busy / timeline.window_ns,
                median_ns=float(np.median(ops.end[own] - ops.start[own])),
                rows=own,
            )
        )
    return tuple(sorted(found, key=lambda one: -one.busy_pct))


def refusal(hot: HotLaunch) -> tuple[str, str] | None:
    """Why a kernel can't be run again alone, and what to do then; None where it can be tried."""
    if hot.family is Family.NCCL:
        return (
            "it is a collective: alone it waits for the other ranks for ever",
            "look at who arrives late: `gputop-llm verdict` on a capture of all ranks",
        )
    if _UNNAMED.fullmatch(hot.name):
        return "the record has no name for it", "take a new capture: `gputop-llm capture` names kernels"
    if hot.grid is None or hot.block is None:
        return "the record has no grid and block of it: nothing could be compared", "take a new capture"
    return None
