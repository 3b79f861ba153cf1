"""Whatever breaks, the target serves on, the lock is free, no process is left, and what was recorded is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.capture.lock import held_by
from gputop_llm.capture.plan import plan_json
from gputop_llm.sources.procfs import ProcFs
from tests.capture.support import capture, kill, last_of, plan_for, processes_of, reach_stage, serving
from tests.support.pty_app import ROOT
from tests.support.real_processes import until


def settled(captures, target, files):
    """Waits until nothing is left at work; returns what is kept."""
    assert until(lambda: held_by(os.environ["GPUTOP_TEST_LOCK"]) is None, 20.0)
    assert until(lambda: not processes_of(captures), 20.0)
    assert until(lambda: not list(captures.glob(".*")) if captures.exists() else True, 20.0)
    assert target.serves()
    assert until(lambda: target.open_files() <= files), "something is left open in the target"
    return sorted(captures.iterdir()) if captures.exists() else []


def the_incomplete(captures, target, files):
    """The one capture that is kept, and says that it isn't whole."""
    (kept,) = settled(captures, target, files)
    assert kept.name.endswith("-incomplete")
    assert json.loads((kept / "capture.json").read_text())["outcome"] in ("incomplete", "cancelled")
    return kept


@pytest.mark.parametrize("stage", ["lock", "preflight", "inject", "start"])
def test_a_worker_that_is_killed_before_its_window_leaves_nothing(stage, target, captures, monkeypatch):
    files = target.open_files()
    monkeypatch.setenv("GPUTOP_TEST_STALL", stage)
    with capture(plan_for(target, folder=captures)) as run:
        reach_stage(run, stage)
        kill(run.pid)
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("failed", "it may have been killed")
    assert settled(captures, target, files) == []


@pytest.mark.parametrize("stage", ["recording", "finishing", "recovering"])
def test_of_a_worker_that_is_killed_later_what_it_has_is_kept(stage, target, captures, monkeypatch):
    files = target.open_files()
    if stage != "recording":
        monkeypatch.setenv("GPUTOP_TEST_STALL", stage)
    plan = plan_for(target, folder=captures, seconds=60.0 if stage == "recording" else 0.3)
    with capture(plan) as run:
        for told in run.follow():
            if told.stage == stage and (stage != "recording" or told.records_bytes > 50_000):
                kill(run.pid)

    kept = the_incomplete(captures, target, files)
    assert (kept / plan.ranks[0].file).stat().st_size > 8000
    assert [path.name for path in kept.glob("*.part")] == []


def started_monitor(plan, **how):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.capture.monitor", json.dumps(plan_json(plan))],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **how,
    )


def kill_at(monitor, stage):
    for line in monitor.stdout:
        word, value = line.split()
        if word == stage and (stage != "recording" or int(value) > 50_000):
            break
    monitor.kill()
    monitor.wait()
    monitor.stdout.close()


@pytest.mark.parametrize("stage", ["worker", "lock", "preflight", "inject", "start", "recording", "finishing"])
def test_a_monitor_that_is_killed_cancels_its_capture(stage, target, captures):
    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=30.0 if stage != "finishing" else 0.3)
    kill_at(started_monitor(plan), stage)

    kept = settled(captures, target, files)
    if stage in ("worker", "lock"):
        assert kept == []
    elif stage == "recording":
        assert [path.name.endswith("-incomplete") for path in kept] == [True]
    else:
        assert len(kept) <= 1


def test_a_lost_terminal_cancels_the_capture(target, captures):
    """As when an SSH connection drops: the terminal hangs up, and the monitor gets SIGHUP."""
    import fcntl
    import pty
    import termios

    def take_the_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # Tests may run under nohup.
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=30.0)
    master, slave = pty.openpty()
    monitor = started_monitor(plan, stdin=slave, stderr=slave, start_new_session=True, preexec_fn=take_the_terminal)
    os.close(slave)
    for line in monitor.stdout:
        if line.startswith("recording") and int(line.split()[1]) > 50_000:
            break
    os.close(master)

    assert monitor.wait(10) == -signal.SIGHUP
    monitor.stdout.close()
    the_incomplete(captures, target, files)


def test_a_worker_that_hangs_is_ended_and_what_it_has_is_kept(target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_DEADLINE_S", "2")
    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=60.0)
    with capture(plan) as run:
        for told in run.follow():
            if told.stage == "recording" and told.records_bytes > 50_000:
                os.kill(run.pid, signal.SIGSTOP)
        assert run.ended.outcome == "failed"

    kept = the_incomplete(captures, target, files)
    facts = json.loads((kept / "capture.json").read_text())
    assert facts["why"] == "the capture's own process overran its deadline and was ended"


