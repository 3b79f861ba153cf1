"""Windows in a running Python process that nobody prepared: injected, recorded by the real client, judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.capture.inject import mapped_clients
from gputop_llm.capture.lock import held_by
from gputop_llm.timeline.read import read_capture
from tests.capture.support import capture, kill, last_of, plan_for, processes_of, reach_stage, serving
from tests.support.real_processes import until


def test_a_window_is_injected_recorded_and_judged(unprepared, captures):
    target = unprepared()
    files = target.open_files()
    with capture(plan_for(target, folder=captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.details.get("bundle_error")) == ("done", None)
    path = Path(ended.path)
    timeline = read_capture([path / f"rank0_pid{target.pid}.gtw"])
    assert len(timeline.ops) > 0
    assert timeline.window_ns == pytest.approx(0.3e9, rel=0.5)
    (rank,) = json.loads((path / "capture.json").read_text())["ranks"]
    assert (rank["reached_by"], rank["reused"]) == ("injected", False)
    assert rank["stopped_ms"] < rank["took_ms"]
    assert target.serves()
    assert until(lambda: target.open_files() == files)


def test_windows_can_be_repeated_and_one_mapping_stays(unprepared, captures):
    target = unprepared()
    files = target.open_files()
    reused = []
    for _ in range(3):
        with capture(plan_for(target, folder=captures)) as run:
            ended = last_of(run)
        assert ended.outcome == "done"
        reused.append(json.loads((Path(ended.path) / "capture.json").read_text())["ranks"][0]["reused"])

    assert reused == [False, True, True]
    assert len(mapped_clients(target.pid)) == 1
    assert len(list(captures.iterdir())) == 3
    assert target.serves()
    assert until(lambda: target.open_files() == files)


def test_all_ranks_are_injected(unprepared, captures):
    targets = [unprepared() for _ in range(3)]
    with capture(plan_for(*targets, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    records = sorted(Path(ended.path).glob("*.gtw"))
    timeline = read_capture(records)
    assert len(timeline.processes) == 3
    assert all(target.serves() for target in targets)


@pytest.mark.parametrize("stage", ["start", "recording"])
def test_a_killed_worker_leaves_the_mapping_and_nothing_else(stage, unprepared, captures, monkeypatch):
    target = unprepared()
    files = target.open_files()
    if stage == "start":
        monkeypatch.setenv("GPUTOP_TEST_STALL", stage)
    with capture(plan_for(target, folder=captures, seconds=60.0)) as run:
        reach_stage(run, stage)
        kill(run.pid)
        assert last_of(run).outcome == "failed"

    assert until(lambda: held_by(os.environ["GPUTOP_TEST_LOCK"]) is None)
    assert until(lambda: not processes_of(captures))
    assert target.serves()
    assert until(lambda: target.open_files() == files)
    assert len(mapped_clients(target.pid)) == 1
    monkeypatch.delenv("GPUTOP_TEST_STALL", raising=False)
    with capture(plan_for(target, folder=captures)) as run:
        assert last_of(run).outcome == "done", "the next window finds the client as it should be"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="sys.remote_exec came with Python 3.14")
def test_a_process_that_a_debugger_holds_is_recorded_by_its_own_python(unprepared, captures):
    target = unprepared()
    files = target.open_files()
    seize = "import ctypes, sys; sys.exit(ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0) or input('held\\n'))"
    debugger = subprocess.Popen(
        [sys.executable, "-c", seize, str(target.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with debugger:
        assert debugger.stdout.readline() == b"held\n"
        with capture(plan_for(target, folder=captures)) as run:
            ended = last_of(run)
        assert debugger.poll() is None
        debugger.communicate(b"\n")

    assert (ended.outcome, ended.details.get("bundle_error")) == ("done", None), ended
    (rank,) = json.loads((Path(ended.path) / "capture.json").read_text())["ranks"]
    assert (rank["reached_by"], rank["reused"]) == ("remote-exec", False)
    assert target.serves()
    assert until(lambda: target.open_files() == files)


def test_nothing_is_loaded_into_a_process_without_cuda(tmp_path, captures):
    (tmp_path / "elsewhere").mkdir()
    with serving(tmp_path / "elsewhere") as target:
        with capture(plan_for(target, folder=captures)) as run:
            ended = last_of(run)
        assert mapped_clients(target.pid) == ()
        assert target.serves()

    assert (ended.outcome, ended.why) == ("refused", f"PID {target.pid} (VLLM::Worker_TP0) doesn't use CUDA")
    assert list(captures.iterdir()) == []
