"""`gputop-llm open` in a real terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.captures import CAPTURES
from tests.support.tmux import HERE, Tmux

pytestmark = pytest.mark.skipif(not HERE, reason="tmux is not installed")

OPEN = f"{sys.executable} -m gputop_llm open"
VLLM = CAPTURES / "h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz"


@contextmanager
def tmux(command: str, **env: str) -> Iterator[Tmux]:
    server = Tmux(f"sh -c '{command}; echo left with $?; sleep 60'", (80, 24), env)
    try:
        yield server
    finally:
        server.kill()


def test_a_capture_is_shown_and_q_gives_the_shell_back():
    with tmux(f"{OPEN} {VLLM}") as it:
        it.wait_for("Launch-bound")
        it.keys("2")
        it.wait_for("waits on")
        it.keys("q")
        after = it.wait_for("left with 0")
        assert "waits on" not in after, "the alternate screen is closed"


def test_while_reading_the_share_grows_and_ctrl_c_gives_up(tmp_path):
    trace = tmp_path / "trace.json"
    event = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":%d,"dur":1,"args":{"device":0,"stream":7}}'
    trace.write_text('{"traceEvents":[' + ",".join(event % at for at in range(1_500_000)) + "]}")
    with tmux(f"{OPEN} {trace}") as it:
        assert "%" in it.wait_for("reading ")
        it.keys("C-c")
        assert "Traceback" not in it.wait_for("left with 0")


def test_a_file_that_is_no_capture_gives_one_sentence_on_the_shell(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("hello")
    with tmux(f"{OPEN} {file}") as it:
        shown = it.wait_for("left with 1")
        assert "cannot read" in shown
        assert "Traceback" not in shown
