"""Which interval lies inside of which: operators within operators, calls within operators or ranges, on one thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline.model import I32, I64, CpuOps, OsWaits, Ranges
from gputop_llm.verdict.coverage import Mask


@dataclass(frozen=True)
class Nest:
    """The rows of one table on one thread, outer before inner; `parent` are positions in them, -1 is none."""

    rows: I64
    start: I64
    end: I64
    parent: I64

    def innermost(self, at: I64) -> I64:
        """The row in the table of the innermost interval around each moment, -1 for none."""
        rows = np.full(len(at), -1, dtype=np.int64)
        if not len(self.rows):
            return rows
        found = np.searchsorted(self.start, at, side="right") - 1
        while len(over := np.flatnonzero((found >= 0) & (self.end[np.maximum(found, 0)] <= at))):
            found[over] = self.parent[found[over]]
        rows[found >= 0] = self.rows[found[found >= 0]]
        return rows

    def last_inside(self) -> I64:
        """For each position the one after the last that lies inside of it: those between are its descendants."""
        return np.maximum(np.searchsorted(self.start, self.end, side="left"), np.arange(1, len(self.rows) + 1))


def nest(table: CpuOps | Ranges | OsWaits, thread: int) -> Nest:
    """The nesting of one thread's rows."""
    rows = np.flatnonzero(table.thread == thread)
    start, end = table.start[rows], table.end[rows]
    if bool((start[1:] == start[:-1]).any()):
        # Traces in whole microseconds: of two that begin together the longer one is around the other.
        order = np.lexsort((-end, start))
        rows, start, end = rows[order], start[order], end[order]
    return Nest(rows, start, end, _parents(start, end))


def _parents(start: I64, end: I64) -> I64:
    """For each interval the nearest earlier one that is still open when it begins."""
    parent = np.arange(-1, len(start) - 1, dtype=np.int64)
    waiting = np.arange(len(start))
    while True:
        guess = parent[waiting]
        over: Mask = (guess >= 0) & (end[np.maximum(guess, 0)] <= start[waiting])
        waiting = waiting[over]
        if not len(waiting):
            return parent
        # What the guess itself skipped was over before it began, so each round doubles the stride.
        parent[waiting] = parent[parent[waiting]]


def enclosing(table: CpuOps | Ranges | OsWaits, thread: I32, at: I64) -> I64:
    """The row of the innermost interval of the same thread around each moment, -1 for none."""
    found = np.full(len(at), -1, dtype=np.int64)
    for number in np.unique(thread):
        own = np.flatnonzero(thread == number)
        found[own] = nest(table, int(number)).innermost(at[own])
    return found
