"""ttft-high and tpot-high: over the SLO or far over the usual, and what speaks for each cause."""

from __future__ import annotations

import random

import pytest

from gputop_llm.model import EngineFrame, Frame, Latency, Part, Quantile, SpecDecode, TargetList, ThrottleReason
from gputop_llm.model.symptom import Severity
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.rules import latency as ttft
from gputop_llm.symptoms.rules import tpot
from tests.support import frames as recorded
from tests.support import symptom_frames as sf
from tests.support.captures import case_json, case_page, read_page
from tests.support.symptom_frames import (
    busy,
    cant_tell,
    cause,
    changing,
    latency,
    limits,
    number,
    raised_at,
    reports,
    symptom,
    within,
)

# The rule, its rules, the latency it looks at, and its p95: healthy, over the default limit, just under it, and under
# the value at which it clears.
TTFT = ("ttft-high", ttft.RULES, "ttft", 0.18, 1.05, 0.98, 0.78)
TPOT = ("tpot-high", tpot.RULES, "itl", 0.028, 0.105, 0.098, 0.078)
both = pytest.mark.parametrize(("rule", "rules", "name", "healthy", "high", "near", "low"), [TTFT, TPOT])


@both
def test_a_p95_over_the_limit_is_raised_after_ten_seconds(rule, rules, name, healthy, high, near, low):
    frames = busy(40, lat={name: changing((0, healthy), (10, high))})
    assert raised_at(rule, rules, frames) == 20
    found = symptom(rule, rules, frames)
    assert found.severity is Severity.WARNING
    assert found.chart == f"engine.{sf.KEY}.{name}_p95_s"


@both
def test_a_p95_just_under_it_is_not(rule, rules, name, healthy, high, near, low):
    assert raised_at(rule, rules, busy(40, lat={name: near})) is None


@both
def test_between_the_limit_and_its_clear_value_it_stays(rule, rules, name, healthy, high, near, low):
    frames = busy(80, lat={name: changing((0, high), (20, near), (50, low))})
    raised = [bool(r.active) for r in reports(rules, frames)]
    assert raised.index(True) == 10
    assert [s for s in range(80) if raised[s]][-1] == 59


@both
def test_noise_around_either_threshold_does_not_flap(rule, rules, name, healthy, high, near, low):
    dice = random.Random(7)
    for middle in (high, near, low):
        noisy = [middle * dice.uniform(0.97, 1.03) for _ in range(200)]
        for first in (healthy, 1.2 * high):
            frames = busy(230, lat={name: lambda s, n=noisy, f=first: f if s < 30 else n[s - 30]})
            assert sf.times_raised(rule, rules, frames) <= 1


@both
def test_three_times_the_limit_is_critical(rule, rules, name, healthy, high, near, low):
    assert symptom(rule, rules, busy(30, lat={name: 3.2 * high})).severity is Severity.CRITICAL


@both
def test_of_too_few_observations_there_is_no_p95(rule, rules, name, healthy, high, near, low):
    frames = busy(40, lat={name: latency(9.9, count=2)})
    assert raised_at(rule, rules, frames) is None
    (lacking,) = cant_tell(rule, rules, frames)
    assert "2 in the window" in lacking.needs


@both
def test_a_latency_that_is_not_on_the_page_can_not_be_judged(rule, rules, name, healthy, high, near, low):
    frames = busy(40, lat={name: None}, live={"missing": {name: "needs another release"}})
    (lacking,) = cant_tell(rule, rules, frames)
    assert lacking.needs.endswith("(needs another release)")


@both
def test_an_old_page_is_not_judged(rule, rules, name, healthy, high, near, low):
    frames = busy(60, lat={name: high}, scrape={"at": 5, "error": "no answer"})
    assert raised_at(rule, rules, frames) == 10
    assert reports(rules, frames)[-1].active == ()
    (lacking,) = cant_tell(rule, rules, frames)
    assert "fresh" in lacking.needs


@both
def test_when_nobody_asks_any_more_nothing_is_slow(rule, rules, name, healthy, high, near, low):
    frames = busy(
        60,
        lat={name: lambda s: latency(high) if s < 30 else Latency(0, None, None, None, None)},
        live={"running": lambda s: 64.0 if s < 30 else 0.0},
    )
    held = [bool(r.active) for r in reports(rules, frames)]
    assert [s for s in range(60) if held[s]] == list(range(10, 40))
    assert cant_tell(rule, rules, frames) == ()


# -- SLO and baseline ---------------------------------------------------------------


