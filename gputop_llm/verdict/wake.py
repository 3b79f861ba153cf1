"""Gaps in the wake of allocator calls: the host had waited in one, and isn't ahead of the device again yet.

A call that waits for the device (cudaFree) drains what was launched, and the device then waits for each of the next
launches too. Had the host not waited it would be ahead by that time, so gaps that follow are the call's, up to the time
that the host spent in such calls while the device worked. Where the host is late anyway the device is idle during such
calls, and the gaps stay the host's own.
"""

from __future__ import annotations

import numpy as np

from gputop_llm.timeline.intervals import overlap_with
from gputop_llm.timeline.model import I64
from gputop_llm.verdict.coverage import Intervals, Mask


def in_the_wake(gaps: Intervals, begun: Mask, late: Mask, calls: Intervals) -> Mask:
    """Which gaps of one device are in the wake of a call.

    Args:
        gaps: starts and ends (ns), in time order.
        begun: those that began in a call.
        late: those that began with the host on its way, but later than the device.
        calls: starts and ends of the calls by the threads that launch its work.
    """
    start, end = gaps
    first = np.flatnonzero(begun)
    found: Mask = np.zeros(len(start), dtype=bool)
    if not len(first):
        return found
    # A call counts for the gap that it leads to, and what is late until the next such gap may use its time.
    leads_to = np.searchsorted(end[first], calls[0], side="right")
    waited = calls[1] - calls[0] - overlap_with(*calls, gaps)
    spent = np.bincount(leads_to, weights=waited, minlength=len(first) + 1)
    run = np.cumsum(begun) - 1
    late_ns: I64 = np.cumsum(np.where(late, end - start, 0))
    rows = np.flatnonzero(late & (run >= 0))
    found[rows] = late_ns[rows] - late_ns[first[run[rows]]] <= spent[run[rows]]
    return found
