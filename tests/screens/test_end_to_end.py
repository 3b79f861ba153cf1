"""The real program in real terminals: drawing, resizing, suspending, losing the connection."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop_llm.tui.terminal import still_there
from tests.support.pty_app import pty_app
from tests.support.tmux import HERE, Tmux

RUN = f"{sys.executable} -m tests.support.tui_driver one_gpu_loaded --seconds-back 20"
needs_tmux = pytest.mark.skipif(not HERE, reason="tmux is not installed")


@contextmanager
def tmux(command: str, size: tuple[int, int] = (80, 24), **env: str) -> Iterator[Tmux]:
    server = Tmux(command, size, env)
    try:
        yield server
    finally:
        server.kill()


def gone(pid: int, seconds: float) -> bool:
    """Whether the process ends within that time (a zombie has ended)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


@needs_tmux
def test_the_screen_is_drawn_and_q_gives_the_shell_back():
    with tmux(f"sh -c '{RUN}; echo left with $?; sleep 60'") as it:
        screen = it.wait_for("engine-core")
        for word in ("vLLM 0.24.0", "NVML util", "SM active", "TTFT", "no symptoms"):
            assert word in screen
        assert len([line for line in screen.splitlines() if line.strip()]) >= 23
        it.keys("q")
        after = it.wait_for("left with 0")
        assert "TTFT" not in after, "the alternate screen is closed"


@needs_tmux
def test_shrinking_to_20x5_and_growing_again_restores_the_view():
    with tmux(RUN) as it:
        it.wait_for("engine-core")
        it.resize(20, 5)
        small = it.wait_for("too small")
        assert "TTFT" not in small
        it.resize(80, 24)
        screen = it.wait_for("engine-core")
        assert "TTFT" in screen
        assert "too small" not in screen
        it.resize(120, 40)
        it.wait_for("out tokens/s")


@needs_tmux
def test_ctrl_z_gives_the_shell_back_and_fg_draws_everything_again():
    with tmux("bash --norc --noprofile -i") as it:
        it.keys(RUN, "Enter")
        whole = it.wait_for("engine-core")
        it.keys("C-z")
        shell = it.wait_for("Stopped")
        assert "TTFT" not in shell
        it.keys("fg", "Enter")
        it.wait_for("engine-core")
        again = it.wait_for(
            lambda s: all(
                bool(a.strip()) == bool(b.strip()) for a, b in zip(s.splitlines(), whole.splitlines(), strict=True)
            )
        )
        assert "TTFT" in again
        it.keys("q")
        it.wait_for(lambda s: "TTFT" not in s)


@needs_tmux
def test_a_console_without_utf_8_gets_ascii():
    with tmux(f"env LC_ALL=C {RUN}") as it:
        screen = it.wait_for("engine-core")
        assert screen.isascii()


@needs_tmux
def test_no_color_sends_no_colour():
    with tmux(f"env NO_COLOR=1 {RUN}") as it:
        it.wait_for("engine-core")
        coloured = it.screen(colours=True)
        assert "\x1b[38" not in coloured
        assert not any(f"\x1b[{n}m" in coloured for n in (*range(30, 38), *range(40, 48), *range(90, 98)))


@needs_tmux
def test_killing_the_window_leaves_no_process_behind():
    with tmux(RUN) as it:
        it.wait_for("engine-core")
        pids = it.pids()
        it.kill()
        for pid in pids:
            assert gone(pid, 5.0)


@pytest.mark.parametrize("how", [{}, {"ignore_hup": True}, {"controlling": False}], ids=["hup", "nohup", "no-signal"])
def test_a_lost_terminal_ends_the_program_at_once_and_burns_no_cpu(how):
    with pty_app("one_gpu_loaded", "--seconds-back", "20", **how) as app:
        app.read_until("Symptoms")
        before = app.cpu_s()
        app.hang_up()
        began = time.monotonic()
        code, used = app.wait(5)
        assert code == 128 + signal.SIGHUP
        assert time.monotonic() - began < 3.0, "0.01 s when the machine is free"
        assert used - before < 0.3


def test_a_lost_terminal_stops_the_session(tmp_path):
    mark = tmp_path / "stopped"
    with pty_app("one_gpu_loaded", "--stopped-file", str(mark)) as app:
        app.read_until("Symptoms")
        app.hang_up()
        app.process.wait(5)
    assert mark.exists()


def test_sigterm_restores_the_terminal():
    with pty_app("one_gpu_loaded") as app:
        app.read_until("Symptoms")
        app.process.send_signal(signal.SIGTERM)
        app.read_until("\x1b[?1049l")
        app.read_until("\x1b[?25h")
        assert app.process.wait(5) == 128 + signal.SIGTERM


def test_a_session_that_hangs_does_not_keep_the_user():
    with pty_app("one_gpu_loaded", "--hang-on-stop") as app:
        app.read_until("Symptoms")
        began = time.monotonic()
        app.type("q")
        assert app.process.wait(10) == 0
        assert time.monotonic() - began < 3.0


def test_the_terminal_of_a_test_is_told_from_none():
    assert still_there() is (os.isatty(0) and os.isatty(2))
