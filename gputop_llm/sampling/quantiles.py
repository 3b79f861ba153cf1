"""Windowed histograms: the difference of two scrapes, merged over ranks, read as honest quantiles.

All functions are pure. A histogram's buckets are cumulative, as scraped.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from operator import lt, sub

from gputop_llm.model import Histogram, Latency, Quantile

WIDEST_BUCKET = 2.5
"""Widest bucket (high ÷ low) inside which a quantile is interpolated; beyond, it would be a guess."""

# The rank of the p95 of 20 is the 19th and 0.25 s ÷ 0.1 s is 2.5, whatever the last bit of a float says.
_ROUNDING = 1e-12


def fell(new: Histogram, old: Histogram) -> bool:
    """True when the histogram began anew: any bucket's count fell, or the buckets are others."""
    return new.bounds != old.bounds or any(map(lt, new.counts, old.counts))


def difference(new: Histogram, old: Histogram) -> Histogram | None:
    """What was observed between two scrapes; None when the histogram began anew between them."""
    if fell(new, old):
        return None
    total = None if new.total is None or old.total is None else max(0.0, new.total - old.total)
    return Histogram(new.bounds, tuple(map(sub, new.counts, old.counts)), total)


def merged(parts: Sequence[Histogram]) -> Histogram | None:
    """All observations together; None when there are none to merge or their buckets differ."""
    if not parts or any(part.bounds != parts[0].bounds for part in parts):
        return None
    if len(parts) == 1:
        return parts[0]
    totals = [part.total for part in parts if part.total is not None]
    total = sum(totals) if len(totals) == len(parts) else None
    return Histogram(parts[0].bounds, tuple(map(sum, zip(*(part.counts for part in parts), strict=True))), total)


def mean(histogram: Histogram) -> float | None:
    """Mean of the observations in their own unit; None without any, or without their sum."""
    count = histogram.counts[-1]
    return None if histogram.total is None or count <= 0 else histogram.total / count


def quantile(histogram: Histogram, q: float) -> Quantile | None:
    """The bucket that holds the q-quantile (0 < q ≤ 1) of the observations; None without any.

    The q-quantile of n observations is the ⌈q·n⌉-th smallest. Inside the bucket it is
    interpolated linearly, as Prometheus' histogram_quantile does. One bucket for all says nothing: None too.
    """
    count = histogram.counts[-1]
    if count <= 0 or len(histogram.bounds) == 1:
        return None
    wanted = q * count * (1 - _ROUNDING)
    index = bisect_left(histogram.counts, wanted)
    high = histogram.bounds[index]
    # Times and token counts are never negative: what lies below the first bound lies above 0.
    low = histogram.bounds[index - 1] if index else min(0.0, high)
    below = histogram.counts[index - 1] if index else 0.0
    if math.isinf(high):
        return Quantile(low, None, None)
    if low <= 0 or high > low * WIDEST_BUCKET * (1 + _ROUNDING):
        return Quantile(low, high, None)
    share = (q * count - below) / (histogram.counts[index] - below)
    return Quantile(low, high, low + (high - low) * min(1.0, max(0.0, share)))


def latency(histogram: Histogram) -> Latency:
    """A windowed histogram of seconds as count, mean and the usual quantiles."""
    return Latency(
        count=histogram.counts[-1],
        mean_s=mean(histogram),
        p50=quantile(histogram, 0.50),
        p95=quantile(histogram, 0.95),
        p99=quantile(histogram, 0.99),
    )
