"""Sums over groups of device rows: unions by group at once, and the family and graph origin of each row."""

from __future__ import annotations

import numpy as np

from gputop_llm.timeline.intervals import union
from gputop_llm.timeline.model import I32, I64, U8, DeviceOps, Kind, Timeline
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.coverage import Mask
from gputop_llm.verdict.kernel_names import Family, family_of

FAMILIES = tuple(Family)


def union_lengths(group: I64 | I32 | U8, groups: int, start: I64, end: I64) -> I64:
    """For each group 0 … groups − 1 the length of the union of its intervals (ns)."""
    if not len(start):
        return np.zeros(groups, dtype=np.int64)
    low = int(start.min())
    # Each group gets a stretch of time for itself, and a nanosecond between, so one union serves them all.
    span = int(end.max()) - low + 1
    # Rows come in time order: put by group, they need no further sorting. Small integers are sorted by radix.
    order = np.argsort(group.astype(np.uint16) if groups <= 1 << 16 else group, kind="stable")
    shift = group[order].astype(np.int64)
    shift *= span
    shift -= low
    shifted_end = end[order]
    shifted_end += shift
    shift += start[order]
    del order
    joined_start, joined_end = union(shift, shifted_end)
    sums = np.bincount(joined_start // span, weights=joined_end - joined_start, minlength=groups)
    return np.rint(sums).astype(np.int64)


def families(timeline: Timeline) -> U8:
    """The family of each device row, as a position in `FAMILIES`."""
    ops = timeline.ops
    by_name = np.full(len(timeline.strings) + 1, FAMILIES.index(Family.OTHER), dtype=np.uint8)
    for name_id in np.unique(ops.name_id[ops.kind == Kind.KERNEL]):
        by_name[name_id] = FAMILIES.index(family_of(timeline.name(int(name_id))))
    found: U8 = by_name[ops.name_id]
    found[ops.kind == Kind.COPY] = FAMILIES.index(Family.COPY)
    found[ops.kind == Kind.MEMSET] = FAMILIES.index(Family.MEMSET)
    found[ops.kind == Kind.GRAPH] = FAMILIES.index(Family.GRAPH)
    return found


def from_graphs(ops: DeviceOps, use: U8) -> Mask:
    """Which device rows a graph replay ran: whole replays, nodes by their id, rows of a graph launch."""
    found: Mask = (ops.kind == Kind.GRAPH) | (ops.graph_node > 0)
    if len(use):
        found |= (ops.launch >= 0) & (use[np.maximum(ops.launch, 0)] == Api.GRAPH_LAUNCH)
    return found
