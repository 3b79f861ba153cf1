"""`gputop-llm run --nsys`: the program runs as if nsys were not there, and its session can be captured."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.capture.nsys.found import Found, session_of
from gputop_llm.capture.nsys.tool import Tool
from gputop_llm.sources.procfs import ProcFs
from tests.support.cli import environment, run_cli, start_cli
from tests.support.real_nsys import real_nsys
from tests.support.real_processes import until

pytestmark = pytest.mark.real
SHELL = ["run", "--nsys", "--", "/bin/sh", "-c"]
SIGNALLED = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: print("usr1", flush=True))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(41))
print(os.getpid(), flush=True)
while True: time.sleep(0.05)
"""


@pytest.fixture(autouse=True, params=["trixie", "bookworm"])
def nsys(request, monkeypatch):
    path = real_nsys(request.param)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return Tool(path)


def test_input_output_and_exit_code_are_the_programs():
    ended = run_cli(*SHELL, "cat; echo told >&2; exit 37", input="given\n", stdin=None, env=environment())

    assert (ended.stdout, ended.stderr, ended.returncode) == ("given\n", "told\n", 37)


def test_a_terminal_is_the_programs_own():
    master, slave = pty.openpty()
    script = "import os; print([os.isatty(fd) for fd in (0, 1, 2)])"
    subprocess.run(
        [sys.executable, "-m", "gputop_llm", "run", "--nsys", "--", sys.executable, "-c", script],
        stdin=slave, stdout=slave, stderr=slave, env=environment(), timeout=60, check=True,
    )  # fmt: skip
    os.close(slave)

    assert os.read(master, 4096).decode().strip() == "[True, True, True]"
    os.close(master)


@pytest.mark.parametrize(("program", "code"), [("/nowhere/program", 127), (__file__, 126)])
def test_a_program_that_cannot_be_started_is_told_as_without_nsys(program, code):
    ended = run_cli("run", "--nsys", "--", program, env=environment())

    assert ended.returncode == code
    assert ended.stderr.startswith(f"cannot start {program}: ")


def test_signals_reach_the_program_and_not_nsys(nsys):
    started = start_cli("run", "--nsys", "--", sys.executable, "-c", SIGNALLED, env=environment())
    program = int(started.stdout.readline())
    started.send_signal(signal.SIGUSR1)
    assert started.stdout.readline() == "usr1\n"

    found = session_of(program, ProcFs())
    assert isinstance(found, Found)
    assert found.tool == nsys.path
    assert nsys.session(found.session).state == "Launched"
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == 41
    assert until(lambda: nsys.session(found.session) is None, 20.0)


@pytest.mark.parametrize("part", ["launch", "launcher", "agent"])
def test_the_program_outlives_each_part_of_nsys(part, nsys):
    started = start_cli("run", "--nsys", "--", sys.executable, "-c", SIGNALLED, env=environment())
    program = int(started.stdout.readline())
    launcher = parent_of(program)
    assert until(lambda: any(one.name == f"gputop-llm-{started.pid}" for one in nsys.sessions()), 20.0)
    agent = next(pid for pid in ProcFs().pids() if f"--session-name=gputop-llm-{started.pid}" in argv_of(pid))
    os.kill({"launch": parent_of(launcher), "launcher": launcher, "agent": agent}[part], signal.SIGKILL)
    started.send_signal(signal.SIGUSR1)

    assert started.stdout.readline() == "usr1\n"
    started.send_signal(signal.SIGTERM)
    assert started.wait(30) == (41 if part == "launcher" else 1), "an exit code that nobody knows is no success"
    assert until(lambda: not any(one.name == f"gputop-llm-{started.pid}" for one in nsys.sessions()), 20.0)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def argv_of(pid):
    try:
        return ProcFs().argv(pid)
    except OSError:
        return ()
