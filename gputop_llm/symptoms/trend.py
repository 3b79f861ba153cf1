"""Where a symptom's figure goes: up, down, or nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

POINTS = 60
"""Newest slots of a series to judge by: a minute at one a second."""

_LEAST_KNOWN = 9
# A tenth is what one sees in a chart; below it a trend would come and go with the noise.
_SHARE = 0.1


def trend(values: Sequence[float | None]) -> str | None:
    """ "rising", "steady" or "falling": the newest third against the oldest, by medians; None with too few values.

    The difference must be a tenth of the larger one, and twice as much as the values of one third scatter.
    """
    known = [v for v in values if v is not None]
    if len(known) < _LEAST_KNOWN:
        return None
    third = len(known) // 3
    old, new = known[:third], known[-third:]
    before, now = median(old), median(new)
    scatter = max(median(abs(v - middle) for v in part) for part, middle in ((old, before), (new, now)))
    if abs(now - before) <= max(_SHARE * max(abs(now), abs(before)), 2.0 * scatter):
        return "steady"
    return "rising" if now > before else "falling"
