"""Interval algebra over arrays of half-open [start, end) in integer ns.

Nothing is summed where a union is meant: overlapping streams count once.
"""

from __future__ import annotations

import numpy as np

from gputop_llm.timeline.model import I64


def clip(start: I64, end: I64, low: int, high: int) -> tuple[I64, I64]:
    """The parts of the intervals inside [low, high); empty ones are dropped."""
    if len(start) and start.min() >= low and end.max() <= high and bool((end > start).all()):
        return start, end
    clipped_start, clipped_end = np.maximum(start, low), np.minimum(end, high)
    kept = clipped_end > clipped_start
    return clipped_start[kept], clipped_end[kept]


def union(start: I64, end: I64) -> tuple[I64, I64]:
    """The disjoint, sorted intervals that cover the same time. Touching intervals become one; empty ones vanish."""
    # Columns of large captures come here: what is in order already is neither copied nor sorted.
    kept = end > start
    if not kept.all():
        start, end = start[kept], end[kept]
    if not len(start):
        return start, end
    if bool((start[1:] < start[:-1]).any()):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    # A new interval begins where a start lies beyond everything before it.
    first = np.flatnonzero(np.concatenate(([True], start[1:] > reach[:-1])))
    last = np.append(first[1:] - 1, len(start) - 1)
    return start[first], reach[last]


def length(start: I64, end: I64) -> int:
    """The summed length of disjoint intervals."""
    return int((end - start).sum())


def complement(start: I64, end: I64, low: int, high: int) -> tuple[I64, I64]:
    """What disjoint, sorted intervals leave free of [low, high)."""
    start, end = clip(start, end, low, high)
    gap_start = np.concatenate((np.array([low], dtype=np.int64), end))
    gap_end = np.concatenate((start, np.array([high], dtype=np.int64)))
    kept = gap_end > gap_start
    return gap_start[kept], gap_end[kept]


def intersect(a: tuple[I64, I64], b: tuple[I64, I64]) -> tuple[I64, I64]:
    """The time that two sets of disjoint, sorted intervals share, as disjoint, sorted intervals."""
    (a_start, a_end), (b_start, b_end) = a, b
    if not len(a_start) or not len(b_start):
        empty = np.empty(0, dtype=np.int64)
        return empty, empty
    low = int(min(a_start[0], b_start[0]))
    high = int(max(a_end[-1], b_end[-1]))
    not_a = complement(a_start, a_end, low, high)
    not_b = complement(b_start, b_end, low, high)
    outside = union(np.concatenate((not_a[0], not_b[0])), np.concatenate((not_a[1], not_b[1])))
    return complement(*outside, low, high)


def subtract(a: tuple[I64, I64], b: tuple[I64, I64]) -> tuple[I64, I64]:
    """The time of `a` that is not in `b`; both disjoint and sorted."""
    if not len(a[0]):
        return a
    low, high = int(a[0][0]), int(a[1][-1])
    return intersect(a, complement(*b, low, high))


def overlap_with(start: I64, end: I64, disjoint: tuple[I64, I64]) -> I64:
    """For each interval, how much of it lies inside a set of disjoint, sorted intervals (ns)."""
    return covered_until(end, disjoint) - covered_until(start, disjoint)


def covered_until(at: I64, disjoint: tuple[I64, I64]) -> I64:
    """How much time of disjoint, sorted intervals lies before each moment (ns)."""
    starts, ends = disjoint
    if not len(starts):
        return np.zeros_like(at)
    before = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(ends - starts)))
    position = np.searchsorted(starts, at, side="right")
    inside = np.where(position > 0, np.minimum(at, ends[position - 1]) - starts[position - 1], 0)
    full = before[np.maximum(position - 1, 0)]
    return np.where(position > 0, full + inside, 0)
