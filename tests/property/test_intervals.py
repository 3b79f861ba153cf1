"""The interval algebra against sets of moments: an interval [a, b) is {a, …, b-1}."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.timeline import intervals

MOMENTS = st.integers(-30, 60)
ANY = st.lists(st.tuples(MOMENTS, MOMENTS), max_size=12)
BOUNDS = st.tuples(MOMENTS, MOMENTS).map(sorted)


def arrays(pairs):
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def moments(pairs):
    return {t for a, b in pairs for t in range(a, b)}


def pairs_of(result):
    return list(zip(*(column.tolist() for column in result), strict=True))


def disjoint(pairs):
    return intervals.union(*arrays(pairs))


@given(ANY)
def test_a_union_covers_the_same_moments(pairs):
    assert moments(pairs_of(disjoint(pairs))) == moments(pairs)


@given(ANY)
def test_a_union_is_sorted_apart_and_without_empty_parts(pairs):
    start, end = disjoint(pairs)

    assert (end > start).all()
    # Touching parts have become one.
    assert (start[1:] > end[:-1]).all()


@given(ANY)
def test_the_length_of_a_union_is_how_many_moments_it_has(pairs):
    assert intervals.length(*disjoint(pairs)) == len(moments(pairs))


@given(ANY)
def test_a_union_of_a_union_is_itself(pairs):
    once = disjoint(pairs)

    assert pairs_of(intervals.union(*once)) == pairs_of(once)


@given(ANY, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)

    assert pairs_of(disjoint(shuffled)) == pairs_of(disjoint(pairs))


@given(ANY, BOUNDS)
def test_clipping_leaves_what_lies_inside(pairs, bounds):
    low, high = bounds
    clipped = pairs_of(intervals.clip(*arrays(pairs), low, high))

    assert moments(clipped) == moments(pairs) & set(range(low, high))
    assert all(b > a for a, b in clipped)


@given(ANY, BOUNDS)
def test_busy_and_idle_make_up_the_window(pairs, bounds):
    low, high = bounds
    idle = intervals.complement(*disjoint(pairs), low, high)

    assert moments(pairs_of(idle)) == set(range(low, high)) - moments(pairs)
    busy = intervals.clip(*disjoint(pairs), low, high)
    assert intervals.length(*idle) + intervals.length(*busy) == high - low


@given(ANY, ANY)
def test_an_intersection_is_what_both_have(one, other):
    both = intervals.intersect(disjoint(one), disjoint(other))

    assert moments(pairs_of(both)) == moments(one) & moments(other)


@given(ANY, ANY)
def test_an_intersection_is_disjoint_and_sorted(one, other):
    start, end = intervals.intersect(disjoint(one), disjoint(other))

    assert (end > start).all()
    assert (start[1:] >= end[:-1]).all()


@given(ANY, ANY)
def test_a_difference_is_what_only_the_first_has(one, other):
    rest = intervals.subtract(disjoint(one), disjoint(other))

    assert moments(pairs_of(rest)) == moments(one) - moments(other)


@given(ANY, st.lists(st.tuples(MOMENTS, st.integers(0, 40)), max_size=12))
def test_overlap_is_counted_for_each_interval_by_itself(pairs, others):
    spans = [(start, start + length) for start, length in others]
    found = intervals.overlap_with(*arrays(spans), disjoint(pairs))

    assert found.tolist() == [len(moments([span]) & moments(pairs)) for span in spans]


@given(ANY, st.lists(MOMENTS, max_size=12))
def test_covered_until_counts_the_moments_before(pairs, at):
    found = intervals.covered_until(np.array(at, dtype=np.int64), disjoint(pairs))

    assert found.tolist() == [len({t for t in moments(pairs) if t < moment}) for moment in at]


@given(ANY)
def test_the_inputs_are_left_alone(pairs):
    start, end = arrays(pairs)
    before = start.copy(), end.copy()

    intervals.union(start, end)
    intervals.clip(start, end, 0, 10)

    assert (start == before[0]).all()
    assert (end == before[1]).all()


@given(st.integers(-(2**61), 2**61), st.integers(0, 2**61), st.integers(0, 2**61))
def test_times_of_any_size_are_exact(start, first, second):
    rows = [(start, start + first), (start + first, start + first + second)]

    assert intervals.length(*disjoint(rows)) == first + second
