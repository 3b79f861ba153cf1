"""The session with real threads and sources that misbehave: what one does must not stop the others."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from gputop_llm import session as session_module
from gputop_llm.config import Config
from gputop_llm.errors import SourceError, UsageError
from gputop_llm.model import EngineReading, Frame
from gputop_llm.session import Session, Sources
from tests.support.fake_sources import FakeNode, a_target, an_engine_reading, until

URL = "http://127.0.0.1:8000"
OTHER = a_target(5000, 8001, model="org/model-b")


@pytest.fixture(autouse=True)
def _look_around_often(monkeypatch):
    monkeypatch.setattr(session_module, "DISCOVERY_PERIOD_S", 0.05)


@pytest.fixture
def watching():
    """Makes started sessions, and stops them at the end."""
    sessions: list[tuple[Session, FakeNode]] = []

    def make(node: FakeNode, on_frame=None, sources: Sources | None = None, **settings) -> Session:
        session = Session(Config(**{"period_s": 0.05, **settings}), sources or node.sources)
        sessions.append((session, node))
        session.start(on_frame)
        return session

    yield make
    for session, node in sessions:
        for source in (node.gpus, node.discovery, node.host, *node.engines.values()):
            source.release()
        session.stop()


def frame_with(session: Session, check) -> Frame:
    """Waits for a frame that `check` is true of."""
    return until(lambda: (f := session.latest) is not None and check(f) and f)


# -- frames --------------------------------------------------------------------


def test_a_frame_has_every_part_with_its_own_time(watching):
    session = watching(FakeNode((a_target(),)))
    frame = frame_with(session, lambda f: f.host.value and f.engines and f.engines[0].window)
    assert [g.index for g in frame.gpus.value.gpus] == [0, 1]
    assert frame.focused == a_target()
    assert frame.focused_engine.url == URL
    assert frame.focused_engine.window.total.running == 35
    for part in (frame.gpus, frame.host, frame.targets, frame.focused_engine.scrape):
        assert part.error is None
        assert part.at_s == pytest.approx(time.time(), abs=30)
        assert 0 <= part.age_s < 30


def test_frames_are_numbered_without_holes_and_handed_on_in_order(watching):
    seen: list[Frame] = []
    session = watching(FakeNode(), on_frame=seen.append)
    until(lambda: len(seen) >= 10)
    assert [f.seq for f in seen[:10]] == list(range(1, 11))
    assert [f.mono_s for f in seen] == sorted(f.mono_s for f in seen)
    assert session.latest.seq >= 10


def test_frames_keep_coming_at_the_period(watching):
    seen: list[Frame] = []
    watching(FakeNode(), on_frame=seen.append, period_s=0.25)
    until(lambda: len(seen) >= 9)
    times = [f.mono_s for f in seen[4:9]]
    assert (times[-1] - times[0]) / 4 == pytest.approx(0.25, rel=0.3)


def test_a_new_period_holds_for_the_next_frame_and_for_all_sources(watching):
    node = FakeNode((a_target(),))
    session = watching(node, period_s=600.0)
    until(lambda: node.engines and node.engines[URL].polls >= 2)
    before = session.latest.seq
    session.set_period(0.02)
    frame = frame_with(session, lambda f: f.seq > before + 5)
    assert frame.period_s == 0.02
    polls = [s.polls for s in (node.gpus, node.host, node.engines[URL])]
    until(lambda: all(s.polls > n + 2 for s, n in zip((node.gpus, node.host, node.engines[URL]), polls, strict=True)))


def test_frames_go_into_the_history(watching):
    session = watching(FakeNode((a_target(),)))
    frame_with(session, lambda f: f.engines and f.engines[0].window)
    until(lambda: session.history.series(f"engine.{a_target().key}.running", 1) == [35.0])
    assert session.history.series("gpu.1.util_pct", 1) == [98.0]


def was_judged(frame: Frame) -> bool:
    return bool(frame.symptoms and (frame.symptoms.judged or frame.symptoms.cant_tell))


def test_frames_are_judged_from_when_every_source_has_been_read_twice(watching):
    seen: list[Frame] = []
    session = watching(FakeNode((a_target(),)), on_frame=seen.append)
    frame_with(session, was_judged)
    first = next(f for f in seen if was_judged(f))
    assert first.seq > 1
    assert not any(f.symptoms is None for f in seen), "that is what a failure of the rules looks like"
    assert min(part.polls for part in (first.gpus, first.host, first.engines[0].scrape)) >= 2


def test_a_source_that_hangs_does_not_keep_frames_from_being_judged(watching, monkeypatch):
    monkeypatch.setattr(session_module, "JUDGED_FROM_S", 0.1)
    node = FakeNode((a_target(),))
    node.host.hanging = True
    assert frame_with(watching(node), was_judged).host.polls == 0


def test_a_demo_says_in_every_frame_that_it_is_simulated(watching):
    session = watching(FakeNode(simulated="simulated: healthy, seed 7"))
    assert frame_with(session, lambda f: True).simulated == "simulated: healthy, seed 7"


def test_a_listener_that_raises_does_not_end_the_frames(watching):
    seen: list[int] = []

    def listen(frame: Frame) -> None:
        seen.append(frame.seq)
        raise RuntimeError("the screen is gone")

    watching(FakeNode(), on_frame=listen)
    until(lambda: len(seen) >= 3)


def test_only_the_gpu_that_was_asked_for_is_shown(watching):
    session = watching(FakeNode(), gpu=1)
    assert [g.index for g in frame_with(session, lambda f: f.gpus.value).gpus.value.gpus] == [1]


# -- sources that misbehave ------------------------------------------------------


@pytest.mark.parametrize("part", ["gpus", "host", "discovery"])
def test_a_source_that_hangs_for_ever_leaves_the_others_running_and_says_for_how_long(watching, part):
    node = FakeNode((a_target(),))
    hung = getattr(node, part)
    hung.hanging, hung.deadline_s, hung.obeys_abort = True, 0.05, False
    session = watching(node, url=URL)
    shown = "targets" if part == "discovery" else part
    frame = frame_with(session, lambda f: getattr(f, shown).error and f.engines and f.engines[0].window)
    assert getattr(frame, shown).error.startswith(f"{hung.name} has not answered for ")
    assert hung.aborts == 1
    others = [s for s in (node.gpus, node.host, node.discovery) if s is not hung]
    polls = [s.polls for s in others]
    until(lambda: all(s.polls > n + 3 for s, n in zip(others, polls, strict=True)))
    assert hung.polls == 1


def test_an_engine_that_hangs_is_aborted_and_asked_again(watching):
    node = FakeNode((a_target(),))
    session = watching(node)
    frame_with(session, lambda f: f.engines and f.engines[0].scrape.value)
    engine = node.engines[URL]
    engine.deadline_s, engine.hanging = 0.05, True
    frame = frame_with(session, lambda f: f.engines[0].scrape.error)
    assert "has not answered" in frame.engines[0].scrape.error
    assert frame.engines[0].scrape.value is not None, "the last good value stays"
    engine.release()
    frame_with(session, lambda f: f.engines[0].scrape.error is None)


@pytest.mark.parametrize("failure", [SourceError("cannot read it", "it is gone"), ValueError("a bug"), KeyError("x")])
@pytest.mark.parametrize("part", ["gpus", "host", "discovery"])
def test_a_source_that_raises_is_an_error_in_its_part_alone(watching, part, failure):
    node = FakeNode((a_target(),))
    getattr(node, part).answer = failure
    session = watching(node)
    shown = "targets" if part == "discovery" else part
    frame = frame_with(session, lambda f: getattr(f, shown).error and f.seq > 6)
    if isinstance(failure, SourceError):
        assert getattr(frame, shown).error == "cannot read it: it is gone"
    else:
        assert type(failure).__name__ in getattr(frame, shown).error
    others = [
        p for name, p in (("gpus", frame.gpus), ("host", frame.host), ("targets", frame.targets)) if name != shown
    ]
    assert all(p.error is None and p.value is not None for p in others)


def test_an_engine_that_can_not_be_asked_at_all_says_why(watching):
    node = FakeNode((a_target(),))

    def metrics(url: str):
        raise UsageError("cannot use the CA file ca.pem", "it holds no certificate")

    session = watching(node, sources=replace(node.sources, metrics=metrics))
    frame = frame_with(session, lambda f: f.engines and f.engines[0].scrape.error)
    assert frame.engines[0].scrape.error == "cannot use the CA file ca.pem: it holds no certificate"


def test_a_slow_engine_is_asked_less_often_and_the_frame_says_at_what_period(watching):
    node = FakeNode((a_target(),))

    def slow() -> EngineReading:
        time.sleep(0.1)
        return an_engine_reading()

    node.engine_answer = slow
    session = watching(node)
    frame = frame_with(session, lambda f: f.engines and f.engines[0].scrape.polls)
    assert frame.engines[0].scrape.period_s == pytest.approx(5 * frame.engines[0].scrape.took_s)
    assert session.period_s == frame.period_s == 0.05


@pytest.mark.parametrize("hung_parts", [["gpus"], ["gpus", "host", "discovery"]])
def test_stop_returns_within_a_second_even_with_hung_sources(watching, hung_parts):
    node = FakeNode()
    for part in hung_parts:
        getattr(node, part).hanging = True
        getattr(node, part).obeys_abort = False
    session = watching(node)
    until(lambda: all(getattr(node, part).polls for part in hung_parts))
    began = time.monotonic()
    session.stop()
    assert time.monotonic() - began < 1.0


def test_stop_twice_is_fine_and_nothing_runs_or_stays_open_afterwards(watching):
    node = FakeNode((a_target(),))
    session = watching(node)
    frame_with(session, lambda f: f.engines)
    session.stop()
    session.stop()
    assert not [t.name for t in threading.enumerate() if t.name == "session" or t.name.startswith("poll ")]
    assert [s.closes for s in (node.gpus, node.host, node.discovery, node.engines[URL])] == [1, 1, 1, 1]
    last = session.latest
    assert session.latest is last


def test_sessions_that_start_and_stop_at_once_leave_no_thread_behind():
    before = threading.active_count()
    for _ in range(30):
        node = FakeNode((a_target(),))
        session = Session(Config(period_s=0.01), node.sources)
        session.start()
        session.stop()
    until(lambda: threading.active_count() <= before)


def test_a_session_that_never_started_can_be_stopped():
    node = FakeNode()
    Session(Config(), node.sources).stop()
    assert node.gpus.closes == 1


# -- following -------------------------------------------------------------------


def test_a_target_that_exits_and_comes_back_is_attached_again_with_a_note(watching):
    node = FakeNode((a_target(),))
    session = watching(node)
    frame = frame_with(session, lambda f: f.focus)
    assert frame.notes == ("attached to vllm org/model-a (pid 4711)",)
    node.set_targets()
    frame = frame_with(session, lambda f: f.focused is None)
    assert frame.notes[-1] == "vllm org/model-a (pid 4711) has exited; waiting for it to come back"
    assert frame.engines == ()
    until(lambda: node.engines[URL].closes == 1)
    node.set_targets(a_target(9000))
    frame = frame_with(session, lambda f: f.focused is not None)
    assert frame.focused.root_pid == 9000
    assert frame.notes[-1] == "re-attached to vllm org/model-a (pid 9000)"
    assert [text for _, text in session.events] == list(frame.notes)
    frame_with(session, lambda f: f.focused_engine and f.focused_engine.window)


def test_a_discovery_that_fails_for_once_is_no_exit(watching):
    node = FakeNode((a_target(),))
    session = watching(node)
    frame_with(session, lambda f: f.focus)
    node.discovery.answer = SourceError("cannot look around")
    frame = frame_with(session, lambda f: f.targets.error)
    assert frame.focused == a_target()


def test_of_several_candidates_none_is_in_focus_until_one_is_attached_to(watching):
    node = FakeNode((a_target(), OTHER))
    session = watching(node)
    frame = frame_with(session, lambda f: len(f.engines) == 2 and f.seq > 5)
    assert frame.focus is None
    session.attach("no such key")
    session.attach(OTHER.key)
    assert frame_with(session, lambda f: f.focus).focused == OTHER


def test_a_pid_puts_its_target_in_focus(watching):
    session = watching(FakeNode((a_target(), OTHER)), pid=5001)
    assert frame_with(session, lambda f: f.focus).focused == OTHER


def test_a_gpu_puts_its_target_in_focus(watching):
    other = replace(OTHER, processes=(replace(OTHER.processes[1], gpus=(1,)),))
    session = watching(FakeNode((a_target(), other)), gpu=1)
    assert frame_with(session, lambda f: f.focus).focused == other


def test_a_remote_url_is_a_target_beside_those_of_this_node(watching):
    node = FakeNode((a_target(),))
    session = watching(node, url="http://gpu-7:8000")
    frame = frame_with(session, lambda f: f.focus and len(f.engines) == 2)
    assert frame.focus == "url:http://gpu-7:8000"
    assert set(node.engines) == {URL, "http://gpu-7:8000"}


def test_an_engine_named_by_url_is_watched_even_if_looking_around_never_ends(watching):
    node = FakeNode()
    node.discovery.hanging, node.discovery.deadline_s, node.discovery.obeys_abort = True, 0.05, False
    session = watching(node, url=URL)
    frame = frame_with(session, lambda f: f.focused_engine and f.focused_engine.window)
    assert frame.focused.urls == (URL,)
    assert "has not answered" in frame.targets.error


def test_the_token_of_a_url_is_used_but_is_in_no_frame(watching):
    secret_url = "http://gpu-7:8000/metrics?token=hunter2"
    node = FakeNode()
    session = watching(node, url=secret_url)
    frame = frame_with(session, lambda f: f.engines and f.engines[0].window)
    assert "hunter2" not in repr(frame)
    assert not [name for name in session.history.names() if "hunter2" in name]
    assert list(node.engines) == [secret_url]


def test_notes_are_shown_for_half_a_minute_whatever_the_wall_clock_does_and_kept_as_events(watching):
    class Ahead:
        """The machine's clock, some seconds ahead; what it shows may be set back besides."""

        by_s = 0.0
        set_back_s = 0.0

        def wall(self) -> float:
            return time.time() + self.by_s - self.set_back_s

        def mono(self) -> float:
            return time.monotonic() + self.by_s

    clock = Ahead()
    node = FakeNode((a_target(),))
    session = Session(Config(period_s=0.02), node.sources, clock)
    session.start()
    try:
        frame_with(session, lambda f: f.notes)
        clock.by_s = 29.0
        clock.set_back_s = 3600.0
        before = session.latest.seq
        assert frame_with(session, lambda f: f.seq > before + 1).notes
        clock.by_s = 31.0
        frame_with(session, lambda f: not f.notes)
        assert [text for _, text in session.events] == ["attached to vllm org/model-a (pid 4711)"]
    finally:
        session.stop()


