"""When symptoms held, and where their figures go."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.symptom import Severity, Subject
from gputop_llm.symptoms.log import KEPT_S, MOST, SymptomLog
from gputop_llm.symptoms.trend import trend
from tests.support.symptom_reports import a_symptom

AT = 1_795_968_500.0
KV = a_symptom("kv-pressure", since_s=AT)


def test_a_time_begins_with_the_condition_and_ends_with_the_symptom():
    log = SymptomLog()
    (held,) = log.update([KV], AT + 10)
    assert (held.key, held.since_s, held.until_s) == (KV.key, AT, None)
    (held,) = log.update([KV], AT + 50)
    assert held.until_s is None
    for later in (60, 100):
        (held,) = log.update([], AT + later)
        assert (held.since_s, held.until_s) == (AT, AT + 60)


def test_each_time_of_the_same_symptom_is_one_of_its_own():
    log = SymptomLog()
    log.update([KV], AT + 10)
    log.update([], AT + 20)
    again = log.update([a_symptom("kv-pressure", since_s=AT + 100)], AT + 110)
    assert [(h.since_s, h.until_s) for h in again] == [(AT, AT + 20), (AT + 100, None)]


def test_it_keeps_the_worst_severity_and_the_last_headline_of_that_time():
    log = SymptomLog()
    log.update([a_symptom(severity=Severity.WARNING, headline="bad")], AT)
    log.update([a_symptom(severity=Severity.CRITICAL, headline="worst")], AT + 1)
    log.update([a_symptom(severity=Severity.CRITICAL, headline="as bad, and newer")], AT + 2)
    (held,) = log.update([a_symptom(severity=Severity.WARNING, headline="better")], AT + 3)
    assert (held.severity, held.headline) == (Severity.CRITICAL, "as bad, and newer")


def test_what_ended_an_hour_ago_is_forgotten_and_what_still_holds_is_not():
    log = SymptomLog()
    other = a_symptom("ttft-high", since_s=AT)
    log.update([KV, other], AT)
    log.update([other], AT + 1)
    assert len(log.update([other], AT + KEPT_S)) == 2
    assert [h.id for h in log.update([other], AT + KEPT_S + 2)] == ["ttft-high"]


def test_the_number_is_bounded():
    log = SymptomLog()
    for i in range(3 * MOST):
        log.update([a_symptom("gpu-fault", since_s=AT + i, subject=Subject(f"gpu:{i}", ""))], AT + i)
    kept = log.update([], AT + 3 * MOST)
    assert len(kept) == MOST
    assert kept[-1].subject.key == f"gpu:{3 * MOST - 1}"
    many = [a_symptom("gpu-fault", subject=Subject(f"gpu:{i}", "")) for i in range(3 * MOST)]
    assert len(log.update(many, AT)) == MOST


@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.floats(-5, 100)), max_size=40))
def test_no_time_ends_before_it_began_even_when_the_clock_steps_back(steps):
    log, at = SymptomLog(), AT
    for active, passed in steps:
        at += passed
        for held in log.update([a_symptom(f"r{i}", since_s=at - 10) for i in active], at):
            assert held.until_s is None or held.until_s >= held.since_s


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([50.0] * 60, "steady"),
        ([50.0 + i for i in range(60)], "rising"),
        ([110.0 - i for i in range(60)], "falling"),
        ([0.0] * 60, "steady"),
        ([0.0] * 40 + [3.0] * 20, "rising"),
        ([50.0 + i / 60 * 4 for i in range(60)], "steady"),
        ([None] * 60, None),
        ([None] * 52 + [1.0] * 8, None),
        ([None] * 30 + [1.0 * i for i in range(30)], "rising"),
        ([], None),
        ([50.0] * 59 + [5000.0], "steady"),
    ],
)
def test_a_trend_is_what_one_sees_in_the_chart(values, expected):
    assert trend(values) == expected


def test_noise_has_no_trend():
    dice = random.Random(7)
    for _ in range(300):
        assert trend([dice.gauss(50, 20) for _ in range(60)]) == "steady"


@given(st.lists(st.floats(-1e6, 1e6) | st.none(), max_size=80))
def test_the_trend_of_the_mirror_image_is_the_opposite(values):
    opposite = {"rising": "falling", "falling": "rising", "steady": "steady", None: None}
    assert trend([None if v is None else -v for v in values]) == opposite[trend(values)]
