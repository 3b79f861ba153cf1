"""`watch --json` as a process of its own: whole lines at the period, and a clean end whatever ends it."""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import subprocess
import time

import pytest

from tests.support.cli import COMMAND, DEADLINE_S, environment, start_cli
from tests.support.fake_sources import until

WATCH = ("watch", "--json", "--demo", "healthy", "--period", "0.25")


@pytest.fixture
def watching():
    """Starts watches, and ends what is left of them."""
    programs: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **options) -> subprocess.Popen[str]:
        programs.append(start_cli(*(arguments or WATCH), **options))
        return programs[-1]

    yield start
    for program in programs:
        if program.poll() is None:
            program.kill()
        program.communicate()


def lines_of(program: subprocess.Popen[str], count: int) -> list[dict]:
    """The next lines, each parsed."""
    return [json.loads(program.stdout.readline()) for _ in range(count)]


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def test_each_line_is_a_frame_and_they_come_at_the_period(watching):
    frames = lines_of(watching(), 5)
    assert [f["seq"] for f in frames] == list(range(frames[0]["seq"], frames[0]["seq"] + 5))
    steps = [b["at_s"] - a["at_s"] for a, b in itertools.pairwise(frames)]
    assert sum(steps) / len(steps) == pytest.approx(0.25, rel=0.5)
    assert {f["simulated"] for f in frames} == {"simulated: healthy, seed 7"}


def test_the_first_line_has_rates_already(watching):
    (first,) = lines_of(watching(), 1)
    assert first["engines"][0]["total"]["generation_tokens_per_s"] > 0
    assert first["host"]["processes"][0]["cpu_pct"] is not None
    assert first["gpus"][0]["gpm"]["sm_active_pct"] is not None


def test_lines_come_at_once_and_not_when_a_buffer_is_full(watching):
    program = watching()
    began = time.monotonic()
    line = os.read(program.stdout.fileno(), 1)
    assert line == b"{"
    assert time.monotonic() - began < 20


def test_count_ends_it_with_the_exit_code_of_the_last_frame(watching):
    program = watching(*WATCH, "--count", "3")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert (program.returncode, err) == (0, "")
    assert len(out.splitlines()) == 3
    assert [json.loads(line)["schema"] for line in out.splitlines()] == [1, 1, 1]


def test_an_engine_that_is_not_there_is_exit_code_3_with_count(watching):
    program = watching(*WATCH, "--count", "1", "--pid", "1")
    out, err = program.communicate(timeout=DEADLINE_S)
    assert program.returncode == 3
    assert err == "PID 1 belongs to no engine and holds no GPU memory\n"
    assert len(out.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_within_seconds_after_a_whole_line(watching, number):
    program = watching()
    lines_of(program, 2)
    simulator = children(program.pid)
    program.send_signal(number)
    began = time.monotonic()
    out, err = program.communicate(timeout=DEADLINE_S)
    assert time.monotonic() - began < 5.0
    assert (program.returncode, err) == (0, "")
    assert out == "" or out.endswith("}\n")
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in simulator))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_line_ends_it_as_cleanly(watching, number):
    program = watching("watch", "--json", "--demo", "healthy", "--period", "30")
    # From then on it has its own handlers.
    until(lambda: children(program.pid), DEADLINE_S)
    program.send_signal(number)
    out, err = program.communicate(timeout=DEADLINE_S)
    assert (program.returncode, out, err) == (0, "", "")


def test_a_reader_that_closes_ends_it_silently(watching):
    program = watching()
    lines_of(program, 1)
    program.stdout.close()
    assert program.wait(timeout=DEADLINE_S) == 0
    assert program.stderr.read() == ""


def test_head_takes_what_it_wants():
    command = f"{' '.join([*COMMAND, *WATCH])} | head -n 2; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(), timeout=DEADLINE_S, check=False
    )
    first, second, status = ended.stdout.splitlines()
    assert json.loads(first)["seq"] < json.loads(second)["seq"]
    assert (status, ended.stderr) == ("0", "")


def test_a_reader_that_stops_reading_can_not_keep_it_from_ending(watching):
    program = watching()
    lines_of(program, 1)
    # Nobody reads until the pipe is full and the program waits in the middle of a line.
    until(lambda: pipe_is_full(program), DEADLINE_S)
    program.send_signal(signal.SIGTERM)
    assert program.wait(timeout=10) == 0
    assert program.stderr.read() == ""


def pipe_is_full(program: subprocess.Popen[str]) -> bool:
    """Whether the program's standard output takes nothing any more."""
    fd = os.open(f"/proc/{program.pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    try:
        return not select.select([], [fd], [], 0)[1]
    finally:
        os.close(fd)


def test_a_reader_that_was_slow_gets_the_newest_frame_next(watching):
    program = watching()
    first = lines_of(program, 1)[0]
    until(lambda: pipe_is_full(program), DEADLINE_S)
    full_since = time.monotonic()
    # For several periods: the frames of that time are those that are skipped.
    until(lambda: pipe_is_full(program) and time.monotonic() - full_since > 1.0, DEADLINE_S)
    frames = [first]
    # A pipe and a read buffer's worth of old lines, then a jump.
    while (frame := lines_of(program, 1)[0])["seq"] == frames[-1]["seq"] + 1:
        frames.append(frame)
        assert len(frames) < 500
    assert frame["seq"] > frames[-1]["seq"] + 1


def test_the_simulator_that_dies_is_said_in_the_frames_and_watching_goes_on(watching):
    program = watching()
    lines_of(program, 1)
    (simulator,) = children(program.pid)
    os.kill(simulator, signal.SIGKILL)
    for _ in range(100):
        (frame,) = lines_of(program, 1)
        if frame["sources"]["gpus"]["error"]:
            break
    assert "simulator" in frame["sources"]["gpus"]["error"]
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=DEADLINE_S) == 0
