"""errors-rising: requests that fail, and answers that say so."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.rules import errors
from tests.support.symptom_frames import (
    busy,
    cant_tell,
    cause,
    changing,
    number,
    raised_at,
    reports,
    symptom,
    times_raised,
)


def failing(abort=0.0, error=0.0, stop=3.5):
    finished = {"stop": stop, "abort": abort, "error": error}
    return {"finished_per_s": finished, "requests_per_s": stop + abort + error}


def answering(per_s):
    """An `edit`: the server's answers per second by status class."""

    def edit(frame, _s):
        (engine,) = frame.engines
        return replace(frame, engines=(replace(engine, window=replace(engine.window, http_per_s=per_s)),))

    return edit


def test_more_than_one_in_a_hundred_that_fail_are_raised_after_ten_seconds():
    live = {"finished_per_s": changing((0, failing()["finished_per_s"]), (20, failing(error=0.4)["finished_per_s"]))}
    frames = busy(60, live={**live, "requests_per_s": 3.9})
    assert raised_at("errors-rising", errors.RULES, frames) == 30
    found = symptom("errors-rising", errors.RULES, frames)
    assert found.headline == "10.3 % of the requests fail: error 0.40/s"
    assert found.severity is Severity.CRITICAL
    assert number(found, "failed share") == pytest.approx(100 * 0.4 / 3.9)
    assert number(found, "failed in the window") == pytest.approx(4.0)
    assert number(found, "finished: error") == 0.4


def test_a_page_without_answers_by_status_says_so():
    found = symptom("errors-rising", errors.RULES, busy(40, live=failing(abort=0.5)))
    missing = {e.name: e.missing for e in found.evidence}
    assert missing["HTTP 5xx, of all answers"] == "the page does not count answers by status"


def test_answers_of_5xx_are_failures_that_the_engine_never_had():
    frames = busy(40, edit=answering({"2xx": 3.5, "4xx": 0.1, "5xx": 0.4}))
    assert raised_at("errors-rising", errors.RULES, frames) == 10
    found = symptom("errors-rising", errors.RULES, frames)
    assert found.headline == "10.0 % of the answers are failures: HTTP 5xx 0.40/s"
    assert found.severity is Severity.WARNING
    assert number(found, "HTTP 5xx, of all answers") == pytest.approx(10.0)
    assert number(found, "HTTP 5xx in the window") == pytest.approx(4.0)
    assert number(found, "failed share") == 0.0
    assert found.causes[0].text.startswith("the front end fails them")


@pytest.mark.parametrize("http", [{"2xx": 3.5, "4xx": 9.0}, {"2xx": 3.5, "5xx": 0.1}, {"2xx": 400.0, "5xx": 3.0}])
def test_answers_that_are_the_clients_fault_or_few_are_no_symptom(http):
    assert raised_at("errors-rising", errors.RULES, busy(40, edit=answering(http))) is None


def test_answers_by_status_are_enough_to_judge_by():
    live = {"requests_per_s": None, "finished_per_s": {}, "missing": {"finished_per_s": "hidden"}}
    found = symptom("errors-rising", errors.RULES, busy(40, live=live, edit=answering({"5xx": 2.0})))
    assert found.headline == "100.0 % of the answers are failures: HTTP 5xx 2/s"
    assert {e.name: e.missing for e in found.evidence}["failed share"] == "hidden"


def test_less_than_one_in_a_hundred_is_not_raised():
    assert raised_at("errors-rising", errors.RULES, busy(40, live=failing(abort=0.7, stop=80.0))) is None
    found = symptom("errors-rising", errors.RULES, busy(40, live=failing(abort=0.9, stop=80.0)))
    assert found.severity is Severity.WARNING


def test_a_single_failure_is_no_rate():
    assert raised_at("errors-rising", errors.RULES, busy(40, live=failing(error=0.1))) is None


def test_nothing_that_finished_has_not_failed():
    assert reports(errors.RULES, busy(40, live=failing(stop=0.0)))[-1].active == ()


def test_aborts_beside_a_long_wait_are_clients_that_give_up_and_errors_are_the_engines_own():
    waits = busy(40, live={**failing(abort=0.5), "waiting": 60.0}, lat={"ttft": 20.0})
    found = symptom("errors-rising", errors.RULES, waits)
    assert found.causes[0].text.startswith("clients give up")
    assert found.causes[0].speaks_for == ("abort 0.50/s", "TTFT mean 14.7 s, 60 waiting")
    own = symptom("errors-rising", errors.RULES, busy(40, live=failing(error=0.5)))
    assert own.causes[0].text.startswith("the engine fails requests")
    assert cause(own, "clients").speaks_against == ("error 0.50/s: the engine ended them, not the clients",)


def test_without_finish_reasons_errors_can_not_be_judged():
    live = {"requests_per_s": None, "finished_per_s": {}, "missing": {"finished_per_s": "needs two scrapes"}}
    (lacking,) = cant_tell("errors-rising", errors.RULES, busy(40, live=live))
    assert lacking.needs == "requests by how they ended (needs two scrapes)"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [1.0, 0.5])
def test_noise_around_either_share_does_not_flap(seed, middle):
    dice = random.Random(seed)
    share = [4.0 if s < 30 else middle + dice.uniform(-0.2, 0.2) for s in range(300)]
    live = {"finished_per_s": lambda s: {"stop": 100.0 - share[s], "error": share[s]}, "requests_per_s": 100.0}
    assert times_raised("errors-rising", errors.RULES, busy(300, live=live)) == 1