def test_a_capture_ends_well_without_its_watchdog(target, captures):
    plan = plan_for(target, folder=captures, seconds=1.0)
    files = target.open_files()
    with capture(plan) as run:
        reach_stage(run, "recording")
        (watchdog,) = [pid for pid in processes_of(captures) if "capture.watchdog" in " ".join(ProcFs().argv(pid))]
        kill(watchdog)
        assert last_of(run).outcome == "done"

    assert len(settled(captures, target, files)) == 1


def test_a_target_that_ends_in_the_window_is_said_and_kept(a_target, captures):
    target = a_target("dies")
    plan = plan_for(target, folder=captures, seconds=1.0)
    with capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.what) == ("incomplete", "the window was ended early")
    assert ended.why == f"PID {target.pid} (VLLM::Worker_TP0) has ended"
    assert ended.todo == "what was recorded until then is kept"
    assert (Path(ended.path) / plan.ranks[0].file).stat().st_size > 8000
    assert held_by(os.environ["GPUTOP_TEST_LOCK"]) is None


def test_a_target_that_is_stopped_in_the_window_is_said_and_kept(target, captures):
    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=30.0)
    with capture(plan) as run:
        for told in run.follow():
            if told.stage == "recording" and told.records_bytes > 50_000:
                os.kill(target.pid, signal.SIGSTOP)
        ended = run.ended
    os.kill(target.pid, signal.SIGCONT)

    assert ended.outcome == "incomplete"
    assert ended.why == f"PID {target.pid} (VLLM::Worker_TP0) is stopped (SIGSTOP)"
    the_incomplete(captures, target, files)


def test_a_full_disk_ends_the_window_and_keeps_what_fits(a_target, captures, monkeypatch):
    target = a_target("big")
    files = target.open_files()
    monkeypatch.setenv("GPUTOP_TEST_FSIZE", str(4 << 20))
    plan = plan_for(target, folder=captures, seconds=30.0)
    with capture(plan) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    assert "can't be written: file too large" in ended.why
    record = the_incomplete(captures, target, files) / plan.ranks[0].file
    assert record.stat().st_size == 4 << 20


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_small_disk_is_left_alone(target, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk], check=True)
    try:
        with capture(plan_for(target, folder=disk / "captures")) as run:
            ended = last_of(run)
        assert ended.outcome == "refused"
        assert "too little room" in ended.why
        assert list((disk / "captures").iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_client_that_never_stops_sending_is_bounded(a_target, captures):
    target = a_target("flood")
    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=30.0, max_bytes=1 << 20)
    with capture(plan) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    size = (the_incomplete(captures, target, files) / plan.ranks[0].file).stat().st_size
    assert size <= plan.max_bytes + (33 << 20)


@pytest.mark.parametrize(
    ("behaviour", "outcome"), [("endless", "incomplete"), ("deaf", "incomplete"), ("mute", "failed")]
)
def test_a_client_that_keeps_no_time_is_not_waited_for(behaviour, outcome, a_target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_LATE_S", "0.5")
    target = a_target(behaviour)
    files = target.open_files()
    with capture(plan_for(target, folder=captures)) as run:
        assert last_of(run).outcome == outcome

    assert len(settled(captures, target, files)) == (outcome == "incomplete")


def test_a_long_window_is_ended_when_the_engine_makes_no_more_tokens(a_target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_BEFORE_S", "1.2")
    target = a_target("still")
    files = target.open_files()
    plan = plan_for(target, folder=captures, seconds=60.0)
    with capture(plan) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    assert ended.why.startswith("the engine has made no token for ")
    the_incomplete(captures, target, files)


def test_another_process_with_the_same_pid_is_not_touched(target, captures):
    from dataclasses import replace

    plan = plan_for(target, folder=captures)
    plan = replace(plan, ranks=(replace(plan.ranks[0], start_ticks=plan.ranks[0].start_ticks - 1),))
    with capture(plan) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert ended.why == f"PID {target.pid} (VLLM::Worker_TP0) has ended"
    assert list(captures.iterdir()) == []


def test_a_second_capture_is_refused_with_who_holds_the_lock(target, captures, tmp_path):
    with capture(plan_for(target, folder=captures, seconds=30.0)) as first:
        reach_stage(first, "recording")
        with serving(tmp_path) as other, capture(plan_for(other, folder=captures)) as second:
            ended = last_of(second)
        first.cancel()
        assert last_of(first).outcome == "cancelled"

    assert ended.outcome == "refused"
    assert f"a capture of vllm acme/llama-8b (pid {target.pid}) by you (pid {first.pid}) has been running" in ended.why
    assert target.serves()
