"""Whatever is observed and whenever the engine restarts: the bucket holds the true quantile, no rate is negative."""

from __future__ import annotations

import math
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model import EngineReading, EngineSeries, Histogram
from gputop_llm.sampling.quantiles import difference, latency, merged, quantile
from gputop_llm.sampling.window import EngineTracker

TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, math.inf)
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, math.inf)

layouts = st.one_of(
    st.sampled_from([TTFT, E2E]),
    st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=8, unique=True).map(lambda b: (*sorted(b), math.inf)),
)
# Bounds themselves are likely values: a bucket's upper bound belongs to it.
observations = st.lists(st.one_of(st.floats(0, 50), st.sampled_from(TTFT[:-1] + E2E[:-1])), max_size=60)


def observed(bounds, values) -> Histogram:
    """What a server shows after these observations."""
    counts = [0] * len(bounds)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    for i in range(1, len(counts)):
        counts[i] += counts[i - 1]
    return Histogram(bounds, tuple(map(float, counts)), math.fsum(values))


def true_quantile(values, q: float) -> float:
    return sorted(values)[math.ceil(round(q * 1000) * len(values) / 1000) - 1]


@given(layouts, observations, observations, st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_the_bucket_holds_the_true_quantile_of_what_was_observed_between_two_scrapes(bounds, before, between, q):
    added = difference(observed(bounds, before + between), observed(bounds, before))
    found = quantile(added, q)
    if not between:
        assert found is None
        return
    truth = true_quantile(between, q)
    assert found.low < truth or found.low == truth == 0
    assert found.high is None or truth <= found.high
    if found.value is not None:
        assert found.low < found.value <= found.high


@given(layouts, st.lists(observations, min_size=1, max_size=4))
def test_ranks_together_are_as_if_one_had_observed_it_all(bounds, ranks):
    together = merged([observed(bounds, values) for values in ranks])
    everything = [value for values in ranks for value in values]
    assert together.counts == observed(bounds, everything).counts
    assert math.isclose(together.total, math.fsum(everything), abs_tol=1e-9)


@given(layouts, observations)
def test_quantiles_rise_with_q_and_the_mean_is_exact(bounds, values):
    found = latency(observed(bounds, values))
    if values:
        assert found.p50.low <= found.p95.low <= found.p99.low
        assert math.isclose(found.mean_s, math.fsum(values) / len(values), abs_tol=1e-9)


# One step of a server's life: seconds passed, tokens made, latencies observed, and whether it was restarted before.
steps = st.lists(
    st.tuples(
        st.floats(0.01, 20), st.integers(0, 1000), st.lists(st.sampled_from(TTFT[:-1]), max_size=5), st.booleans()
    ),
    min_size=1,
    max_size=30,
)


@given(steps, st.booleans())
def test_no_rate_is_negative_and_none_reaches_over_a_restart(life, tells_its_start):
    tracker = EngineTracker(10.0)
    now, tokens, values, started = 0.0, 0, [], 0.0
    made_since_start: list[tuple[float, int]] = []
    for passed, made, latencies, restarted in life:
        now += passed
        if restarted:
            tokens, values, started, made_since_start = 0, [], now, []
        tokens += made
        values = values + latencies
        made_since_start.append((now, tokens))
        one = EngineSeries(
            "m",
            "0",
            counters={"generation_tokens": float(tokens), "finished:stop": float(len(values))},
            histograms={"ttft": observed(TTFT, values)},
        )
        total = tracker.push(EngineReading("vllm", (one,), started_s=started if tells_its_start else None), now).total
        rate = total.generation_tokens_per_s
        assert rate is None or rate >= 0
        assert all(value >= 0 for value in total.finished_per_s.values())
        assert all(found.count >= 0 for found in total.latency.values())
        if tells_its_start and rate is not None:
            # The window begins at a scrape of this life of the server, and the rate is that from there.
            began = now - total.window_s
            ((_, base),) = [(at, count) for at, count in made_since_start if math.isclose(at, began, abs_tol=1e-9)]
            assert math.isclose(rate, (tokens - base) / total.window_s, abs_tol=1e-6)
