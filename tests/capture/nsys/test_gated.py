"""A range that is begun and ended in a running Python process, and windows of an nsys that waits for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gputop_llm.capture.inject.openness import running_since
from gputop_llm.capture.kineto.talk import Wanted, reach
from gputop_llm.capture.lock import held_by
from gputop_llm.capture.nsys.gated_way import _not_ours, look
from gputop_llm.capture.way import Seen
from gputop_llm.sources.procfs import ProcFs
from tests.capture.nsys.support import launched
from tests.capture.support import capture, kill, last_of, plan_for, processes_of, reach_stage, serving
from tests.support.real_nsys import VERSIONS, real_nsys
from tests.support.real_processes import until

SOURCE = Path(__file__).with_name("fake_cudart.c")
#: A real nsys knows nothing of our fake CUDA, but its NVTX.
RANGE = ("--nvtx-capture=gate", "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0")
WAITS = (*RANGE, "--capture-range=nvtx", "--capture-range-end=repeat", "--sample=none", "--cpuctxsw=none")


@pytest.fixture
def cuda(tmp_path, monkeypatch):
    """A CUDA that is none in what is started now; gives what was called, (name, argument, CLOCK_MONOTONIC)."""
    folder, log = tmp_path / "cuda", tmp_path / "cuda.log"
    folder.mkdir()
    compiler = shutil.which("cc") or shutil.which("gcc")
    for name in ("libcudart.so.13", "libcuda.so.1"):
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", f"-Wl,-soname,{name}", "-o", folder / name, SOURCE], check=True
        )
    monkeypatch.setenv("FAKE_CUDA", str(folder))
    monkeypatch.setenv("FAKE_CUDA_LOG", str(log))

    def calls():
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(name, int(value), int(at_ns)) for name, value, at_ns in lines]

    return calls


def ranged(target):
    """The agent, about to begin a range."""
    agent = reach(target.pid, running_since(target.pid), Wanted(range=True), 10.0)
    assert until(lambda: agent.hear(0.05) or "hello" in agent.said or agent.over)
    return agent


def names(calls):
    return [name for name, _, _ in calls]


WHOLE = ["cudaSetDevice", "cudaProfilerStart", "cudaProfilerStop"]


def test_a_range_is_as_long_as_ordered_and_in_the_context_that_is_there(cuda, tmp_path):
    with serving(tmp_path) as target:
        agent = ranged(target)
        agent.begin(0, 300_000_000)
        assert until(lambda: agent.hear(0.05) or agent.gone)

        calls = cuda()
        assert names(calls) == WHOLE
        assert calls[0][1] == 1, "a context on device 0 would be a new one"
        assert 0.3 <= (calls[2][2] - calls[1][2]) / 1e9 < 3.0
        assert "ended" in agent.said
        assert agent.trouble is None
        assert target.serves()
        agent.close()


def test_a_range_ends_at_once_when_whoever_began_it_is_gone(cuda, tmp_path):
    with serving(tmp_path) as target:
        agent = ranged(target)
        agent.begin(0, 9_000_000_000)
        assert until(lambda: agent.hear(0.05) or "started" in agent.said)
        agent.close()

        assert until(lambda: names(cuda()) == WHOLE, 5.0)
        assert target.serves()


@pytest.mark.parametrize(
    ("environ", "why"),
    [
        ({"FAKE_CUDA_IDLE": "1"}, "the process has no CUDA context"),
        ({"FAKE_CUDA": "/nowhere"}, "CUDA's runtime (libcudart) is not loaded in the process"),
        ({"FAKE_CUDA_FAILS": "cudaProfilerStart"}, "RuntimeError: cudaProfilerStart failed with 999"),
    ],
)
def test_where_no_range_can_be_begun_that_is_said(environ, why, cuda, tmp_path, monkeypatch):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    if environ.get("FAKE_CUDA"):
        monkeypatch.delenv("FAKE_CUDA")
    with serving(tmp_path) as target:
        agent = ranged(target)
        agent.begin(0, 100_000_000)
        assert until(lambda: agent.hear(0.05) or agent.over)

        assert agent.trouble == why
        assert "cudaProfilerStop" not in names(cuda())
        agent.close()


PROFILE = ("/opt/nsys", "profile", "-c", "cudaProfilerApi")
COMMAND = ("vllm", "serve", "-c", "nvtx", "--capture-range-end=stop")


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        ((*PROFILE, "--capture-range-end=repeat", *COMMAND), None),
        ((*PROFILE, "--capture-range-end", "repeat", *COMMAND), None),
        (("nsys", "profile", "--capture-range=cudaProfilerApi", "--capture-range-end=repeat"), None),
        (PROFILE, "--capture-range-end=stop-shutdown: at the range's end it may end the server"),
        ((*PROFILE, "--capture-range-end=repeat-shutdown:3"), "--capture-range-end=repeat-shutdown:3"),
        (("nsys", "profile", "-c", "nvtx", "--capture-range-end=repeat"), "a range of another kind (nvtx)"),
        (("nsys", "launch", "vllm"), "somebody's `nsys start` waits"),
        ((), "can't be seen"),
    ],
)
def test_no_range_is_ended_for_an_nsys_that_may_end_the_server_then(argv, why):
    said = _not_ours(argv)

    assert (said is None) if why is None else why in said


def test_a_process_without_nsys_says_what_opens_it(target):
    (route,) = look(Seen(target.pid, running_since(target.pid), ProcFs()))

    assert (route.state, route.why) == ("closed", "it was not started under nsys")
    assert "gputop-llm run --nsys" in route.opens
    assert "nsys profile -c cudaProfilerApi --capture-range-end=repeat" in route.opens


def whole(ended):
    """The facts of a window that was taken as planned."""
    facts = json.loads((Path(ended.path) / "capture.json").read_text())
    # On a busy machine nsys at times collects nothing in a window: that is said.
    assert ended.outcome == ("done" if facts["nsys"]["events"] else "incomplete"), ended
    assert ended.outcome == "done" or "nsys saw no event" in ended.why
    return facts


def gated_plan(server, captures, **changed):
    return plan_for(server, folder=captures, route="nsys-gated", **changed)


@pytest.fixture(params=VERSIONS)
def waiting(request, cuda, tmp_path, monkeypatch):
    """A server under an nsys that waits for its range."""
    monkeypatch.setenv("GPUTOP_TEST_RANGE", "nvtx")
    place = tmp_path / "theirs"
    place.mkdir()
    more = (*WAITS, f"--output={place}/report")
    with launched(real_nsys(request.param), tmp_path, command="profile", more=more) as server:
        assert until(lambda: server.session().state == "StartRange", 20.0)
        server.place = place
        yield server


@pytest.mark.real
def test_the_window_of_an_nsys_that_waits_is_taken_and_its_own_report_stays(waiting, cuda, captures):
    with capture(gated_plan(waiting, captures, seconds=0.5)) as run:
        ended = last_of(run)

    facts = whole(ended)
    assert (facts["range"]["pid"], facts["undo"]) == (waiting.pid, [])
    assert (Path(ended.path) / "nsys.sqlite").stat().st_size > 0
    assert names(cuda()) == WHOLE
    assert [path.suffix for path in waiting.place.iterdir()] == [".nsys-rep"]
    assert not list(captures.glob(".*"))
    assert waiting.serves()
    # It waits no longer: the next one is a window of start and stop.
    assert waiting.session().state == "Launched"
    with capture(plan_for(waiting, folder=captures, route="nsys-session", name="next")) as run:
        assert last_of(run).path is not None
    assert waiting.serves()


@pytest.fixture
def failing(monkeypatch):
    """Every range that is begun from now on fails to begin."""
    monkeypatch.setenv("FAKE_CUDA_FAILS", "cudaProfilerStart")


@pytest.mark.real
@pytest.mark.parametrize("waiting", ["trixie"], indirect=True)
def test_an_nsys_waits_on_where_no_range_could_be_begun(failing, waiting, captures):
    with capture(gated_plan(waiting, captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, "cudaProfilerStart failed with 999" in ended.why) == ("refused", True), ended
    assert waiting.session().state == "StartRange"
    assert waiting.serves()


@pytest.mark.real
def test_a_server_under_nsys_launch_is_told_to_wait(cuda, tmp_path, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_RANGE", "nvtx")
    with launched(real_nsys(), tmp_path, more=RANGE) as server:
        for number in (1, 2):
            with capture(gated_plan(server, captures, seconds=0.5, name=f"c{number}")) as run:
                ended = last_of(run)

            whole(ended)
            assert names(cuda()) == WHOLE * number
            assert server.session().state == "Launched"
        assert server.serves()


@pytest.mark.real
@pytest.mark.parametrize("waiting", ["trixie"], indirect=True)
@pytest.mark.parametrize("stage", ["inject", "recording", "finishing"])
def test_a_worker_that_is_killed_leaves_no_range(stage, waiting, cuda, captures, monkeypatch):
    if stage != "recording":
        monkeypatch.setenv("GPUTOP_TEST_STALL", stage)
    with capture(gated_plan(waiting, captures, seconds=9.0 if stage == "recording" else 0.3)) as run:
        reach_stage(run, stage)
        kill(run.pid)
        assert last_of(run).outcome == "failed"

    assert until(lambda: held_by(os.environ["GPUTOP_TEST_LOCK"]) is None, 30.0)
    assert until(lambda: not processes_of(captures), 60.0)
    assert waiting.serves()
    assert not list(captures.glob(".*"))
    assert names(cuda()) == ([] if stage == "inject" else WHOLE)
    # Before anything was begun, whoever waits waits on.
    assert waiting.session().state == ("StartRange" if stage == "inject" else "Launched")
    kept = sorted(captures.iterdir())
    assert [path.name.endswith("-incomplete") for path in kept] == ([] if stage == "inject" else [True])
