"""The machinery around the rules: readings that move on with the ticks, evidence in turns, trends, what is pending."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.model import Frame, Target, TargetList
from gputop_llm.model.symptom import Severity, Subject
from gputop_llm.symptoms.checks import Check, State
from gputop_llm.symptoms.compose import Composer, compose
from gputop_llm.symptoms.engine import Rule, SymptomEngine
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.names import TargetNames
from gputop_llm.symptoms.state import REMADE, SymptomState
from gputop_llm.symptoms.timeline import Timeline
from gputop_llm.symptoms.view import NodeView
from tests.support.symptom_frames import busy
from tests.support.symptom_reports import ENGINE, a_symptom

NO_LIMITS = Limits(())


def seen(timeline: Timeline) -> tuple:
    """What a timeline shows, by identity."""
    return (
        {index: [(at, id(gpu)) for at, gpu in past] for index, past in timeline.gpus.items()},
        {key: [(at, id(engine)) for at, engine in past] for key, past in timeline.engines.items()},
    )


def changing_node(steps: list[int]) -> list[Frame]:
    """Frames whose GPUs and engines come and go, and whose readings are sometimes those of the frame before."""
    made: list[Frame] = []
    for i, step in enumerate(steps):
        (frame,) = busy(1, start=i, gpus=1 + step % 3)
        if step % 5 == 0:
            frame = replace(frame, engines=())
        elif step % 5 == 1:
            frame = replace(frame, engines=tuple(replace(e, target_key=f"other-{step}") for e in frame.engines))
        if step % 7 == 0:
            frame = replace(frame, gpus=replace(frame.gpus, value=None))
        made.append(frame)
    return made


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(1, 8), st.sets(st.integers(0, 24)))
def test_a_timeline_that_moved_on_shows_what_a_new_one_shows(steps, kept, skipped):
    frames = changing_node(steps)
    moved = Timeline()
    for i in range(len(frames)):
        window = frames[max(0, i - kept + 1) : i + 1]
        if i in skipped:
            continue
        assert seen(moved.move(window)) == seen(Timeline().move(window))


def test_a_reading_that_several_frames_show_is_one():
    frames = busy(5)
    frames = [replace(f, gpus=frames[0].gpus) if i < 3 else f for i, f in enumerate(frames)]
    view = NodeView(frames)
    assert [at - frames[0].mono_s for at, _ in view.gpus[0].past] == [0, 3, 4]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=25), st.integers(1, 20))
def test_what_is_kept_of_a_reading_is_what_would_be_made_of_it_now(steps, kept):
    frames = changing_node(steps)
    timeline = Timeline()
    for i in range(len(frames)):
        view = NodeView(
            frames[max(0, i - kept + 1) : i + 1], timeline=timeline.move(frames[max(0, i - kept + 1) : i + 1])
        )
        for gpu in view.gpus.values():
            assert gpu.each("identity", id) == [id(reading) for _, reading in gpu.readings()]


def test_the_order_of_symptoms_is_worked_out_anew_when_one_gets_worse():
    composer = Composer()
    kv, fault = a_symptom("kv-pressure"), a_symptom("spec-decode-weak")
    assert [s.id for s in composer.compose([kv, fault], {})] == [s.id for s in compose([kv, fault], {})]
    worse = replace(fault, severity=Severity.CRITICAL)
    better = replace(kv, severity=Severity.NOTE)
    assert composer.compose([better, worse], {}) == compose([better, worse], {}) == (worse, better)
    new = replace(worse, headline="newer")
    assert composer.compose([better, new], {})[0] is new


def test_what_was_raised_of_an_engine_that_is_gone_ends_with_it_and_of_its_gpus_too():
    def run(view, limits):
        for engine in view.engines:
            for subject in (engine.subject, *(gpu.subject for gpu in engine.gpus)):
                yield Check("kv-pressure", subject, State.RAISED, make=lambda s=subject: a_symptom(subject=s))

    engine = SymptomEngine((Rule("kv-pressure", "", run),), NO_LIMITS)
    frames = [
        f if i < 20 else replace(f, engines=(), targets=replace(f.targets, value=TargetList()))
        for i, f in enumerate(busy(40))
    ]
    active = [len(engine.update(frames[: i + 1]).active) for i in range(40)]
    assert active[12:29] == [2] * 17
    assert active[29:] == [0] * 11


def test_engines_that_serve_the_same_are_told_apart_by_address():
    def twice(frame, _s):
        (engine,), (target,) = frame.engines, frame.targets.value.targets
        other = replace(target, key="other", urls=("http://127.0.0.1:8001",), root_pid=7)
        return replace(
            frame,
            engines=(engine, replace(engine, target_key="other", url="http://127.0.0.1:8001")),
            targets=replace(frame.targets, value=TargetList((target, other))),
        )

    one, two = (e.subject.label for e in NodeView(busy(1, edit=twice)).engines)
    assert (one, two) == ("vllm /models/llama-8b at :8000", "vllm /models/llama-8b at :8001")
    (alone,) = NodeView(busy(1)).engines
    assert alone.subject.label == "vllm /models/llama-8b"


def checks_of(names: str, made: list[str], state: State = State.RAISED) -> list[Check]:
    """A check for each letter; `made` notes whose evidence was gathered."""

    def make(name: str):
        made.append(name)
        return a_symptom("kv-pressure", subject=Subject(name, name), headline=str(len(made)))

    return [Check("kv-pressure", Subject(n, n), state, make=lambda n=n: make(n)) for n in names]


def test_the_evidence_of_few_symptoms_is_renewed_each_tick():
    state, made = SymptomState(NO_LIMITS), []
    for second in range(15):
        raised, _ = state.update(checks_of("abc", made), 100.0 + second, 1e9 + second)
    assert made == ["a", "b", "c"] * 5
    assert [s.headline for s in raised] == ["13", "14", "15"]


def test_of_many_symptoms_a_few_are_renewed_each_tick_in_turns_but_each_is_made_at_once():
    names = "".join(chr(97 + i) for i in range(3 * REMADE))
    state, made = SymptomState(NO_LIMITS), []
    for second in range(11):
        raised, _ = state.update(checks_of(names, made), 100.0 + second, 1e9)
    assert made == list(names)
    assert len(raised) == len(names)
    for second in range(11, 14):
        before = len(made)
        raised, _ = state.update(checks_of(names, made), 100.0 + second, 1e9)
        assert len(made) - before == REMADE
        assert [s.subject.key for s in raised] == list(names), "shown all the same"
    assert sorted(made) == sorted(names * 2), "each was renewed once"


def test_a_symptom_gets_worse_at_once_and_better_when_it_was_no_worse_for_its_clear_time():
    state, shown = SymptomState(NO_LIMITS), []
    _, clear_s = NO_LIMITS.hold("kv-pressure")
    made = [Severity.NOTE] * 12 + [Severity.WARNING, Severity.NOTE] * 5 + [Severity.NOTE] * 40
    for second, severity in enumerate(made):
        check = Check("kv-pressure", ENGINE, State.RAISED, make=partial(a_symptom, "kv-pressure", severity))
        raised, _ = state.update([check], 100.0 + second, 1e9)
        shown += [symptom.severity for symptom in raised]
    worse = shown.index(Severity.WARNING)
    better = shown.index(Severity.NOTE, worse)
    assert made[10:][worse] is Severity.WARNING
    assert made[10:][worse - 1] is Severity.NOTE
    assert better - worse == 8 + clear_s, "8 s from the first warning to the last"
    assert set(shown[better:]) == {Severity.NOTE}


def test_what_holds_is_pending_until_it_is_raised():
    state, made = SymptomState(NO_LIMITS), []
    for second in range(12):
        raised, _ = state.update(checks_of("a", made), 100.0 + second, 1e9 + second)
        assert bool(raised) == (second >= 10)
        assert [s.since_s for s in state.pending()] == ([] if raised else [1e9])
    state.update(checks_of("a", made, State.CLEAR), 112.0, 1e9)
    assert list(state.suspected()) == [("kv-pressure", "a")], "until it is cleared"


def test_a_trend_is_worked_out_once_per_renewal_and_only_with_a_chart():
    asked: list[str] = []

    def series(name: str, points: int) -> list[float]:
        asked.append(name)
        return [float(i) for i in range(points)]

    def run(view, limits):
        yield Check("kv-pressure", Subject("a", "a"), State.RAISED, make=lambda: a_symptom(chart="x"))
        yield Check(
            "kv-pressure",
            Subject("b", "b"),
            State.RAISED,
            make=lambda: a_symptom(chart=None, subject=Subject("b", "b")),
        )

    engine = SymptomEngine((Rule("kv-pressure", "", run),), NO_LIMITS)
    frames = busy(12)
    reports = [engine.update(frames[: i + 1], series) for i in range(12)]
    assert {s.subject.key: s.trend for s in reports[-1].active} == {a_symptom().subject.key: "rising", "b": None}
    assert asked == ["x", "x"]


@pytest.mark.parametrize("rule", ["kv-pressure", "gpu-fault"])
def test_while_the_engine_warms_up_other_symptoms_are_held_back_and_say_why(rule):
    def run(view, limits):
        engine = view.engines[0].subject
        yield Check("warming-up", engine, State.RAISED, make=lambda: a_symptom("warming-up", subject=engine))
        yield Check(rule, engine, State.RAISED, make=lambda: a_symptom(rule, subject=engine))

    engine = SymptomEngine((Rule("x", "", run),), NO_LIMITS)
    frames = busy(12)
    report = [engine.update(frames[: i + 1]) for i in range(12)][-1]
    held = [(s.id, s.held_back) for s in report.held_back]
    assert held == ([("kv-pressure", "the engine is warming up")] if rule == "kv-pressure" else [])
    assert {s.id for s in report.active} == {"warming-up", rule} - {s.id for s in report.held_back}
    assert {h.id for h in report.log} == {s.id for s in report.active}


def test_an_engine_that_is_known_by_its_address_only_is_called_by_it():
    remote = Target("url:x", "unknown", urls=("http://gpu7:8000",), urls_from="flag")
    assert TargetNames([remote]).subject(remote).label == "engine at gpu7:8000"
