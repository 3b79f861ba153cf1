"""Logs are read beside everything else, and past the end of their engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.config import Config
from gputop_llm.model import EngineLog, LogSignal
from gputop_llm.model.symptom import Severity
from gputop_llm.sampling.log_watch import KEPT_S, LAST_WORDS_S, MAX_LOGS, LogWatch
from gputop_llm.session import Session
from tests.support.clock import ManualClock
from tests.support.fake_sources import FakeNode, FakeSource, a_target, until

LAST = EngineLog(("/l",), signals=(LogSignal("died", Severity.CRITICAL, "Fatal Python error", 1.0),))


class Logs:
    """Makes a fake log for each target."""

    def __init__(self):
        self.made = {}

    def __call__(self, target):
        self.made[target.key] = FakeSource("log", EngineLog(("/l",)))
        self.made[target.key].target = target
        return self.made[target.key]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def logs():
    return Logs()


@pytest.fixture
def watch(logs, clock):
    one = LogWatch(logs, 0.01, clock)
    yield one
    one.close()


def values(watch):
    return {one.target_key: one.log.value for one in watch.parts()}


def test_last_words_are_read_after_the_end_and_kept(watch, logs, clock):
    engine = a_target()
    watch.look([engine], None)
    until(lambda: values(watch)[engine.key] is not None)
    watch.look([], None)
    logs.made[engine.key].answer = LAST
    # Time for another look.
    clock.step(1.0)
    watch.pollers()[0].hurry()
    until(lambda: values(watch)[engine.key] == LAST)
    clock.step(LAST_WORDS_S)
    watch.look([], None)
    assert watch.pollers() == []
    until(lambda: logs.made[engine.key].closes)
    assert values(watch) == {engine.key: LAST}
    clock.step(KEPT_S)
    watch.look([], None)
    assert watch.parts() == ()


def test_engines_with_processes_are_read_and_a_program_only_in_focus(watch, logs):
    engine = a_target()
    remote, program = replace(engine, key="remote", processes=()), replace(engine, key="program", engine="cuda")
    watch.look([engine, remote, program], None)
    assert set(logs.made) == {engine.key}
    watch.look([engine, remote, program], "program")
    assert set(logs.made) == {engine.key, "program"}


def test_the_number_of_logs_is_bounded_and_the_focus_is_among_them(watch, logs):
    many = [replace(a_target(), key=f"k{at}") for at in range(3 * MAX_LOGS)]
    watch.look(many, many[-1].key)
    assert len(logs.made) == MAX_LOGS
    assert many[-1].key in logs.made


def test_a_source_is_told_of_new_processes(watch, logs):
    engine = a_target()
    watch.look([engine], None)
    later = replace(engine, notes=("more processes",))
    watch.look([later], None)
    assert logs.made[engine.key].target is later


def test_a_log_that_hangs_keeps_no_frame_waiting(logs):
    node = FakeNode(targets=(a_target(),))

    def hanging(target):
        made = logs(target)
        made.hanging = made.obeys_abort = False
        made.hanging = True
        return made

    session = Session(Config(period_s=0.05), replace(node.sources, logs=hanging))
    session.start()
    try:
        frame = until(lambda: (f := session.latest) and f.logs and f.seq > 5 and f)
        assert frame.logs[0].log.value is None
        next(iter(logs.made.values())).release()
        until(lambda: session.latest.logs[0].log.value == EngineLog(("/l",)))
    finally:
        session.stop()