def test_at_most_eight_engines_are_asked_and_the_attached_one_always(watching):
    targets = tuple(a_target(1000 * n, 8000 + n, model=f"m{n}") for n in range(1, 12))
    node = FakeNode(targets)
    session = watching(node, pid=11_000)
    frame = frame_with(session, lambda f: f.focus and len(f.engines) == 8)
    assert frame.focused_engine is not None
    session.attach(targets[9].key)
    frame = frame_with(session, lambda f: f.focus == targets[9].key)
    assert frame.focused_engine is not None
    assert len(frame.engines) == 8


# -- settled ---------------------------------------------------------------------


def test_it_has_settled_when_the_watched_processes_have_been_read_twice(watching):
    node = FakeNode((a_target(),))
    session = watching(node)
    assert not session.settled()
    until(session.settled)
    frame = session.tick()
    assert {p.pid for p in frame.host.value.processes} == {4711, 4712}
    assert min(frame.gpus.polls, frame.engines[0].scrape.polls) >= 2
    assert frame.targets.polls >= 1


def test_a_source_that_fails_is_not_waited_for(watching):
    node = FakeNode((a_target(),))
    node.gpus.answer = SourceError("no driver")
    node.host.hanging, node.host.deadline_s = True, 0.05
    session = watching(node, period_s=600.0)
    until(session.settled)