@both
def test_a_given_slo_is_the_limit_and_says_where_it_came_from(rule, rules, name, healthy, high, near, low):
    in_force = limits({f"{rule}.p95_s": 2 * healthy}, "--slo")
    frames = busy(40, lat={name: 2.1 * healthy})
    found = symptom(rule, rules, frames, in_force=in_force)
    assert "(SLO " in found.headline
    (p95,) = [e for e in found.evidence if e.name.endswith("p95")]
    assert (p95.threshold, p95.threshold_origin) == (2 * healthy, "--slo")
    assert raised_at(rule, rules, busy(40, lat={name: 1.9 * healthy}), in_force=in_force) is None


@both
def test_far_over_the_usual_is_raised_without_any_slo(rule, rules, name, healthy, high, near, low):
    usual = {f"{name}_p95_s": healthy, f"{name}_mean_s": 0.7 * healthy}
    factor = limits().value(f"{rule}.baseline_x")
    frames = busy(40, lat={name: 1.05 * factor * healthy})
    found = symptom(rule, rules, frames, baseline=usual)
    assert f"({1.05 * factor:.1f}× the usual" in found.headline
    (p95,) = [e for e in found.evidence if e.name.endswith("p95")]
    assert (p95.threshold, p95.threshold_origin) == (pytest.approx(factor * healthy), "baseline")
    assert raised_at(rule, rules, busy(40, lat={name: 0.95 * factor * healthy}), baseline=usual) is None


@both
def test_a_given_slo_wins_over_the_baseline(rule, rules, name, healthy, high, near, low):
    usual = {f"{name}_p95_s": healthy, f"{name}_mean_s": 0.7 * healthy}
    in_force = limits({f"{rule}.p95_s": high})
    frames = busy(40, lat={name: 0.9 * high})
    assert raised_at(rule, rules, frames, baseline=usual) is not None
    assert raised_at(rule, rules, frames, baseline=usual, in_force=in_force) is None


@both
def test_a_p95_that_jumps_inside_its_bucket_while_the_mean_stays_is_no_change(
    rule, rules, name, healthy, high, near, low
):
    usual = {f"{name}_p95_s": healthy, f"{name}_mean_s": 0.7 * healthy}
    jumped = Latency(500, 0.72 * healthy, *[recorded.exactly(q) for q in (0.7 * healthy, 2.4 * healthy, 2.5 * healthy)])
    assert raised_at(rule, rules, busy(40, lat={name: jumped}), baseline=usual) is None


def test_of_a_coarse_bucket_only_what_lies_wholly_over_the_limit_counts():
    assert raised_at("ttft-high", ttft.RULES, busy(40, lat={"ttft": within(0.75, 2.5)})) is None
    found = symptom("ttft-high", ttft.RULES, busy(40, lat={"ttft": within(2.5, 10.0)}))
    assert found.headline.startswith("TTFT p95 2.50 s – 10.0 s (limit 1.00 s)")
    beyond = symptom("ttft-high", ttft.RULES, busy(40, lat={"ttft": within(80.0, None)}))
    assert beyond.headline.startswith("TTFT p95 > 80.0 s")


# -- TTFT: evidence and causes -------------------------------------------------------


def slow(**changes):
    return symptom("ttft-high", ttft.RULES, busy(40, lat={"ttft": 2.4, **changes.pop("lat", {})}, **changes))


def test_ttft_the_numbers_are_those_of_the_window():
    found = slow(live={"waiting": 42.0}, lat={"queue": latency(2.0), "prefill": latency(0.5)})
    assert found.headline == "TTFT p95 2.40 s (limit 1.00 s), 80 % of it queueing, 42 waiting"
    assert number(found, "TTFT p95") == pytest.approx(2.4)
    assert number(found, "TTFT p50") == pytest.approx(1.68)
    assert number(found, "queue time's share") == pytest.approx(80.0)
    assert number(found, "prefill time's share") == pytest.approx(20.0)
    assert number(found, "mean prompt tokens") == 1600.0
    assert number(found, "prefix-cache hit rate") == 45.0
    assert number(found, "waiting") == 42.0
    assert (found.chart_threshold, found.next_capture) == (1.0, "nsys")


