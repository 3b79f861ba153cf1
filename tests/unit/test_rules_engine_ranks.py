"""rank-imbalance: data-parallel ranks that share the work unevenly."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from gputop_llm.symptoms.rules.ranks import RULES
from tests.support import symptom_frames as sf
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

RULE = "rank-imbalance"


def test_a_rank_with_more_than_twice_the_requests_is_raised_and_named():
    frames = busy(60, ranks=[{"running": changing((0, 30.0), (20, 60.0))}, {"running": 25.0}])
    assert 25 <= raised_at(RULE, RULES, frames) <= 45
    found = symptom(RULE, RULES, frames)
    assert found.headline == "DP rank 0 has 60 running, rank 1 25 (2.4×)"
    assert found.subject.key == sf.SUBJECT
    assert number(found, "running, most ÷ least") == pytest.approx(2.4)
    assert number(found, "running, most less least") == pytest.approx(35.0)
    assert (number(found, "DP rank 0 running"), number(found, "DP rank 1 running")) == (60.0, 25.0)


def test_less_than_twice_is_not():
    assert raised_at(RULE, RULES, busy(60, ranks=[{"running": 49.0}, {"running": 25.0}])) is None


def test_small_numbers_differ_anyway():
    assert raised_at(RULE, RULES, busy(60, ranks=[{"running": 4.0}, {"running": 1.0}])) is None
    assert raised_at(RULE, RULES, busy(60, ranks=[{"running": 5.0}, {"running": 1.0}])) is not None


def test_what_waits_counts_as_what_runs():
    ranks = [{"waiting": 0.0}, {"waiting": 40.0}, {"waiting": 38.0}]
    found = symptom(RULE, RULES, busy(40, ranks=ranks))
    assert found.headline == "DP rank 1 has 40 waiting, rank 0 0 (40 to nothing)"
    assert {e.name: e.text for e in found.evidence}["waiting, most ÷ least"] == "40 to nothing"


def test_a_rank_that_is_idle_beside_a_busy_one_is_an_imbalance():
    assert "(60 to nothing)" in symptom(RULE, RULES, busy(40, ranks=[{"running": 60.0}, {"running": 0.0}])).headline


def test_the_worse_of_the_two_figures_is_told():
    ranks = [{"running": 60.0, "waiting": 0.0}, {"running": 25.0, "waiting": 0.0}]
    assert "running" in symptom(RULE, RULES, busy(40, ranks=ranks)).headline
    ranks = [{"running": 64.0, "waiting": 50.0}, {"running": 64.0, "waiting": 5.0}]
    assert "waiting" in symptom(RULE, RULES, busy(40, ranks=ranks)).headline


def test_an_engine_with_one_rank_is_not_asked():
    report = reports(RULES, busy(40))[-1]
    assert (report.active, report.cant_tell) == ((), ())


def test_ranks_without_figures_can_not_be_judged():
    hidden = {"running": None, "waiting": None, "missing": {"running": "not on the page yet"}}
    (lacking,) = cant_tell(RULE, RULES, busy(40, ranks=[hidden, hidden]))
    assert lacking.needs == "running and waiting of each rank (not on the page yet)"


def test_an_old_page_is_not_judged():
    (lacking,) = cant_tell(RULE, RULES, busy(40, ranks=[{}, {}], scrape={"at": 3, "error": "x"}))
    assert "fresh" in lacking.needs


def test_a_router_that_sends_more_is_told_from_a_rank_that_is_slower():
    sent = busy(40, ranks=[{"running": 60.0, "requests_per_s": 6.0}, {"running": 20.0, "requests_per_s": 2.0}])
    found = symptom(RULE, RULES, sent)
    assert found.causes[0].text.startswith("the router")
    assert found.causes[0].speaks_for == ("rank 0 finishes 6/s, rank 1 2/s",)
    assert cause(found, "slower").speaks_against == ("rank 0 finishes 6/s, rank 1 2/s",)
    slower = busy(40, ranks=[{"running": 60.0, "requests_per_s": 3.0}, {"running": 20.0, "requests_per_s": 3.0}])
    assert symptom(RULE, RULES, slower).causes[0].text.startswith("one rank is slower")


def test_models_of_one_rank_are_added_up():
    def edit(frame, s):
        (engine,) = frame.engines
        one, two = engine.window.ranks
        more = replace(two, model="other", running=30.0)
        window = replace(engine.window, ranks=(one, two, more))
        return replace(frame, engines=(replace(engine, window=window),))

    frames = busy(40, ranks=[{"running": 55.0}, {"running": 25.0}], edit=edit)
    assert raised_at(RULE, RULES, frames) is None


def test_of_ten_ranks_the_extreme_ones_are_named_by_their_numbers():
    ranks = [{"running": 10.0 + rank} for rank in range(11)]
    ranks[10]["running"] = 70.0
    assert symptom(RULE, RULES, busy(40, ranks=ranks)).headline == "DP rank 10 has 70 running, rank 0 10 (7.0×)"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [2.0, 1.6])
def test_noise_around_either_ratio_does_not_flap(seed, middle):
    dice = random.Random(seed)
    most = [90.0 if s < 30 else 30.0 * middle + dice.uniform(-4.0, 4.0) for s in range(300)]
    frames = busy(300, ranks=[{"running": lambda s: most[s]}, {"running": 30.0}])
    assert times_raised(RULE, RULES, frames) == 1
