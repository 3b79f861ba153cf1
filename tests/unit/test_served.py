"""What each engine serves is read once, beside everything else, whatever the reading does."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from gputop_llm import session as session_module
from gputop_llm.config import Config
from gputop_llm.model import Target
from gputop_llm.modelmath import Parallel, ServedModel
from gputop_llm.sampling.history import History
from gputop_llm.served import MAX_READERS, RETRY_S, ServedModels
from gputop_llm.session import Session
from tests.support.clock import ManualClock
from tests.support.fake_sources import FakeNode, a_target, until
from tests.support.models import shape
from tests.support.symptom_frames import KEY, busy

LLAMA = ServedModel(shape("llama-3.1-8b"), Parallel(), path="/m/config.json")
NOTHING = ServedModel(parallel=Parallel(), problem="no such file")


class Reader:
    """Answers what the test sets, and waits while it is told to."""

    def __init__(self, answer=LLAMA):
        self.answer = answer
        self.read = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, target):
        self.read.append(target.key)
        self.gate.wait(60)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def reader():
    one = Reader()
    yield one
    one.gate.set()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def models(reader, clock):
    return ServedModels(reader, Config(), History(), clock)


def target(key=KEY, engine="vllm"):
    return Target(key=key, engine=engine)


def limits(models):
    return models.limits(busy(1)[0]).engines[0].limits


def known(models):
    return until(lambda: limits(models).mbu.value_pct is not None)


def test_an_engine_is_read_once(models, reader):
    models.look([target()])
    known(models)
    for _ in range(5):
        models.look([target()])
    assert reader.read == [KEY]


def test_until_it_is_read_the_limits_are_unknown(models, reader):
    reader.gate.clear()
    models.look([target()])
    assert limits(models).mbu.unknown == "the model's config.json has not been read yet"
    reader.gate.set()
    known(models)


def test_processes_that_are_no_engine_are_not_read(models, reader):
    models.look([target(engine="cuda")])
    assert reader.read == []


def test_a_reading_that_never_ends_delays_nobody(models, reader):
    reader.gate.clear()
    models.look([target("stuck")])
    reader.gate = threading.Event()
    reader.gate.set()
    models.look([target("stuck"), target()])
    known(models)


def test_readings_that_never_end_are_bounded(models, reader):
    reader.gate.clear()
    for n in range(3 * MAX_READERS):
        models.look([target(f"restarted {n}")])
    until(lambda: len(reader.read) == MAX_READERS)
    assert sum(thread.name.startswith("model of restarted") for thread in threading.enumerate()) == MAX_READERS


def test_a_reading_that_fails_is_told_and_the_rest_goes_on(models, reader):
    reader.answer = RuntimeError("a bug")
    models.look([target()])
    found = until(lambda: "RuntimeError" in (limits(models).mbu.unknown or "") and limits(models))
    assert found.mbu.unknown.startswith("reading its config.json failed: RuntimeError (see the log)")


def test_a_model_that_was_not_there_is_looked_for_again(models, reader, clock):
    reader.answer = NOTHING
    models.look([target()])
    until(lambda: "no such file" in (limits(models).mbu.unknown or ""))
    models.look([target()])
    assert reader.read == [KEY]
    reader.answer = LLAMA
    clock.step(RETRY_S)
    models.look([target()])
    known(models)
    assert reader.read == [KEY, KEY]


def test_engines_that_are_gone_are_forgotten_and_read_anew(models, reader):
    models.look([target()])
    known(models)
    models.look([])
    assert limits(models).mbu.unknown == "the model's config.json has not been read yet"
    models.look([target()])
    known(models)
    assert reader.read == [KEY, KEY]


def test_without_a_reader_there_are_no_limits(clock):
    assert limits(ServedModels(None, Config(), History(), clock)) is None


def test_a_frame_that_can_not_be_estimated_is_shown_without(models, reader, monkeypatch):
    models.look([target()])
    known(models)
    monkeypatch.setattr("gputop_llm.symptoms.mbu_mfu.estimate", lambda *_: 1 / 0)
    frame = busy(1)[0]
    assert models.limits(frame) is frame


# -- in a session --------------------------------------------------------------


@pytest.fixture
def session(reader, monkeypatch):
    monkeypatch.setattr(session_module, "DISCOVERY_PERIOD_S", 0.05)
    node = FakeNode((replace(a_target(), argv=("vllm", "serve", "m")),))
    one = Session(Config(period_s=0.05), replace(node.sources, model=reader))
    yield one
    one.stop()


def test_a_session_reads_a_new_engine_and_puts_its_limits_into_every_frame(session, reader):
    session.start()
    frame = until(lambda: (f := session.latest) and f.engines and f.engines[0].limits and f)
    assert frame.engines[0].limits.mbu.name == "MBU"
    until(lambda: "has not been read" not in (session.latest.engines[0].limits.mbu.unknown or ""))
    until(lambda: session.history.frames(1)[-1].engines[0].limits is not None)
    assert reader.read == [a_target().key]


def test_a_container_that_never_answers_stops_no_frame_and_no_end(session, reader):
    reader.gate.clear()
    session.start()
    until(lambda: (f := session.latest) and f.seq > 5 and f.engines and f.engines[0].window)
    before = session._discovery.part().polls
    until(lambda: session._discovery.part().polls > before + 2)
    session.stop()
    assert not session._thread.is_alive()
