"""Windowed histograms: differences, merges, and quantiles that carry their bucket."""

from __future__ import annotations

import math

import pytest

from gputop_llm.model import Histogram, Quantile
from gputop_llm.sampling.quantiles import difference, fell, latency, mean, merged, quantile

INF = math.inf
# The buckets of vLLM's end-to-end, queue, prefill and decode times.
COARSE = (0.3, 0.5, 0.8, 1.0, INF)


def h(bounds, counts, total=None) -> Histogram:
    return Histogram(tuple(map(float, bounds)), tuple(map(float, counts)), total)


def test_the_difference_is_what_was_observed_between():
    new, old = h((1, 2, INF), (5, 9, 10), 20.0), h((1, 2, INF), (4, 6, 6), 8.0)
    assert difference(new, old) == h((1, 2, INF), (1, 3, 4), 12.0)


def test_the_difference_to_itself_is_empty():
    one = h((1, 2, INF), (5, 9, 10), 20.0)
    assert difference(one, one) == h((1, 2, INF), (0, 0, 0), 0.0)


@pytest.mark.parametrize(
    "old",
    [
        h((1, 2, INF), (5, 9, 11), 20.0),
        h((1, 2, INF), (6, 9, 10), 20.0),
        h((1, 3, INF), (1, 1, 1)),
        h((1, INF), (0, 0)),
    ],
    ids=["count fell", "bucket fell", "other bounds", "fewer bounds"],
)
def test_a_histogram_that_began_anew_has_no_difference(old):
    new = h((1, 2, INF), (5, 9, 10), 20.0)
    assert fell(new, old)
    assert difference(new, old) is None


def test_a_missing_sum_leaves_the_mean_unknown_and_the_quantiles_known():
    added = difference(h((1, 2, INF), (5, 9, 10), None), h((1, 2, INF), (4, 6, 6), 8.0))
    assert added.total is None
    assert mean(added) is None
    assert quantile(added, 0.5) == Quantile(1, 2, pytest.approx(1.5))


def test_merged_adds_bucket_by_bucket():
    parts = [h((1, 2, INF), (1, 2, 3), 4.0), h((1, 2, INF), (10, 20, 30), 40.0)]
    assert merged(parts) == h((1, 2, INF), (11, 22, 33), 44.0)
    assert merged(parts[:1]) == parts[0]


def test_other_buckets_or_none_at_all_can_not_be_merged():
    assert merged([h((1, INF), (1, 2)), h((2, INF), (1, 2))]) is None
    assert merged([]) is None


def test_a_sum_that_is_missing_in_one_part_is_missing_in_all():
    assert merged([h((1, INF), (1, 2), 3.0), h((1, INF), (1, 2), None)]).total is None


def test_nothing_observed_has_no_quantile_and_no_mean():
    empty = latency(h(COARSE, (0, 0, 0, 0, 0), 0.0))
    assert (empty.count, empty.mean_s, empty.p50, empty.p95, empty.p99) == (0, None, None, None, None)


def test_a_quantile_is_interpolated_inside_its_bucket():
    assert quantile(h((1, 2, 4, INF), (0, 10, 20, 20)), 0.25) == Quantile(1, 2, pytest.approx(1.5))
    assert quantile(h((1, 2, 4, INF), (0, 10, 20, 20)), 0.75) == Quantile(2, 4, pytest.approx(3))


def test_a_first_bucket_is_a_guess_so_only_its_bound_is_told():
    """All below 0.3 s: the p95 may be 1 ms or 299 ms. The mean is exact."""
    one = latency(h(COARSE, (20, 20, 20, 20, 20), 0.4))
    assert one.p50 == one.p95 == one.p99 == Quantile(0, 0.3, None)
    assert one.mean_s == pytest.approx(0.02)


def test_an_open_bucket_has_no_upper_bound():
    assert quantile(h(COARSE, (0, 0, 0, 0, 7)), 0.5) == Quantile(1, None, None)


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [(0.1, 0.25, True), (0.01, 0.025, True), (1, 2.5, True), (2.5, 5, True), (0.001, 0.005, False), (160, 640, False)],
)
def test_a_bucket_wider_than_two_and_a_half_times_is_not_interpolated(low, high, told):
    found = quantile(h((low, high, INF), (0, 10, 10)), 0.5)
    assert (found.low, found.high) == (low, high)
    assert (found.value is not None) is told


@pytest.mark.parametrize("count", [1, 2, 3, 7, 19, 20, 21, 60, 99, 100, 101, 1000, 10**6, 10**9])
@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_the_rank_is_not_moved_by_rounding(count, q):
    """The q-quantile of n is the ⌈q·n⌉-th smallest: in the first bucket with that many in it, not with one less."""
    rank = -(-round(q * 100) * count // 100)
    assert quantile(h((1, 2, INF), (rank, count, count)), q).high == 1
    if rank > 1:
        assert quantile(h((1, 2, INF), (rank - 1, count, count)), q).high == 2


def test_all_in_one_bucket():
    one = latency(h((1, 2, INF), (0, 4, 4), 6.0))
    assert one.mean_s == 1.5
    assert one.p50 == Quantile(1, 2, pytest.approx(1.5))
    assert one.p99.high == 2


def test_one_observation_is_every_quantile():
    one = latency(h(COARSE, (0, 1, 1, 1, 1), 0.4))
    assert one.p50.high == one.p95.high == one.p99.high == 0.5
    assert one.mean_s == 0.4
