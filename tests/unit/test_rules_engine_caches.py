"""prefix-cache-cold and spec-decode-weak."""

from __future__ import annotations

import random

import pytest

from gputop_llm.model import SpecDecode
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.baseline import LearningBaseline
from gputop_llm.symptoms.engine import SymptomEngine
from gputop_llm.symptoms.rules.caches import RULES
from tests.support import symptom_frames as sf
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

COLD, WEAK = "prefix-cache-cold", "spec-decode-weak"

# -- prefix-cache-cold ----------------------------------------------------------------


def cold(**changes):
    return symptom(COLD, RULES, busy(40, **changes))


def test_a_hit_rate_that_fell_is_raised_after_ten_seconds_with_both_rates():
    frames = busy(60, live={"prefix_hit_pct": changing((0, 45.0), (20, 7.0))})
    assert raised_at(COLD, RULES, frames) == 30
    found = symptom(COLD, RULES, frames)
    assert found.severity is Severity.WARNING
    assert found.headline == "prefix-cache hit rate fell to 7 % from 44 % (lifetime), 3100 prompt tok/s are computed"
    assert (number(found, "hit rate"), number(found, "hit rate, lifetime")) == (7.0, 44.0)
    assert number(found, "of the usual hit rate") == pytest.approx(100 * 7 / 44)
    assert number(found, "prompts in the window") == 35.0


def test_half_of_the_usual_rate_is_a_fall_however_high_it_still_is():
    live = {"prefix_hit_pct": 42.0, "prefix_hit_lifetime_pct": 88.0}
    assert "fell to 42 % from 88 %" in cold(live=live).headline
    assert raised_at(COLD, RULES, busy(40, live={**live, "prefix_hit_pct": 46.0})) is None


def test_the_baseline_counts_where_it_is_known_and_the_lifetime_else():
    frames = busy(40, live={"prefix_hit_pct": 30.0, "prefix_hit_lifetime_pct": 35.0})
    assert raised_at(COLD, RULES, frames) is None
    found = symptom(COLD, RULES, frames, baseline={"prefix_hit_pct": 70.0})
    assert "from 70 % (baseline)" in found.headline


def test_prompts_that_never_shared_anything_are_a_note_and_no_fault():
    found = cold(live={"prefix_hit_pct": 2.0, "prefix_hit_lifetime_pct": 3.0})
    assert found.severity is Severity.NOTE
    assert found.headline.startswith("prefix-cache hit rate 2.0 %: prompts share next to nothing")
    assert found.causes[0].speaks_for == ("the lifetime's hit rate is 3 % too",)


@pytest.mark.parametrize(("healthy_s", "which"), [(30, "lifetime"), (250, "baseline")])
def test_a_hit_rate_that_fell_is_not_learnt_and_stays_a_warning_for_as_long_as_it_lasts(healthy_s, which):
    live = {"prefix_hit_pct": lambda s: 45.0 if s < healthy_s else 12.0, "prefix_hit_lifetime_pct": 44.0}
    frames = busy(healthy_s + 450, live=live)
    engine = SymptomEngine(RULES, sf.limits(), learner=LearningBaseline())
    shown = [engine.update(frames[max(0, i - 20) : i + 1]).active for i in range(len(frames))]
    for (found,) in shown[healthy_s + 11 :]:
        assert found.severity is Severity.WARNING
        assert which in found.headline


def test_a_hit_rate_that_never_was_higher_keeps_nothing_from_being_learnt():
    live = {"prefix_hit_pct": 3.0, "prefix_hit_lifetime_pct": 4.0}
    learner = LearningBaseline()
    engine = SymptomEngine(RULES, sf.limits(), learner=learner)
    for frame in busy(60, live=live):
        engine.update([frame])
    assert learner.changed()


def test_eleven_percent_as_ever_are_not_cold():
    live = {"prefix_hit_pct": 11.0, "prefix_hit_lifetime_pct": 12.0}
    assert raised_at(COLD, RULES, busy(40, live=live)) is None


def test_a_low_rate_that_fell_lower_is_no_fall():
    live = {"prefix_hit_pct": 10.5, "prefix_hit_lifetime_pct": 19.0}
    assert raised_at(COLD, RULES, busy(40, live={**live, "prefix_hit_pct": 16.0})) is None
    assert raised_at(COLD, RULES, busy(40, live=live)) is None


def test_prompts_whose_kv_cache_is_brought_from_elsewhere_are_not_cold():
    live = {"prefix_hit_pct": 0.2, "prefix_hit_lifetime_pct": 0.2, "prompt_cached_tokens_per_s": 5590.0}
    assert raised_at(COLD, RULES, busy(40, live={**live, "kv_usage_pct": 96.0})) is None
    assert raised_at(COLD, RULES, busy(40, live={**live, "prompt_cached_tokens_per_s": 11.0})) == 10


def test_too_few_prompts_share_by_chance():
    frames = busy(40, live={"prefix_hit_pct": 0.0}, lat={"ttft": latency(0.2, count=9)})
    assert raised_at(COLD, RULES, frames) is None
    (lacking,) = cant_tell(COLD, RULES, frames)
    assert lacking.needs == "10 prompts in the window"


def test_without_a_ttft_histogram_the_finished_requests_are_counted():
    assert raised_at(COLD, RULES, busy(40, live={"prefix_hit_pct": 0.0}, lat={"ttft": None})) == 10