def test_ttft_queueing_is_the_first_cause_when_most_of_the_time_is_spent_there():
    found = slow(live={"waiting": 42.0}, lat={"queue": latency(2.0), "prefill": latency(0.5)})
    assert found.causes[0].text.startswith("queueing")
    assert found.causes[0].speaks_for == ("queue time is 80 % of queue + prefill time", "42 requests wait now")
    quick = slow()
    assert cause(quick, "queueing").speaks_against == ("queue time is 1 % of queue + prefill time", "nothing waits now")


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("long prompts", {"live": {"mean_prompt_tokens": 9000.0}}, "the mean prompt has 9000 tokens"),
        ("cold prefix", {"live": {"prefix_hit_pct": 6.0}}, "hit rate 6 %, usually 44 %"),
        ("cold prefix", {"reading": {"cache_config": {"enable_prefix_caching": "False"}}}, "prefix caching is off"),
        ("KV pressure", {"live": {"kv_usage_pct": 98.0}}, "KV cache 98 % full"),
        ("KV pressure", {"live": {"preemptions_per_s": 1.5}}, "1.5 preemptions/s"),
        ("low clocks", {"gpu": {"sm_clock_mhz": 1410.0}}, "GPU 0: SM clock 1410 of 1980 MHz"),
    ],
)
def test_ttft_a_cause_moves_up_when_the_data_speak_for_it(text, changes, words):
    quiet = cause(slow(), text)
    assert quiet.speaks_for == ()
    assert quiet.speaks_against
    found = slow(**changes)
    assert any(words in said for said in cause(found, text).speaks_for)
    assert found.causes.index(cause(found, text)) < found.causes.index(cause(found, "queueing"))


def test_ttft_throttle_reasons_stand_beside_the_low_clock():
    reasons = (ThrottleReason("idle", True, None, "bit"), ThrottleReason("sw_power_cap", True, 62.0, "counter"))
    found = slow(gpu={"sm_clock_mhz": 1410.0, "throttle": reasons})
    assert cause(found, "low clocks").speaks_for == ("GPU 0: SM clock 1410 of 1980 MHz (sw_power_cap)",)


def test_ttft_confidence_is_in_how_much_agrees():
    assert slow(live={"waiting": 42.0}, lat={"queue": latency(2.0)}).confidence == "high"
    tail = slow(lat={"ttft": latency(2.4, p50_s=0.2), "queue": latency(2.0)})
    assert tail.confidence == "medium"


def test_ttft_what_is_unknown_is_told_with_its_reason():
    found = slow(
        lat={"queue": None, "prefill": None},
        live={"prefix_hit_pct": None, "missing": {"queue": "too old", "prefix_hit_pct": "no counter"}},
    )
    missing = {e.name: e.missing for e in found.evidence if e.value is None}
    assert missing["queue time's share"] == "too old"
    assert missing["prefix-cache hit rate"] == "no counter"
    assert "queueing" not in found.headline


def test_ttft_of_two_models_the_slow_one_is_named():
    frames = busy(40, models={"small": {"lat": {"ttft": 0.08}}, "large": {"lat": {"ttft": 2.2}}})
    found = symptom("ttft-high", ttft.RULES, frames)
    assert found.subject.label == "vllm /models/llama-8b, model large"
    assert (found.subject.key, found.chart) == (f"{sf.SUBJECT}/model:large", None)


def test_a_latency_of_which_only_the_mean_is_told_cant_be_judged_for_that_reason():
    mean_only = Latency(500.0, 0.005, None, None, None)
    (lacking,) = cant_tell("tpot-high", tpot.RULES, busy(20, lat={"itl": mean_only}))
    assert lacking.needs == "the p95 of inter-token latency (the engine tells the mean only)"


def test_case_16_the_large_model_is_slow_and_the_small_one_is_quiet():
    times, tracker, made, window, page, scraped = case_json(16, "times"), EngineTracker(), [], None, None, 0
    scrapes = {at: read_page(case_page(16, name)) for name, at in times.items()}
    for s in range(max(times.values()) + 12):
        if s in scrapes:
            page, scraped = scrapes[s], s
            window = tracker.push(page, sf.MONO_S + s)
        scrape = Part(page, sf.AT_S + scraped, sf.MONO_S + scraped, float(s - scraped), 0.004, None, 30.0, 1)
        made.append(
            Frame(
                seq=s,
                at_s=sf.AT_S + s,
                mono_s=sf.MONO_S + s,
                period_s=1.0,
                gpus=recorded.part(recorded.node([])),
                host=recorded.part(recorded.host(())),
                targets=recorded.part(TargetList((recorded.target(sf.KEY),))),
                engines=(EngineFrame(sf.KEY, sf.URL, scrape, window),),
            )
        )
    last = reports(ALL, made)[-1]
    (found,) = [s for s in last.active if s.id == "ttft-high"]
    assert found.subject.label.endswith("model org/large")
    assert found.headline.startswith("TTFT p95 ")
    assert [s.subject.label for s in last.active if "small" in s.subject.label] == []


