"""warming-up and underloaded."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from gputop_llm.model import EngineFrame, Frame, Part, TargetList
from gputop_llm.model.symptom import Severity
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.rules import life
from tests.support import frames as recorded
from tests.support import symptom_frames as sf
from tests.support.captures import case_json, case_page, read_page
from tests.support.symptom_frames import (
    busy,
    cant_tell,
    number,
    raised_at,
    reports,
    symptom,
    times_raised,
    unanswered,
)

# -- warming-up -------------------------------------------------------------------------


def young(age_s, **changes):
    """An engine of that age at second 0, by its process and by its page."""
    started = sf.AT_S - age_s
    return {"target": {"started_s": started}, "reading": {"started_s": started}, **changes}


def test_a_young_engine_is_warming_up_at_once_and_until_it_is_two_minutes_old():
    frames = busy(60, **young(90.0))
    held = [any(s.id == "warming-up" for s in r.active) for r in reports(life.RULES, frames)]
    assert held == [s < 30 for s in range(60)]
    found = symptom("warming-up", life.RULES, frames[:20])
    assert (found.severity, number(found, "age")) == (Severity.NOTE, pytest.approx(109.0))
    assert found.headline == "the engine is 1 m 49 s old: normal; other rules are held back"
    assert {e.name: e.text for e in found.evidence}["first token seen"] == "yes"


def test_other_rules_are_held_back_and_say_so():
    frames = busy(60, lat={"ttft": 5.0}, **young(30.0))
    report = reports(ALL, frames)[-1]
    assert [s.id for s in report.active] == ["warming-up"]
    assert [(s.id, s.held_back) for s in report.held_back] == [("ttft-high", "the engine is warming up")]


def test_what_lasts_is_raised_when_the_warming_up_ends():
    frames = busy(60, lat={"ttft": 5.0}, **young(90.0))
    assert raised_at("ttft-high", ALL, frames) == 30


def test_the_younger_of_process_and_page_counts():
    frames = busy(5, target={"started_s": sf.AT_S - 5000.0}, reading={"started_s": sf.AT_S - 20.0})
    assert number(symptom("warming-up", life.RULES, frames), "age") == pytest.approx(24.0)


def test_counters_that_fall_are_a_restart_for_two_minutes_although_marked_for_one_window_only():
    live = {"restarted": lambda s: 20 <= s < 30}
    frames = busy(150, live=live, reading={"started_s": None}, target={"started_s": None})
    held = [any(s.id == "warming-up" for s in r.active) for r in reports(life.RULES, frames)]
    assert [s for s in range(150) if held[s]] == list(range(20, 139))


def test_an_engine_whose_start_is_unknown_can_not_be_judged():
    (lacking,) = cant_tell("warming-up", life.RULES, busy(5, reading={"started_s": None}, target={"started_s": None}))
    assert lacking.needs == "when the engine was started"


def test_until_its_first_token_an_engine_is_starting_for_ten_minutes_at_most():
    never = {"generation_tokens": 0.0, "finished:stop": 0.0, "finished:length": 0.0}
    assert raised_at("warming-up", life.RULES, busy(5, counters=never, **young(400.0))) == 0
    given_up = {**never, "finished:abort": 3.0, "finished:error": 1.0}
    assert raised_at("warming-up", life.RULES, busy(5, counters=given_up, **young(400.0))) == 0, "no answer either"
    found = symptom("warming-up", life.RULES, busy(5, counters=never, **young(400.0)))
    assert "no first token yet" in found.headline
    assert {e.name: e.text for e in found.evidence}["first token seen"] == "no"
    assert raised_at("warming-up", life.RULES, busy(5, counters=never, **young(700.0))) is None


def test_a_model_that_only_embeds_answers_without_a_token_and_is_not_starting():
    frames = busy(5, counters={"generation_tokens": 0.0}, **young(400.0))
    assert raised_at("warming-up", life.RULES, frames) is None


def test_an_engine_that_nobody_has_asked_yet_is_not_starting():
    frames = busy(5, counters={"generation_tokens": 0.0}, live={"running": 0.0}, **young(400.0))
    assert raised_at("warming-up", life.RULES, frames) is None


def test_a_server_that_does_not_answer_yet_is_starting_and_its_metrics_are_not_called_stale():
    frames = busy(60, target={"started_s": sf.AT_S - 200.0}, edit=unanswered)
    report = reports(ALL, frames)[-1]
    assert [s.id for s in report.active] == ["warming-up"]
    assert report.active[0].headline.startswith("the engine is starting (4 m 19 s old, no metrics page yet): normal")
    (lacking,) = [c for c in report.cant_tell if c.id == "metrics-stale"]
    assert lacking.needs == "a first answer: the engine is starting"


def test_case_12_a_restarted_engine_is_young_and_other_rules_wait():
    times, tracker, made, window, page, scraped = case_json(12, "times"), EngineTracker(), [], None, None, 0
    scrapes = {at: read_page(case_page(12, name)) for name, at in times.items()}
    for s in range(max(times.values()) + 5):
        if s in scrapes:
            page, scraped = scrapes[s], s
            window = tracker.push(page, sf.MONO_S + s)
        scrape = Part(page, sf.AT_S + scraped, sf.MONO_S + scraped, float(s - scraped), 0.004, None, 10.0, 1)
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
    assert [s.id for s in last.active] == ["warming-up"]
    assert number(last.active[0], "age") == pytest.approx(made[-1].mono_s - sf.MONO_S - times["t1"])


# -- underloaded ------------------------------------------------------------------------


def test_little_that_runs_and_nothing_that_waits_is_a_note_and_normal():
    frames = busy(40, live={"running": 3.0})
    assert raised_at("underloaded", life.RULES, frames) == 10
    found = symptom("underloaded", life.RULES, frames)
    assert found.severity is Severity.NOTE
    assert found.headline == "nothing waits and 3 run: normal, the clients are the limit (3.50 requests/s)"
    assert (number(found, "running"), number(found, "requests that finish")) == (3.0, 3.5)


@pytest.mark.parametrize(
    "changes",
    [
        {"live": {"running": 9.0}},
        {"live": {"running": 3.0, "waiting": lambda s: float(s % 6 == 0)}},
        {"live": {"running": 3.0}, "lat": {"itl": 0.15}},
        {"live": {"running": 3.0, "generation_tokens_per_s": 0.0}},
    ],
    ids=["a batch", "somebody waits", "tokens are slow", "no tokens at all"],
)
def test_a_near_miss_is_not_underloaded(changes):
    assert raised_at("underloaded", life.RULES, busy(60, **changes)) is None


def test_an_idle_engine_is_underloaded_too():
    live = {"running": 0.0, "requests_per_s": 0.0, "generation_tokens_per_s": 0.0}
    assert "0 run" in symptom("underloaded", life.RULES, busy(40, live=live, lat={"itl": None})).headline


def test_seven_of_at_most_eight_are_not_few():
    argv = (*recorded.target().argv, "--max-num-seqs", "8")
    assert raised_at("underloaded", life.RULES, busy(40, live={"running": 7.0}, target={"argv": argv})) is None
    assert raised_at("underloaded", life.RULES, busy(40, live={"running": 1.0}, target={"argv": argv})) == 10


def test_an_engine_that_is_gone_is_not_called_well_for_long():
    def gone(frame, s):
        if s < 20:
            return frame
        return replace(frame, engines=(), targets=replace(frame.targets, value=TargetList()))

    held = [bool(r.active) for r in reports(life.RULES, busy(60, live={"running": 3.0}, edit=gone))]
    assert [s for s in range(60) if held[s]] == list(range(10, 29))


@pytest.mark.parametrize("name", ["running", "waiting"])
def test_without_its_gauges_a_load_can_not_be_judged(name):
    live = {"running": 3.0, name: None, "missing": {name: "hidden"}}
    (lacking,) = cant_tell("underloaded", life.RULES, busy(40, live=live))
    assert lacking.needs == f"{name} (hidden)"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [8.0, 12.0])
def test_noise_around_a_small_batch_does_not_flap(seed, middle):
    dice = random.Random(seed)
    running = [2.0 if s < 30 else round(middle + dice.uniform(-3.0, 3.0)) for s in range(300)]
    assert times_raised("underloaded", life.RULES, busy(300, live={"running": lambda s: running[s]})) == 1


def test_case_13_a_page_of_process_metrics_is_neither_underloaded_nor_stalled():
    page = read_page(case_page(13))
    assert page.problem is not None
    window = EngineTracker().push(page, sf.MONO_S)

    def edit(frame, s):
        (engine,) = frame.engines
        return replace(frame, engines=(replace(engine, scrape=replace(engine.scrape, value=page), window=window),))

    report = reports(ALL, busy(60, edit=edit))[-1]
    assert {s.id for s in report.active} & {"underloaded", "stalled", "metrics-stale", "kv-pressure"} == set()
    needs = {c.id: c.needs for c in report.cant_tell}
    assert "disable-log-stats" in needs["underloaded"]
    assert needs["stalled"] == needs["metrics-stale"] == needs["kv-pressure"]


def test_case_11_values_that_are_no_numbers_neither_raise_nor_clear():
    page = read_page(case_page(11, "vllm"))
    tracker = EngineTracker()
    windows = [tracker.push(page, sf.MONO_S + s) for s in range(60)]

    def edit(frame, s):
        (engine,) = frame.engines
        return replace(frame, engines=(replace(engine, scrape=replace(engine.scrape, value=page), window=windows[s]),))

    report = reports(ALL, busy(60, edit=edit, gpu={"util_pct": 0.0, "power_w": 90.0}))[-1]
    numbers = [e.value for s in report.active for e in s.evidence if e.value is not None]
    assert all(math.isfinite(value) for value in numbers)
    gone = {name for name in ("running", "waiting", "kv_usage_pct") if getattr(windows[-1].total, name) is None}
    lacking = {c.id: c.needs for c in report.cant_tell}
    assert gone == {"waiting", "kv_usage_pct"}
    assert {"queue-growing", "underloaded", "kv-pressure", "scheduler-capped"} <= set(lacking)
    assert lacking["kv-pressure"].startswith("KV cache usage (")
    assert {s.id for s in report.active} & set(lacking) == set()
