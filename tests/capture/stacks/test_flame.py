"""Recordings of Python stacks: functions by self and total time, and what the recording says of itself."""

from __future__ import annotations

import signal
import subprocess
import time

import pytest

from gputop_llm.capture.stacks import flame
from gputop_llm.capture.stacks.looking import Seen
from gputop_llm.cli import INTERRUPTED, main
from tests.capture.stacks.conftest import BUSY
from tests.support.cli import start_cli

DEADLINE_S = 60.0

RAW = """\
thread (7): MainThread;run (a.py:1);step (a.py:9);launch (b.py:4) 6
thread (7): MainThread;run (a.py:1);step (a.py:11) 3
thread (7): MainThread;run (a.py:1);step (a.py:9);step (a.py:9) 1
thread (9): feeder (x);poll (zmq/poll.py:106) 2
no count
"""


def test_self_and_total_are_counted_by_function_and_thread():
    main_thread, feeder = flame.table(RAW)

    assert (main_thread.name, main_thread.samples) == ("MainThread (7)", 10)
    rows = {row.function: (row.self_pct, row.total_pct) for row in main_thread.rows}
    # A function that calls itself is on the stack once.
    assert rows == {"launch": (60.0, 60.0), "step": (40.0, 100.0), "run": (0.0, 100.0)}
    assert [row.function for row in main_thread.rows] == ["launch", "step", "run"]
    assert (feeder.name, feeder.rows[0].file) == ("feeder (x) (9)", "zmq/poll.py")


def test_shares_of_a_thread_never_exceed_it():
    for thread in flame.table(RAW):
        assert sum(row.self_samples for row in thread.rows) == thread.samples
        assert all(row.self_samples <= row.total_samples <= thread.samples for row in thread.rows)


def test_what_is_no_recording_is_told():
    with pytest.raises(ValueError, match="no stacks"):
        flame.table("<html>")
    assert flame.table("") == ()


def test_a_busy_process_is_recorded_while_it_runs(python):
    (found,) = flame.record([Seen(python(BUSY), "engine", "engine-core")], 1.0)

    assert found.unreadable is None
    busiest = found.threads[0]
    assert busiest.name.startswith("MainThread")
    assert busiest.rows[0].function == "spin"
    assert busiest.rows[0].self_pct > 50.0


def sampler_of(pid):
    """The command lines of what samples the process."""
    lines = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if f"record --pid {pid} " in line]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_ends_the_sampling(python, number):
    pid = python(BUSY)
    running = start_cli("stacks", "--pid", str(pid), "--period", "0.25", "--record", "600")
    until = time.monotonic() + DEADLINE_S
    while not sampler_of(pid) and time.monotonic() < until:
        time.sleep(0.05)
    running.send_signal(number)
    out, err = running.communicate(timeout=DEADLINE_S)

    assert (running.returncode, out, err) == (INTERRUPTED, "", "")
    assert sampler_of(pid) == []


def test_the_command_shows_the_table(python, capsys):
    pid = python(BUSY)

    assert main(["stacks", "--pid", str(pid), "--period", "0.25", "--record", "1"]) == 0
    out = capsys.readouterr().out
    assert "self    total  function" in out
    assert "spin (<string>)" in out