# -- TPOT: evidence and causes -------------------------------------------------------


def slow_tokens(p50=0.09, p95=0.16, p99=0.18, **changes):
    given = {"itl": latency(p95, 9000, p50_s=p50, p99_s=p99)}
    return symptom("tpot-high", tpot.RULES, busy(changes.pop("seconds", 40), lat=given, **changes))


def test_tpot_the_numbers_are_those_of_the_window():
    found = slow_tokens(p50=0.02, p95=0.16, p99=0.18)
    assert found.headline == "ITL p95 160 ms (limit 100 ms), p99 is 9.0× p50, 64 running"
    assert number(found, "p99 ÷ p50") == pytest.approx(9.0)
    assert (number(found, "running"), number(found, "prefill alongside")) == (64.0, 3100.0)
    assert (number(found, "GPU 0 DRAM bandwidth"), number(found, "GPU 0 SM clock")) == (61.0, 1980.0)
    assert found.next_capture == "kineto"


def test_tpot_a_wide_spread_beside_prefill_is_interference():
    found = slow_tokens(p50=0.02)
    assert found.causes[0].text.startswith("prefill interference")
    assert found.causes[0].speaks_for == ("p99 is 9.0× p50 while 3100 prompt tokens/s are computed",)
    alone = slow_tokens(p50=0.02, live={"prompt_computed_tokens_per_s": 0.0})
    assert cause(alone, "interference").speaks_against == ("no prompt is being computed",)
    even = slow_tokens()
    assert cause(even, "interference").speaks_against == ("p99 is 2.0× p50: all steps are about as long",)


def test_tpot_the_spread_of_coarse_buckets_is_the_least_that_it_can_be():
    coarse = Latency(9000, 0.1, Quantile(0.0, 0.01, None), Quantile(0.2, None, None), Quantile(0.2, None, None))
    found = symptom("tpot-high", tpot.RULES, busy(40, lat={"itl": coarse}))
    assert number(found, "p99 ÷ p50") == pytest.approx(20.0)
    equal = Latency(9000, 0.3, *[Quantile(0.2, None, None)] * 3)
    unknown = symptom("tpot-high", tpot.RULES, busy(40, lat={"itl": equal}))
    assert number(unknown, "p99 ÷ p50") is None


def test_tpot_a_batch_that_grew_is_told_with_what_it_was():
    found = slow_tokens(seconds=60, live={"running": changing((0, 40.0), (30, 90.0))})
    assert cause(found, "batch grew").speaks_for == ("90 running, 40 59 s ago",)
    steady = slow_tokens(seconds=60)
    assert cause(steady, "batch grew").speaks_against == ("64 running, 64 59 s ago", "DRAM bandwidth at 61 %")


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("batch grew", {"gpu": {"gpm.dram_bw_pct": 88.0}}, "DRAM bandwidth at 88 %"),
        ("low clocks", {"gpu": {"sm_clock_mhz": 1200.0}}, "GPU 0: SM clock 1200 of 1980 MHz"),
        (
            "host-bound",
            {"load": {sf.CORE: {"main_thread_pct": 97.0}}, "gpu": {"gpm.sm_active_pct": 31.0}},
            "engine-core 624, main thread takes 97 % of a core",
        ),
        (
            "drafted tokens",
            {"live": {"spec": SpecDecode(31.0, 1.6, 300.0, (50.0, 12.0))}},
            "acceptance 31 %",
        ),
    ],
)
def test_tpot_a_cause_moves_up_when_the_data_speak_for_it(text, changes, words):
    quiet = cause(slow_tokens(), text)
    assert quiet.speaks_for == ()
    assert quiet.speaks_against
    found = slow_tokens(**changes)
    assert words in cause(found, text).speaks_for
    assert found.causes[0] is cause(found, text)


def test_tpot_with_speculative_decoding_a_step_is_not_called_a_token():
    found = slow_tokens(live={"spec": SpecDecode(80.0, 3.2, 300.0, (90.0,))})
    assert any(e.name == "time per step of a request p95" for e in found.evidence)


def test_tpot_the_lowest_clock_and_the_highest_bandwidth_of_several_gpus_are_shown():
    found = slow_tokens(gpus=2, each_gpu={1: {"sm_clock_mhz": 1500.0}, 0: {"gpm.dram_bw_pct": 70.0}})
    assert number(found, "GPU 1 SM clock") == 1500.0
    assert number(found, "GPU 0 DRAM bandwidth") == 70.0
