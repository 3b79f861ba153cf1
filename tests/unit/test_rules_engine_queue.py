"""queue-growing, scheduler-capped and kv-pressure, and how they are grouped with what follows from them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gputop_llm.model import EngineFrame
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.rules import kv, queue
from gputop_llm.symptoms.rules.queue import growth
from tests.support import frames as recorded
from tests.support.symptom_frames import (
    busy,
    cant_tell,
    cause,
    changing,
    latency,
    number,
    raised_at,
    reports,
    symptom,
    times_raised,
)

# -- queue-growing ------------------------------------------------------------------


def growing(rate, start=10):
    return lambda s: max(0.0, rate * (s - start))


def test_a_queue_that_grows_is_raised_within_half_a_minute():
    frames = busy(60, live={"waiting": growing(1.0)})
    assert raised_at("queue-growing", queue.RULES, frames) <= 10 + 30


@pytest.mark.parametrize("rate", [0.3, 1.0, 8.0])
def test_the_numbers_are_the_slope_and_what_follows_from_it(rate):
    found = symptom("queue-growing", queue.RULES, busy(60, live={"waiting": growing(rate, 0)}))
    assert number(found, "queue growth") == pytest.approx(rate)
    assert number(found, "arrivals") == pytest.approx(3.5 + rate)
    assert number(found, "finishes") == 3.5
    assert number(found, "sure rise of the queue") == pytest.approx(20 * rate)
    assert found.headline.startswith(
        f"the queue grows by {rate:.2f}/s" if rate < 1 else f"the queue grows by {rate:.0f}/s"
    )
    assert f"{rate * 59:.0f} waiting; " in found.headline
    assert {e.name: e.text for e in found.evidence}["running"] == "64 (64 – 64)"


def test_a_queue_that_is_long_but_steady_is_not_growing():
    assert raised_at("queue-growing", queue.RULES, busy(60, live={"waiting": 200.0})) is None


def test_a_queue_that_shrinks_is_not_growing():
    assert raised_at("queue-growing", queue.RULES, busy(60, live={"waiting": lambda s: 200.0 - 3 * s})) is None


def test_a_burst_that_is_being_worked_off_is_not_growth():
    frames = busy(90, live={"waiting": lambda s: 0.0 if s < 30 else max(0.0, 60.0 - 2 * (s - 30))})
    assert raised_at("queue-growing", queue.RULES, frames) is None


@pytest.mark.parametrize("seed", range(6))
def test_noise_on_a_steady_queue_is_no_growth(seed):
    dice = random.Random(seed)
    waiting = [max(0.0, round(dice.gauss(12.0, 4.0))) for _ in range(300)]
    assert raised_at("queue-growing", queue.RULES, busy(300, live={"waiting": lambda s: waiting[s]})) is None


@pytest.mark.parametrize("seed", range(3))
def test_noise_on_a_growing_queue_does_not_make_it_flap(seed):
    dice = random.Random(seed)
    waiting = [max(0.0, round(0.8 * s + dice.gauss(5.0, 3.0))) for s in range(200)]
    frames = busy(200, live={"waiting": lambda s: waiting[s]})
    assert times_raised("queue-growing", queue.RULES, frames) == 1


def test_it_is_cleared_when_the_queue_stops_growing():
    frames = busy(120, live={"waiting": lambda s: 2.0 * min(s, 40)})
    held = [bool(r.active) for r in reports(queue.RULES[:1], frames)]
    assert held[40]
    assert not any(held[75:])


def test_when_more_run_and_fewer_wait_nothing_is_growing():
    # Requests move from waiting to running; the sum shrinks.
    frames = busy(60, live={"waiting": lambda s: 0.3 * s, "running": lambda s: 64.0 - 0.4 * s})
    assert raised_at("queue-growing", queue.RULES, frames) is None


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("admission cap", {}, "running stands at 64 with KV cache only 42 % full"),
        ("KV cache is exhausted", {"live": {"kv_usage_pct": 99.0}}, "KV cache 99 % full"),
        ("put off", {"live": {"waiting_by_reason": {"capacity": 1.0, "deferred": 30.0}}}, "30 of them are deferred"),
    ],
)
def test_the_cause_that_the_data_speak_for_comes_first(text, changes, words):
    live = {"waiting": growing(1.0, 0), **changes.get("live", {})}
    found = symptom("queue-growing", queue.RULES, busy(60, live=live))
    assert any(words in said for said in cause(found, text).speaks_for)
    assert found.causes.index(cause(found, text)) <= 1


def test_overload_is_told_against_what_the_engine_usually_serves():
    frames = busy(60, live={"waiting": growing(1.0, 0)})
    found = symptom("queue-growing", queue.RULES, frames, baseline={"requests_per_s": 3.6})
    assert cause(found, "overload").speaks_for == ("4.50 requests/s arrive; it usually serves 3.60/s",)
    found = symptom("queue-growing", queue.RULES, frames, baseline={"requests_per_s": 9.0})
    assert cause(found, "overload").speaks_against == ("4.50 requests/s arrive; it usually serves 9/s",)


def test_without_a_finish_rate_the_growth_is_still_told():
    live = {"waiting": growing(1.0, 0), "requests_per_s": None, "missing": {"requests_per_s": "no counter"}}
    found = symptom("queue-growing", queue.RULES, busy(60, live=live))
    assert {e.name: e.missing for e in found.evidence}["arrivals"] == "no counter"
    assert "arrive" not in found.headline


@pytest.mark.parametrize(
    ("frames", "needs"),
    [
        (busy(30, live={"waiting": None, "missing": {"waiting": "hidden"}}), "the queue's length (hidden)"),
        (busy(6, live={"waiting": growing(2.0, -1)}), "a longer look at the queue (10 s)"),
        (
            busy(40, live={"waiting": 5.0}, scrape={"at": 5, "error": "x"}),
            "a fresh metrics page (the last one is 34 s old)",
        ),
    ],
)
def test_what_a_growing_queue_can_not_be_told_without(frames, needs):
    (lacking,) = cant_tell("queue-growing", queue.RULES, frames)
    assert lacking.needs == needs


def test_the_sure_rise_is_the_slope_less_twice_its_error():
    exact = growth([(float(t), 3.0 * t) for t in range(21)])
    assert (exact.slope_per_s, exact.sure_rise) == (pytest.approx(3.0), pytest.approx(60.0))
    dice = random.Random(3)
    noisy = growth([(float(t), 3.0 * t + dice.gauss(0, 5)) for t in range(21)])
    assert noisy.sure_rise < 20.0 * noisy.slope_per_s
    assert growth([(0.0, 1.0), (9.0, 2.0), (9.5, 3.0)]) is None


# -- scheduler-capped ----------------------------------------------------------------

CAPPED = {"waiting": 6.0, "running": 64.0}


def test_requests_that_wait_beside_a_plateau_with_room_are_capped():
    frames = busy(60, live={"waiting": changing((0, 0.0), (20, 6.0)), "running": 64.0})
    assert 30 <= raised_at("scheduler-capped", queue.RULES, frames) <= 45
    found = symptom("scheduler-capped", queue.RULES, frames)
    assert found.headline == "6 wait while running stands at 64; KV cache is only 42 % full"
    assert number(found, "running, at a plateau") == 64.0
    assert number(found, "KV cache usage") == 42.0
    assert number(found, "GPU 0 SM active") == 84.0


@pytest.mark.parametrize(
    "near_miss",
    [
        {"waiting": 0.0},
        {"waiting": lambda s: 6.0 if s % 5 else 0.0},
        {"kv_usage_pct": 81.0},
        {"running": lambda s: 64.0 - (s % 10) * 2},
        {"running": 0.0},
        {"waiting_by_reason": {"capacity": 0.0, "deferred": 6.0}},
    ],
    ids=["nobody waits", "not always", "KV is filling", "no plateau", "nothing runs", "their KV cache is on its way"],
)
def test_a_near_miss_is_not_capped(near_miss):
    assert raised_at("scheduler-capped", queue.RULES, busy(60, live={**CAPPED, **near_miss})) is None


def test_of_those_that_wait_only_the_ones_that_a_larger_cap_would_let_in_are_told():
    live = {**CAPPED, "waiting": 9.0, "waiting_by_reason": {"capacity": 6.0, "deferred": 3.0}}
    found = symptom("scheduler-capped", queue.RULES, busy(60, live=live))
    assert found.headline.startswith("6 wait while running stands at 64")
    assert number(found, "least waiting") == 6.0


def test_when_tokens_come_slowly_a_larger_cap_would_make_it_worse():
    assert raised_at("scheduler-capped", queue.RULES, busy(60, live=CAPPED, lat={"itl": 0.15})) is None


def test_requests_that_finish_make_running_dip_at_a_cap_of_eight():
    dips = {"waiting": 6.0, "running": lambda s: 7.0 if s % 4 == 0 else 8.0}
    assert raised_at("scheduler-capped", queue.RULES, busy(60, live=dips)) is not None


def test_the_cap_of_the_command_line_is_compared_with_the_plateau():
    argv = (*recorded.target().argv, "--max-num-seqs", "64")
    found = symptom("scheduler-capped", queue.RULES, busy(60, live=CAPPED, target={"argv": argv}))
    assert found.causes[0].speaks_for == ("running = --max-num-seqs 64",)
    assert {e.name: e.text for e in found.evidence}["running, at a plateau"] == "64 (--max-num-seqs 64)"
    wider = (*recorded.target().argv, "--max_num_seqs=256")
    found = symptom("scheduler-capped", queue.RULES, busy(60, live=CAPPED, target={"argv": wider}))
    assert cause(found, "tokens per step").speaks_for == ("running stays under the limit of sequences",)
    assert cause(found, "sequences that run").speaks_against == ("running stays under --max_num_seqs 256",)


def test_a_gpu_that_is_full_speaks_against_a_larger_cap():
    spare = symptom("scheduler-capped", queue.RULES, busy(60, live=CAPPED, gpu={"gpm.sm_active_pct": 40.0}))
    assert cause(spare, "no more to give").speaks_against == ("SM active only 40 %",)
    full = symptom("scheduler-capped", queue.RULES, busy(60, live=CAPPED, gpu={"gpm.sm_active_pct": 95.0}))
    assert cause(full, "no more to give").speaks_for == ("SM active 95 %",)


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"live": {**CAPPED, "kv_usage_pct": None}}, "kv usage (not on the page)"),
        ({"live": {**CAPPED, "running": None}}, "running (not on the page)"),
        ({"live": CAPPED, "lat": {"itl": None}}, "inter-token latency (not on the page)"),
    ],
)
def test_what_a_cap_can_not_be_told_without(changes, needs):
    (lacking,) = cant_tell("scheduler-capped", queue.RULES, busy(40, **changes))
    assert lacking.needs == needs


@pytest.mark.parametrize("seed", range(3))
def test_noise_around_the_kv_limit_does_not_make_it_flap(seed):
    dice = random.Random(seed)
    usage = [80.0 + dice.uniform(-2.0, 2.0) for _ in range(200)]
    frames = busy(200, live={**CAPPED, "kv_usage_pct": lambda s: usage[s]})
    assert times_raised("scheduler-capped", queue.RULES, frames) <= 1


# -- kv-pressure ---------------------------------------------------------------------


def test_a_full_cache_is_raised_after_the_window_and_ten_seconds():
    frames = busy(60, live={"kv_usage_pct": changing((0, 60.0), (20, 99.5))})
    assert 30 <= raised_at("kv-pressure", kv.RULES, frames) <= 42
    assert symptom("kv-pressure", kv.RULES, frames).severity is Severity.WARNING


def test_ninety_four_percent_are_no_pressure_and_ninety_six_stay_one_down_to_ninety():
    assert raised_at("kv-pressure", kv.RULES, busy(40, live={"kv_usage_pct": 94.5})) is None
    usage = changing((0, 96.0), (30, 92.0), (70, 85.0))
    held = [bool(r.active) for r in reports(kv.RULES, busy(120, live={"kv_usage_pct": usage}))]
    assert held[69]
    assert not held[119]


def test_preemptions_alone_are_pressure_and_critical():
    found = symptom("kv-pressure", kv.RULES, busy(30, live={"preemptions_per_s": 0.4, "kv_usage_pct": 80.0}))
    assert found.severity is Severity.CRITICAL
    assert found.headline == "KV cache 80 % full, 0.40 preemptions/s"
    assert number(found, "preemptions") == 0.4


def test_the_numbers_are_those_of_the_window_and_the_pool_is_told():
    found = symptom("kv-pressure", kv.RULES, busy(30, live={"kv_usage_pct": lambda s: 97.0 + s % 2, "waiting": 12.0}))
    assert number(found, "KV cache usage") == pytest.approx(97.5, abs=0.1)
    assert (number(found, "waiting"), number(found, "running")) == (12.0, 64.0)
    assert {e.name: e.text for e in found.evidence}["KV pool"] == "2197328 tokens"
    assert found.chart_threshold == 95.0


def test_a_pool_that_is_told_in_tokens_is_told_so():
    told = {"cache_config": {"kv_cache_size_tokens": "38141", "num_gpu_blocks": "9000", "block_size": "4"}}
    found = symptom("kv-pressure", kv.RULES, busy(30, live={"kv_usage_pct": 97.0}, reading=told))
    assert {e.name: e.text for e in found.evidence}["KV pool"] == "38141 tokens"


def test_of_two_ranks_the_full_one_is_named():
    frames = busy(30, live={"kv_usage_pct": 99.0}, ranks=[{"kv_usage_pct": 41.0}, {"kv_usage_pct": 99.0}])
    found = symptom("kv-pressure", kv.RULES, frames)
    assert found.headline.startswith("KV cache 99 % full on DP rank 1")
    assert number(found, "DP rank 0 KV cache usage") == 41.0


def test_either_signal_is_enough_where_the_other_is_missing():
    gone = {"kv_usage_pct": None, "missing": {"kv_usage_pct": "hidden since 0.11"}}
    found = symptom("kv-pressure", kv.RULES, busy(30, live={**gone, "preemptions_per_s": 1.0}))
    assert found.headline == "the KV cache is too small, 1 preemptions/s"
    assert (found.agreeing, found.signals) == (1, 2)
    assert cant_tell("kv-pressure", kv.RULES, busy(30, live=gone)) == ()
    (lacking,) = cant_tell("kv-pressure", kv.RULES, busy(30, live={**gone, "preemptions_per_s": None}))
    assert lacking.needs == "KV cache usage (hidden since 0.11)"


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [
        ("too small", {"waiting": 9.0}, "9 requests wait beside 64 that run"),
        ("longer", {"mean_prompt_tokens": 20_000.0}, "a request has 20.9k tokens on average, prompt and output"),
        ("leaked", {"requests_per_s": 0.0}, "64 run and none finished in the window"),
    ],
)
def test_causes_of_pressure_speak_for_themselves_only_in_their_data(text, changes, words):
    quiet = cause(symptom("kv-pressure", kv.RULES, busy(30, live={"kv_usage_pct": 99.0})), text)
    assert quiet.speaks_for == ()
    assert quiet.speaks_against
    found = symptom("kv-pressure", kv.RULES, busy(30, live={"kv_usage_pct": 99.0, **changes}))
    assert found.causes[0].speaks_for == (words,)
    assert text in found.causes[0].text


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [95.0, 90.0])
def test_noise_around_either_kv_threshold_does_not_flap(seed, middle):
    dice = random.Random(seed)
    usage = [98.0 if s < 30 else middle + dice.uniform(-1.5, 1.5) for s in range(300)]
    assert times_raised("kv-pressure", kv.RULES, busy(300, live={"kv_usage_pct": lambda s: usage[s]})) == 1


# -- grouping ------------------------------------------------------------------------


def test_a_full_cache_is_the_root_of_preemptions_queue_and_late_first_tokens():
    live = {"kv_usage_pct": 99.0, "preemptions_per_s": 3.0, "waiting": growing(2.0, 0)}
    frames = busy(60, live=live, lat={"ttft": 6.0, "queue": latency(5.0), "itl": 0.2})
    active = reports(ALL, frames)[-1].active
    assert [s.id for s in active if s.root is None] == ["kv-pressure"]
    assert {"queue-growing", "ttft-high", "tpot-high"} <= {s.id for s in active if s.root == active[0].key}


def test_an_admission_cap_is_the_root_of_the_queue_and_the_late_first_tokens():
    frames = busy(60, live={"waiting": growing(2.0, 0), "running": 64.0}, lat={"ttft": 6.0, "queue": latency(5.0)})
    active = reports(ALL, frames)[-1].active
    assert {s.id for s in active if s.root == active[0].key} == {"queue-growing", "ttft-high"}
    assert active[0].id == "scheduler-capped"


def test_a_growing_queue_alone_is_the_root_of_late_first_tokens():
    frames = busy(
        60,
        live={"waiting": growing(2.0, 0), "running": lambda s: 50.0 + (s % 10)},
        lat={"ttft": 6.0, "queue": latency(5.0)},
    )
    active = reports(ALL, frames)[-1].active
    assert [(s.id, s.root) for s in active] == [("queue-growing", None), ("ttft-high", active[0].key)]


def test_late_first_tokens_of_another_engine_are_not_explained_by_this_one():
    def two(frame, s):
        other = busy(1, start=s, lat={"ttft": 3.0})[0].engines[0]
        other = EngineFrame("7@1", "http://127.0.0.1:9000/metrics", other.scrape, other.window)
        return replace(frame, engines=(*frame.engines, other))

    frames = busy(40, live={"kv_usage_pct": 99.0}, edit=two)
    active = reports(ALL, frames)[-1].active
    assert {(s.id, s.root) for s in active} == {("kv-pressure", None), ("ttft-high", None)}


def test_a_healthy_engine_raises_nothing_in_two_minutes_of_noise():
    dice = random.Random(11)

    def about(value, share=0.15):
        drawn = [value * dice.uniform(1 - share, 1 + share) for _ in range(150)]
        return lambda s: drawn[s]

    frames = busy(
        150,
        live={
            "running": about(64.0),
            "kv_usage_pct": about(42.0),
            "prefix_hit_pct": about(45.0),
            "waiting": lambda s: float(s % 7 == 0),
            "generation_tokens_per_s": about(3200.0),
        },
        lat={"ttft": about(0.18), "itl": lambda s: latency(0.028, 9000, p50_s=0.02)},
        gpu={"util_pct": about(95.0, 0.04), "gpm.sm_active_pct": about(84.0), "gpm.tensor_pct": about(36.0)},
    )
    assert [s.headline for r in reports(ALL, frames) for s in r.active] == []