def test_an_engine_that_counts_no_prompts_is_told_to_be_so():
    live = {"prefix_hit_pct": 0.0, "requests_per_s": None, "missing": {"requests_per_s": "it does not count requests"}}
    (lacking,) = cant_tell(COLD, RULES, busy(40, live=live, lat={"ttft": None}))
    assert lacking.needs == "10 prompts in the window (it does not count requests)"


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"missing": {"prefix_hit_pct": "no counter"}}, "the hit rate (no counter)"),
        ({}, "the hit rate (not on the page)"),
    ],
)
def test_an_unknown_rate_is_told_with_its_reason(changes, needs):
    (lacking,) = cant_tell(COLD, RULES, busy(40, live={"prefix_hit_pct": None, **changes}))
    assert lacking.needs == needs


def test_a_cache_that_is_off_is_told_as_that():
    frames = busy(40, live={"prefix_hit_pct": None}, reading={"cache_config": {"enable_prefix_caching": "False"}})
    (lacking,) = cant_tell(COLD, RULES, frames)
    assert lacking.needs == "the hit rate (prefix caching is off on this engine)"


def test_thrash_is_the_cause_when_running_requests_fill_the_pool():
    found = cold(live={"prefix_hit_pct": 5.0, "kv_usage_pct": 97.0, "preemptions_per_s": 1.2})
    assert found.causes[0].text.startswith("cache thrash")
    assert found.causes[0].speaks_for[1] == "1.2 preemptions/s"
    roomy = cold(live={"prefix_hit_pct": 5.0})
    assert cause(roomy, "thrash").speaks_against == ("KV cache 42 % full: the rest can hold prefixes",)


def test_a_restart_empties_the_cache():
    found = cold(live={"prefix_hit_pct": 5.0, "restarted": True})
    assert "the engine was restarted a moment ago" in cause(found, "emptied").speaks_for


def test_of_two_models_the_cold_one_is_named():
    frames = busy(40, models={"a": {}, "b": {"prefix_hit_pct": 3.0}})
    assert symptom(COLD, RULES, frames).subject.key == f"{sf.SUBJECT}/model:b"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [10.0, 15.0, 22.0, 30.8])
def test_noise_around_each_threshold_of_the_hit_rate_does_not_flap(seed, middle):
    dice = random.Random(seed)
    rate = [4.0 if s < 30 else middle + dice.uniform(-1.0, 1.0) for s in range(300)]
    assert times_raised(COLD, RULES, busy(300, live={"prefix_hit_pct": lambda s: rate[s]})) == 1


# -- spec-decode-weak ------------------------------------------------------------------


def spec(acceptance=72.0, length=2.9, drafts=300.0, positions=(85.0, 70.0, 52.0)):
    return {"spec": SpecDecode(acceptance, length, drafts, positions)}


def test_rejected_drafts_are_raised_after_ten_seconds_with_the_numbers():
    frames = busy(
        60, live={"spec": changing((0, spec()["spec"]), (20, spec(31.0, 1.9, positions=(45.0, 30.0, 18.0))["spec"]))}
    )
    assert raised_at(WEAK, RULES, frames) == 30
    found = symptom(WEAK, RULES, frames)
    assert found.headline == "31 % of drafted tokens are accepted, 1.90 tokens per draft at 300 drafts/s"
    assert (number(found, "acceptance"), number(found, "mean length"), number(found, "drafts")) == (31.0, 1.9, 300.0)
    assert {e.name: e.text for e in found.evidence}["accepted by position"] == "45 / 30 / 18 %"
    assert (found.severity, found.next_capture) == (Severity.WARNING, "kineto")


def test_either_acceptance_or_length_is_enough():
    assert raised_at(WEAK, RULES, busy(40, live=spec(acceptance=49.0))) == 10
    assert raised_at(WEAK, RULES, busy(40, live=spec(length=1.45))) == 10
    assert raised_at(WEAK, RULES, busy(40, live=spec(acceptance=51.0, length=1.55))) is None
    assert raised_at(WEAK, RULES, busy(40, live=spec(acceptance=None, length=1.3))) == 10


def test_a_healthy_draft_is_quiet():
    assert reports(RULES[1:], busy(60, live=spec()))[-1].active == ()


@pytest.mark.parametrize(
    ("live", "needs"),
    [
        ({}, "drafts to judge by (speculative decoding is off)"),
        (spec(drafts=4.0), "50 drafts in the window"),
        (spec(drafts=None), "drafts to judge by (no draft was counted)"),
        (spec(acceptance=None, length=None), "accepted tokens"),
    ],
)
def test_what_drafts_can_not_be_judged_without(live, needs):
    frames = busy(40, live=live)
    (lacking,) = cant_tell(WEAK, RULES, frames)
    assert lacking.needs == needs
    assert raised_at(WEAK, RULES, frames) is None


def test_the_positions_tell_a_bad_draft_from_one_that_reaches_too_far():
    bad = symptom(WEAK, RULES, busy(40, live=spec(31.0, 1.9, positions=(45.0, 30.0, 18.0))))
    assert bad.causes[0].text == "the draft does not fit the model or its traffic"
    far = symptom(WEAK, RULES, busy(40, live=spec(40.0, 2.4, positions=(80.0, 30.0, 10.0))))
    assert far.causes[0].text.startswith("it drafts further than it can see")
    assert far.causes[0].speaks_for == ("at the first position 80 % are accepted, at the last 10 %",)
    assert cause(far, "does not fit").speaks_against == ("at the first position 80 % are accepted",)
    none = symptom(WEAK, RULES, busy(40, live=spec(40.0, 1.4, positions=())))
    assert {e.name: e.missing for e in none.evidence}["accepted by position"] == "the page does not count by position"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [50.0, 55.0])
def test_noise_around_either_threshold_of_acceptance_does_not_flap(seed, middle):
    dice = random.Random(seed)
    rate = [40.0 if s < 30 else middle + dice.uniform(-2.0, 2.0) for s in range(300)]
    frames = busy(300, live={"spec": lambda s: spec(rate[s])["spec"]})
    assert times_raised(WEAK, RULES, frames) == 1
