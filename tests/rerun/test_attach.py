"""What is said of attaching to a server that was started under ncu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.rerun.attach import attach_note
from gputop_llm.sources.procfs import ProcFs
from tests.rerun.test_job import NAME, hot
from tests.support.fake_proc import FakeProc

NCU = ("/opt/nvidia/ncu", "--mode=launch", "vllm", "serve", "m")


def under(tmp_path, command):
    """A /proc with an engine core (7) below its server (6), which this command started."""
    proc = FakeProc(tmp_path / "proc")
    proc.add(5, command, ppid=1)
    proc.add(6, ("vllm", "serve", "m"), ppid=5)
    proc.add(7, ("VLLM::EngineCore",), ppid=6)
    return ProcFs(proc.root)


@pytest.mark.parametrize(
    "command", [("bash",), ("ncu", "vllm", "serve", "m"), ("ncu", "--mode", "launch-and-attach", "vllm")]
)
def test_nothing_is_said_of_a_server_that_was_not_started_for_it(tmp_path, command):
    assert attach_note(hot(), 7, 1, under(tmp_path, command)) is None


def test_the_command_is_said_with_what_it_costs(tmp_path):
    said = attach_note(hot(), 7, 1, under(tmp_path, NCU))

    assert f"--mode attach --hostname 127.0.0.1 --clock-control none --kernel-name 'regex:^{NAME}$'" in said
    assert "requests stand still" in said
    assert attach_note(hot(), None, 1) is None


def test_several_ranks_and_collectives_are_refused_with_the_reason(tmp_path):
    proc = under(tmp_path, ("ncu", "--mode", "launch", "vllm", "serve", "m"))

    assert "one of 4 ranks" in attach_note(hot(), 7, 4, proc)
    assert "collective" in attach_note(replace(hot(), name="ncclDevKernel_AllReduce(int)"), 7, 1, proc)
