"""Who is told what, and how often: one event per root, bounded, and the last one is always the truth."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.symptom import Severity, Subject
from gputop_llm.notify.announcer import EACH_S, MOST, Announcer, Event
from tests.support.symptom_reports import a_report, a_symptom

KV = a_symptom("kv-pressure", Severity.CRITICAL)
TTFT = a_symptom("ttft-high")


def told(reports, every_s: float = 1.0) -> list[tuple[float, Event]]:
    """(second, event) of all that is told of these reports, one a second."""
    announcer = Announcer()
    return [
        (i * every_s, event)
        for i, report in enumerate(reports)
        for event in announcer.update(report, 5000.0 + i * every_s, 1.7e9 + i * every_s)
    ]


def short(events) -> list[tuple[float, bool, str]]:
    return [(at, event.raised, event.symptom.id) for at, event in events]


def test_a_symptom_is_told_once_when_raised_and_once_when_cleared():
    events = told([a_report()] * 5 + [a_report(KV)] * 100 + [a_report()] * 100)
    assert short(events) == [(5, True, "kv-pressure"), (105, False, "kv-pressure")]
    assert [event.at_s for _, event in events] == [1.7e9 + 5, 1.7e9 + 105]
    assert [event.dropped for _, event in events] == [0, 0]


def test_notes_are_not_told():
    assert told([a_report(a_symptom("bandwidth-bound", Severity.NOTE))] * 5) == []


def test_a_root_speaks_for_what_it_explains():
    below = a_symptom("ttft-high", root=KV.key)
    ((_, event),) = told([a_report(KV, below)] * 20)
    assert event.symptom.id == "kv-pressure"
    assert event.explains == (below.key,)


def test_what_was_told_before_its_root_was_found_is_also_told_when_it_clears():
    below = a_symptom("ttft-high", root=KV.key)
    events = told([a_report(TTFT)] * 3 + [a_report(KV, below)] * 80 + [a_report(KV)] * 20 + [a_report()] * 20)
    assert short(events) == [
        (0, True, "ttft-high"), (3, True, "kv-pressure"), (83, False, "ttft-high"), (103, False, "kv-pressure"),
    ]  # fmt: skip


def test_what_is_left_when_its_root_has_gone_is_told():
    below = a_symptom("ttft-high", root=KV.key)
    events = told([a_report(KV, below)] * 70 + [a_report(TTFT)] * 20)
    assert short(events) == [(0, True, "kv-pressure"), (70, True, "ttft-high"), (70, False, "kv-pressure")]


def test_a_change_that_comes_too_soon_is_told_later():
    events = told([a_report(KV)] * 20 + [a_report()] * 100)
    assert short(events) == [(0, True, "kv-pressure"), (EACH_S, False, "kv-pressure")]


def test_a_symptom_that_flaps_is_told_at_most_once_a_minute_and_ends_with_the_truth():
    flapping = [a_report(KV) if i // 7 % 2 == 0 else a_report() for i in range(600)]
    events = told([*flapping, *[a_report()] * 200])
    times = [at for at, _ in events]
    assert all(b - a >= EACH_S for a, b in itertools.pairwise(times))
    assert [e.raised for _, e in events] == [i % 2 == 0 for i in range(len(events))]
    assert not events[-1][1].raised
    changes = 1 + 600 // 7
    untold = changes - len(events) - sum(e.dropped for _, e in events)
    assert 0 <= untold < 10
    assert untold % 2 == 0, "what was undone since the last event"


def test_a_raise_that_is_undone_before_it_may_be_told_is_left_out_and_counted():
    # Told at 0, cleared at 20, back at 30: the world knows that it is raised, and it is.
    events = told([a_report(KV)] * 20 + [a_report()] * 10 + [a_report(KV)] * 100 + [a_report()] * 5)
    assert short(events) == [(0, True, "kv-pressure"), (130, False, "kv-pressure")]
    assert events[1][1].dropped == 2


def test_a_flood_is_cut_to_ten_a_minute_worst_first_and_the_rest_follows():
    many = [
        a_symptom(
            "gpu-fault", Severity.CRITICAL if i >= 20 else Severity.WARNING, subject=Subject(f"gpu:{i}", f"GPU {i}")
        )
        for i in range(25)
    ]
    events = told([a_report(*many)] * 200)
    assert Counter(at // 60 for at, _ in events) == {0: 10, 1: 10, 2: 5}
    assert {e.symptom.severity for _, e in events[:5]} == {Severity.CRITICAL}
    assert {e.symptom.severity for _, e in events[5:]} == {Severity.WARNING}
    assert len({e.symptom.key for _, e in events}) == 25


def test_what_clears_before_its_turn_came_is_never_told_but_counted():
    many = [a_symptom("gpu-fault", subject=Subject(f"gpu:{i}", f"GPU {i}")) for i in range(15)]
    events = told([a_report(*many)] * 10 + [a_report(*many[:10])] * 50 + [a_report(*many[:10], KV)] * 30)
    assert len(events) == 11
    assert events[-1][1].symptom.id == "kv-pressure"
    assert events[-1][1].dropped == 2 * 5


def test_the_severity_and_headline_of_a_clear_are_the_last_ones():
    worse = a_symptom("kv-pressure", Severity.CRITICAL, headline="worse")
    events = told([a_report(a_symptom("kv-pressure"))] * 30 + [a_report(worse)] * 40 + [a_report()] * 5)
    assert [(e.raised, e.symptom.headline) for _, e in events] == [
        (True, "kv-pressure: 99 % full, 7 waiting"),
        (False, "worse"),
    ]


def test_what_is_over_and_told_is_forgotten():
    announcer = Announcer()
    for i in range(2000):
        symptom = a_symptom("gpu-fault", subject=Subject(f"gpu:{i}", f"GPU {i}"))
        announcer.update(a_report(symptom) if i < 1000 else a_report(), 10.0 * i, 1e9)
    assert announcer._known == {}


@given(st.lists(st.sets(st.integers(0, 30), max_size=31), max_size=40), st.sampled_from([1.0, 5.0, 31.0]))
def test_the_limits_hold_whatever_happens_and_in_the_end_the_world_knows_the_truth(states, every_s):
    symptoms = [a_symptom("gpu-fault", subject=Subject(f"gpu:{i}", f"GPU {i}")) for i in range(31)]
    quiet = [set(states[-1])] * int(400 / every_s) if states else []
    events = told([a_report(*(symptoms[i] for i in sorted(state))) for state in states + quiet], every_s)
    world: dict[str, bool] = {}
    at_by_key: dict[str, float] = {}
    for position, (at, event) in enumerate(events):
        key = event.symptom.key
        assert event.raised != world.get(key, False), "each event tells something new"
        assert at - at_by_key.get(key, -1e9) >= EACH_S
        assert sum(at - before < 60.0 for before, _ in events[:position]) < MOST
        world[key], at_by_key[key] = event.raised, at
    if states:
        assert {key for key, on in world.items() if on} == {symptoms[i].key for i in states[-1]}
