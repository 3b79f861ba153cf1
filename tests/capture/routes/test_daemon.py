"""torch.profiler on demand: processes that ask for orders get them once, those that are not meant never do."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.capture import kineto_daemon_way
from gputop_llm.capture.inject.openness import running_since
from gputop_llm.capture.kineto import daemon
from gputop_llm.capture.plan import make_plan
from gputop_llm.capture.way import Seen
from gputop_llm.errors import GputopError
from gputop_llm.model import Target, TargetProcess
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.timeline.read import read_capture
from tests.capture.native.hosting import built
from tests.capture.support import capture, kill, last_of, reach_stage
from tests.support.real_processes import until

TARGET = Path(__file__).with_name("asking_target.py")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture(autouse=True)
def name(monkeypatch, tmp_path):
    """The node has one such name; each test has its own."""
    own = f"gputop-test-{os.getpid()}-{tmp_path.name}"[:90]
    monkeypatch.setattr(daemon, "NAME", own)
    monkeypatch.setenv("GPUTOP_TEST_DAEMON", own)
    return own


@pytest.fixture
def start(native, name):
    with contextlib.ExitStack() as stack:

        def run(behaviour="good", **environ):
            process = subprocess.Popen(
                [sys.executable, str(TARGET), name, str(native.torch), behaviour],
                env={**os.environ, "KINETO_USE_DAEMON": "1", **environ},
                stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
            return process

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
    return make_plan(target, folder, seconds=seconds, route="kineto-daemon", options=options)


def left():
    return set(Path("/tmp").glob("gputop-llm-*-r*"))


def route_of(process):
    (route,) = kineto_daemon_way.look(Seen(process.pid, running_since(process.pid), ProcFs()))
    return route


def test_all_ranks_record_at_the_same_time_and_nothing_stays(start, captures):
    targets = [start(), start()]
    bystander = start()
    before = left()
    with capture(plan_of(*targets, folder=captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why, ended.details.get("bundle_error")) == ("done", "", None)
    told = [json.loads(one.stdout.readline()) for one in targets]
    assert len({one["PROFILE_START_TIME"] for one in told}) == 1
    assert {one["ACTIVITIES_DURATION_MSECS"] for one in told} == {"300"}
    for number, target in enumerate(targets):
        trace = Path(ended.path) / f"rank{number}_pid{target.pid}.trace.json.gz"
        assert len(read_capture([trace]).ops) == 300
    assert left() == before
    assert not select.select([bystander.stdout], [], [], 0)[0], "who was not meant has got no order"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"PROFILE_REPORT_INPUT_SHAPES": "true", "PROFILE_WITH_STACK": "false", "PROFILE_PROFILE_MEMORY": "false"}),
        ({"shapes": False, "memory": True, "stacks": True, "cpu": False},
         {"PROFILE_REPORT_INPUT_SHAPES": "false", "PROFILE_WITH_STACK": "true", "PROFILE_PROFILE_MEMORY": "true",
          "ACTIVITY_TYPES": "kernel,gpu_memcpy,gpu_memset,cuda_runtime,cuda_driver"}),
    ],
)  # fmt: skip
def test_what_is_recorded_is_what_was_asked_for(options, expected, start, captures):
    target = start()
    with capture(plan_of(target, folder=captures, **options)) as run:
        assert last_of(run).outcome == "done"

    told = json.loads(target.stdout.readline())
    assert told.items() >= expected.items()


def test_an_answer_that_is_read_late_is_in_time_and_none_is_left_over(start, captures):
    target = start("late")
    with capture(plan_of(target, folder=captures)) as run:
        assert last_of(run).outcome == "done"

    json.loads(target.stdout.readline())
    assert not select.select([target.stdout], [], [], 0)[0], "it had one order"


def test_who_does_not_ask_is_refused(start, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_ASKED_S", "0.7")
    target = start("deaf")
    with capture(plan_of(target, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert "did not ask for orders" in ended.why
    assert list(captures.iterdir()) == []


def test_half_a_trace_is_not_kept(start, captures):
    before = left()
    with capture(plan_of(start("short"), folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "failed"
    assert "no whole trace" in ended.why
    assert left() == before


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_who_goes_away_before_the_order_leaves_nothing(how, start, captures):
    target = start("deaf")
    with capture(plan_of(target, folder=captures)) as run:
        reach_stage(run, "start")
        if how == "cancel":
            run.cancel()
        else:
            kill(run.pid)
        ended = last_of(run)

    assert ended.outcome == {"cancel": "cancelled", "kill": "failed"}[how]
    assert until(lambda: not daemon.served(ProcFs()))


def test_a_trace_of_a_killed_worker_is_removed(start, captures):
    target = start()

    def traces():
        return list(Path("/tmp").glob(f"gputop-llm-*_{target.pid}.json"))

    with capture(plan_of(target, folder=captures)) as run:
        reach_stage(run, "recording")
        kill(run.pid)
        last_of(run)

    assert until(traces, 30.0), "what was ordered takes place"
    assert until(lambda: not traces(), 30.0)


def test_it_is_open_where_a_process_asks_and_else_says_what_opens_it(start, name):
    assert route_of(start()).state == "open"
    closed = route_of(start(KINETO_USE_DAEMON=""))
    assert (closed.state, closed.why) == ("closed", "it was not started with KINETO_USE_DAEMON")
    assert "KINETO_USE_DAEMON=1" in closed.opens
    assert "a folder" in route_of(start(KINETO_IPC_SOCKET_DIR="/run")).why

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"\0{name}\0".encode())
        assert "daemon serves on this node" in route_of(start()).why
        with pytest.raises(GputopError, match="a dynolog daemon serves on this node"):
            daemon.Daemon({})


def test_what_is_no_question_is_not_answered(name):
    order = daemon.Order("/tmp/x.json", 0.0, 0.1)
    served = daemon.Daemon({os.getpid(): order})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer:
        peer.bind(f"\0gputop-test-peer-{os.getpid()}\0".encode())
        peer.settimeout(0.2)
        for data in (b"", b"x", b"\0" * 40, b"\xff" * 4000, daemon._HEADER.pack(4, b"req") + b"abcd"):
            peer.sendto(data, f"\0{name}\0".encode())
            served.answer(1.0)
            with pytest.raises(TimeoutError):
                peer.recv(100)
    assert not served.given
    served.close()
