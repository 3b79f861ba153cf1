"""torch.profiler in a busy Python process that nobody prepared: run by injection, bounded, refused, and gone."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm.capture.inject import mapped_clients
from gputop_llm.capture.inject.openness import running_since
from gputop_llm.capture.kineto.talk import Agent, Wanted, reach
from gputop_llm.capture.plan import make_plan
from gputop_llm.model import Target, TargetProcess
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.timeline.read import read_capture
from tests.capture.native.hosting import built
from tests.capture.support import capture, kill, last_of, processes_of, reach_stage
from tests.support.real_processes import until

TARGET = Path(__file__).with_name("torch_target.py")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


class Python:
    """A running torch_target.py."""

    def __init__(self, process, log, counter, place):
        self.process, self.log, self._counter, self.place = process, log, counter, place
        self.pid = process.pid
        self.files = self.open_files()

    def calls(self):
        if not self.log.exists():
            return []
        return [json.loads(line)[1:] for line in self.log.read_text().splitlines()]

    def names(self):
        return [call[0] for call in self.calls()]

    def goes_on(self):
        def count():
            return struct.unpack("<Q", self._counter.read_bytes())[0]

        before = count()
        return self.process.poll() is None and until(lambda: count() > before + 2)

    def open_files(self):
        return {link for link in ProcFs().open_files(self.pid) if "socket" in link or "pipe" in link or "memfd" in link}

    def as_it_was(self):
        """Nothing of ours is left but the library: no descriptor, no file, no thread."""
        threads = []
        for tid in os.listdir(f"/proc/{self.pid}/task"):
            with contextlib.suppress(FileNotFoundError):
                threads.append(ProcFs().read(f"{self.pid}/task/{tid}/comm").strip())
        return (
            self.open_files() == self.files
            and not list(self.place.iterdir())
            and not [name for name in threads if name.startswith(b"gputop")]
        )

    def reach(self, **wanted):
        return reach(self.pid, running_since(self.pid), Wanted(**wanted), 10.0)


@pytest.fixture
def start(native, tmp_path):
    with contextlib.ExitStack() as stack:

        def run(behaviour="good"):
            number = len(list(tmp_path.glob("counter-*")))
            log, counter, place = (tmp_path / f"{name}-{number}" for name in ("calls", "counter", "tmp"))
            counter.write_bytes(bytes(8))
            place.mkdir()
            process = subprocess.Popen(
                [sys.executable, str(TARGET), str(log), str(counter), str(native.torch), behaviour],
                stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "TMPDIR": str(place)},
            )  # fmt: skip
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
            return Python(process, log, counter, place)

        yield run


def plan_of(*targets, folder, seconds=0.3, **options):
    target = Target(
        key=f"vllm:{targets[0].pid}:0",
        engine="vllm",
        root_pid=targets[0].pid,
        model="acme/llama-8b",
        processes=tuple(
            TargetProcess(one.pid, 1, "worker", f"VLLM::Worker_TP{number}", f"TP{number}", (number,), "nvml")
            for number, one in enumerate(targets)
        ),
    )
    return make_plan(target, folder, seconds=seconds, route="kineto-agent", options=options)


def hello(agent):
    until(lambda: agent.hear(0.05) or "hello" in agent.said or agent.over)
    return agent


def test_a_window_is_taken_and_judged_and_nothing_but_the_library_stays(start, captures):
    target = start()
    with capture(plan_of(target, folder=captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why, ended.details.get("bundle_error")) == ("done", "", None)
    (trace,) = Path(ended.path).glob("*.trace.json.gz")
    assert trace.name == f"rank0_pid{target.pid}.trace.json.gz"
    assert len(read_capture([trace]).ops) == 500
    (rank,) = json.loads((Path(ended.path) / "capture.json").read_text())["ranks"]
    assert (rank["torch"], rank["whole"], rank["reused"]) == ("2.11.0", True, False)
    assert target.names() == ["config", "prepare", "enable", "disable", "save"]
    assert target.goes_on()
    assert until(target.as_it_was)
    assert len(mapped_clients(target.pid)) == 1


@pytest.mark.parametrize(
    "line",
    [b"5", b"[1]", b"{}", b'{"say": 7}', b'{"say": "hello"}', b"\xff", b"[" * 4000,
     b'{"say": "ended", "ending_ms": NaN}', b'{"say": "ended", "ending_ms": 1e999}',
     b'{"say": "ended", "ending_ms": {"a": 1}}', b"x" * 9000],
)  # fmt: skip
def test_whatever_a_target_says_is_no_harm(line):
    reading, writing = os.pipe()
    agent = Agent(os.getpid(), -1, reading, {})
    os.write(writing, line + b"\n")
    os.close(writing)
    assert until(lambda: agent.hear(0.05) or agent.gone)

    assert agent.number("ended", "ending_ms") is None
    assert set(agent.said) <= {"hello", "ended"}
    agent.close()


def test_the_trace_lies_where_only_its_user_can_look(start, captures):
    target = start()
    with capture(plan_of(target, folder=captures)) as run:
        assert last_of(run).outcome == "done"

    (path, mode) = target.calls()[-1][1:]
    assert path.startswith(str(target.place))
    assert mode == "700"


def test_all_ranks_begin_together(start, captures):
    targets = [start() for _ in range(3)]
    with capture(plan_of(*targets, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    assert len(list(Path(ended.path).glob("*.trace.json.gz"))) == 3
    began = [json.loads(one.log.read_text().splitlines()[2]) for one in targets]
    assert {name for _, name, _ in began} == {"enable"}
    assert all(target.goes_on() for target in targets)


@pytest.mark.parametrize(
    ("options", "config"),
    [
        ({}, [[True, False, False], True]),
        ({"cpu": False, "shapes": False}, [[False, False, False], False]),
        ({"memory": True, "stacks": True}, [[True, True, True], True]),
    ],
)
def test_what_is_recorded_is_what_was_asked_for(options, config, start, captures):
    target = start()
    with capture(plan_of(target, folder=captures, **options)) as run:
        assert last_of(run).outcome == "done"

    assert target.calls()[0] == ["config", *config]
    assert target.calls()[2] == ["enable", ["CPU", "CUDA"] if options.get("cpu", True) else ["CUDA"]]


def test_windows_can_be_repeated(start, captures):
    target = start()
    for _ in range(3):
        with capture(plan_of(target, folder=captures)) as run:
            assert last_of(run).outcome == "done"
        assert until(target.as_it_was)

    assert len(mapped_clients(target.pid)) == 1
    assert target.goes_on()


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("old", "torch 2.6.0 records operators of the calling thread only"),
        ("active", "torch.profiler is collecting in the process already"),
        ("bare", "torch is not loaded in the process"),
    ],
)
def test_what_can_not_be_recorded_is_refused_before_anything_is_done(behaviour, says, start, captures):
    target = start(behaviour)
    with capture(plan_of(target, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert says in ended.why
    assert "prepare" not in target.names()
    assert target.goes_on()
    assert until(target.as_it_was)
    assert list(captures.iterdir()) == []


def test_an_old_torch_records_the_gpu_alone(start, captures):
    target = start("old")
    with capture(plan_of(target, folder=captures, cpu=False)) as run:
        assert last_of(run).outcome == "done"


@pytest.mark.parametrize(("behaviour", "says"), [("angry", "MULTIPLE_SUBSCRIBERS"), ("nowhere", "Error opening trace")])
def test_a_profiler_that_fails_is_told_of_and_the_target_goes_on(behaviour, says, start, captures):
    target = start(behaviour)
    with capture(plan_of(target, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "failed"
    assert says in ended.why
    assert target.goes_on()
    assert until(target.as_it_was)


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_who_goes_away_ends_the_window(how, start, captures):
    target = start()
    with capture(plan_of(target, folder=captures, seconds=2.0)) as run:
        reach_stage(run, "recording")
        until(lambda: "enable" in target.names())
        if how == "cancel":
            run.cancel()
        else:
            kill(run.pid)
        ended = last_of(run)

    assert ended.outcome == {"cancel": "cancelled", "kill": "failed"}[how]
    assert until(lambda: "disable" in target.names())
    assert until(target.as_it_was)
    assert target.goes_on()
    assert until(lambda: set(processes_of(captures)) <= {target.pid})


def test_an_order_that_never_comes_ends_without_a_window(start):
    target = start()
    agent = hello(target.reach())
    assert "hello" in agent.said
    agent.close()

    assert until(target.as_it_was)
    assert target.names() == ["config"]


def test_a_window_has_an_end_whatever_is_ordered(start, monkeypatch):
    source = TARGET.parents[3] / "gputop_llm/capture/kineto/agent.py"
    short = source.read_bytes().replace(b"LONGEST_S = 10.0", b"LONGEST_S = 0.2")
    monkeypatch.setattr("gputop_llm.capture.kineto.talk.agent_source", lambda: short)
    target = start()
    agent = hello(target.reach())
    agent.begin(time.monotonic_ns(), int(3600e9))
    until(lambda: agent.hear(0.05) or "saved" in agent.said)

    agent.close()
    assert until(target.as_it_was)


def test_a_second_window_in_the_same_process_is_refused(start):
    target = start()
    first = hello(target.reach())
    second = hello(target.reach())

    assert "another window" in second.trouble
    second.close()
    first.close()
    assert until(target.as_it_was)


def test_a_lock_that_is_held_is_given_up_on_and_nothing_is_done_when_it_is_let_go(start):
    target = start("held")
    agent = target.reach()
    assert "let go" not in target.names()
    assert not agent.said
    agent.close()

    assert until(lambda: "let go" in target.names(), 20.0)
    assert until(target.as_it_was, 20.0)
    assert target.names() == ["let go"], "not even the configuration was made"


def test_a_trace_that_is_too_large_is_not_kept(start, captures):
    target = start("big")
    with capture(replace(plan_of(target, folder=captures), max_bytes=1 << 20)) as run:
        ended = last_of(run)

    assert ended.outcome == "failed"
    assert "more than" in ended.why
    assert until(target.as_it_was)
    assert list(captures.iterdir()) == []


def test_a_long_window_is_refused(start, captures):
    target = start()
    with capture(plan_of(target, folder=captures, seconds=30.0)) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert "at most 2 s" in ended.why
    assert mapped_clients(target.pid) == ()


def test_what_it_costs_is_said_first(start, captures):
    facts = dict(plan_of(start(), folder=captures).facts())

    assert "about 0.6 s without a token, 15" in facts["cost"]
    assert "the engine stands still" in facts["how"]
    assert "Python stacks" not in facts["what"]
