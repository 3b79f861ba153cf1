"""An armed capture: fires once each time that its symptom is raised, within its budget, and for its own target only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.armed import Armed, Budget, budget_of, evidence_of, symptom_named
from gputop_llm.errors import UsageError
from gputop_llm.model.symptom import Evidence, Severity, Subject, Symptom, SymptomReport
from tests.support import frames

FRAME = replace(frames.one_gpu_loaded(), symptoms=SymptomReport())
TARGET = FRAME.focused


def symptom(id_="stalled", subject=None, since_s=0.0):
    evidence = (Evidence("no token for", 12.0, "s", "engine", threshold=10.0, threshold_origin="default"),)
    key = subject or f"engine:{TARGET.key}"
    return Symptom(
        id_, Subject(key, "vLLM"), Severity.CRITICAL, "no token for 12 s", evidence, (), (), "", since_s=since_s
    )


def at(seconds, *active):
    """The frame `seconds` after the first, with these symptoms raised."""
    return replace(
        FRAME,
        mono_s=FRAME.mono_s + seconds,
        at_s=FRAME.at_s + seconds,
        symptoms=SymptomReport(active=active),
    )


def armed(held_s=0.0, **budget):
    return Armed("stalled", held_s, Budget(**budget), FRAME.mono_s)


def fires(one, *steps):
    """The seconds at which it fired."""
    return [seconds for seconds, *active in steps if one.look(at(seconds, *active)) is not None]


def test_it_fires_once_while_the_symptom_holds():
    one = armed(captures=2)

    assert fires(one, (0,), (1, symptom()), (2, symptom()), (3, symptom())) == [1]


def test_it_fires_again_only_after_the_symptom_had_cleared():
    one = armed(captures=3)

    assert fires(one, (1, symptom()), (2, symptom()), (3,), (4, symptom()), (5, symptom())) == [1, 4]


def test_it_fires_no_more_when_its_captures_are_spent():
    one = armed()
    assert fires(one, (1, symptom())) == [1]
    one.took(1000)

    assert one.state == "spent"
    assert fires(one, (2,), (3, symptom())) == []


def test_it_waits_until_the_condition_has_held_for_as_long_as_asked():
    one = armed(held_s=10.0)
    since_s = FRAME.at_s + 5.0

    assert fires(one, *((seconds, symptom(since_s=since_s)) for seconds in range(5, 20))) == [15]


def test_it_gives_up_after_its_wait():
    one = armed(wait_s=60.0)

    assert fires(one, (60,), (61, symptom()), (62, symptom())) == []
    assert one.state == "expired"


def test_its_bytes_are_a_budget_too():
    one = armed(captures=10, disk_bytes=1000)
    one.took(600)
    assert (one.state, one.left_bytes()) == ("waiting", 400)
    one.took(600)

    assert (one.state, one.left_bytes()) == ("spent", 0)


def test_other_symptoms_and_other_engines_do_not_fire_it():
    one = armed()
    other = symptom(subject="engine:another")

    assert fires(one, (1, symptom("ttft-high")), (2, other), (3, symptom(subject="gpu:7"))) == []
    rank = symptom(subject=f"engine:{TARGET.key}/rank:1")
    assert fires(one, (4, rank)) == [4]


def test_symptoms_of_its_gpus_and_of_the_node_fire_it():
    for subject in (f"gpu:{TARGET.gpus[0]}", f"gpu:{TARGET.gpus[0]}/mig:2", "node"):
        assert fires(armed(), (1, symptom(subject=subject))) == [1]


def test_it_does_not_fire_while_no_engine_is_there():
    gone = replace(at(1, symptom()), focus=None)

    assert gone.focused is None
    assert armed().look(gone) is None


def test_a_capture_that_failed_is_tried_again_a_little_later_but_not_for_ever():
    one = armed()
    tried = []
    for seconds in range(200):
        if one.look(at(seconds, symptom())) is not None:
            tried.append(seconds)
            one.failed(FRAME.mono_s + seconds)

    assert tried == [0, 30, 60]
    assert one.state == "failed"


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("captures=3", Budget(captures=3)),
        ("wait=12h", Budget(wait_s=43_200.0)),
        ("disk=2G", Budget(disk_bytes=2 << 30)),
        ("captures=2, wait=90m, disk=500MiB", Budget(2, 5400.0, 500 << 20)),
    ],
)
def test_a_budget_is_read(text, budget):
    assert budget_of(text) == budget


@pytest.mark.parametrize(
    "text", ["", "captures=0", "captures=x", "wait=12", "wait=0h", "disk=2", "speed=3", "captures"]
)
def test_a_budget_that_cannot_be_read_is_said(text):
    with pytest.raises(UsageError, match="the budget can't be read"):
        budget_of(text)


def test_an_unknown_symptom_is_said_with_those_there_are():
    with pytest.raises(UsageError, match="name one of stalled, ttft-high"):
        symptom_named("stall", {"ttft-high", "stalled"})


def test_what_is_written_down_has_the_numbers_that_proved_it():
    told = evidence_of(symptom(since_s=5.0), 3.0, 20.0)

    assert (told["symptom"], told["severity"], told["since_s"], told["fired_s"]) == ("stalled", "critical", 5.0, 20.0)
    assert told["evidence"][0]["value"] == 12.0
    assert told["evidence"][0]["threshold"] == 10.0
