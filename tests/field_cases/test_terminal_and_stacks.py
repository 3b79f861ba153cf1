"""Cases 32 and 33: stacks that may not be read, and terminals that can't draw, told by the program itself."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm import node as node_module
from gputop_llm.capture.stacks import looking, pyspy
from gputop_llm.capture.stacks.refused import Situation
from gputop_llm.cli import main
from gputop_llm.model import Target, TargetProcess
from tests.support.captures import case_json, field_case
from tests.support.cli import environment, start_cli
from tests.support.fake_sources import FakeNode
from tests.support.real_processes import until

FIXTURES = Path(__file__).parents[1] / "fixtures"
ENDINGS = {one["name"]: one for one in json.loads((FIXTURES / "stack_dump_endings.json").read_text())}
SAYS = {
    "user": ("kernel.yama.ptrace_scope is 1", "sudo sysctl kernel.yama.ptrace_scope=0"),
    "other-owner": ("it belongs to another user", "run gputop-llm as root (sudo)"),
    "container-root": ("root without the capability SYS_PTRACE", "start the container with --cap-add=SYS_PTRACE"),
    "library": ("can't be seen from here", "run gputop-llm inside that container"),
    "ended": ("the process has ended", "choose one that runs"),
    "time-limit": ("the look was given up; the process runs on (looked at afterwards)", "try again"),
}


@pytest.fixture
def engine():
    """A running process that is no Python, and the SGLang that discovery would take it for."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield Target(
            key=f"sglang:{process.pid}:0",
            engine="sglang",
            root_pid=process.pid,
            urls=("http://127.0.0.1:30000",),
            urls_from="argv",
            processes=(TargetProcess(process.pid, 1, "worker", "scheduler", "TP0", (0,), "nvml"),),
        )
        process.kill()


@pytest.fixture
def stacks(engine, tmp_path, monkeypatch, capsys):
    """`gputop-llm stacks` of the engine where py-spy ends as it is told to."""

    def read(ending):
        program = tmp_path / "py-spy"
        (tmp_path / "said").write_text(ending["stderr"])
        last = "exec sleep 600" if ending["exit"] is None else f"exit {ending['exit']}"
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/said >&2\n{last}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        given = Situation(
            ending["uid"], ending["target_uid"], ending["ptrace_scope"], capable=False, container=ending["container"]
        )
        seen = looking.situation
        monkeypatch.setattr(pyspy, "program", lambda: str(program))
        monkeypatch.setattr(pyspy.dump, "__defaults__", (0.3,))
        # Whether it runs is looked at in truth.
        monkeypatch.setattr(
            looking, "situation", lambda pid: replace(given, alive=(now := seen(pid)).alive, stopped=now.stopped)
        )
        sources = FakeNode((engine,)).sources
        monkeypatch.setattr(node_module, "real_sources", lambda config: sources)
        code = main(["stacks", "--period", "0.25"])
        return code, capsys.readouterr()

    return read


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("name", SAYS)
def test_32_each_ending_of_a_dump_has_its_cause_its_way_out_and_the_ways_that_need_no_right(stacks, engine, name):
    if name == "ended":
        os.kill(engine.root_pid, signal.SIGKILL)
        assert until(lambda: state(engine.root_pid) == "Z")
    code, (out, err) = stacks(ENDINGS[name])

    assert (code, out) == (1, "")
    for words in SAYS[name]:
        assert words in err
    assert ("sudo" in err) == (name in ("user", "other-owner"))
    assert "py-spy could not" not in err
    assert ("open without that right, by `gputop-llm capture`: the engine's own profiler" in err) == (name != "ended")
    assert state(engine.root_pid) == ("Z" if name == "ended" else "S"), "not left stopped"


CONDITIONS = case_json(33, "conditions")


@pytest.mark.parametrize("condition", [c for c in CONDITIONS if c["TERM"] in (None, "dumb")], ids=["dumb", "pipe"])
def test_33_where_no_screen_can_be_drawn_one_sentence_names_the_command_that_needs_none(condition):
    given = {name: condition[name] for name in ("TERM", "LANG") if condition[name] is not None}
    env = {name: value for name, value in environment().items() if name not in ("TERM", "LANG", "COLORTERM")} | given
    ours, theirs = pty.openpty()
    ends = {"stdin": theirs, "stdout": theirs, "stderr": theirs} if condition["tty"] else {}
    process = start_cli(env=env, **ends)
    os.close(theirs)
    if condition["tty"]:
        process.wait(60)
        said = os.read(ours, 65536).decode()
    else:
        said = "".join(process.communicate(timeout=60))
    os.close(ours)

    assert process.returncode == 2
    assert "`gputop-llm snapshot`" in said
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said


def test_33_a_locale_that_is_not_utf_8_is_no_error_where_text_is_printed():
    command = [sys.executable, "-m", "gputop_llm", "verdict", str(field_case(26) / "trace.json")]
    env = environment() | {"LANG": "en_US.ISO-8859-1", "LC_ALL": "C", "PYTHONIOENCODING": "latin-1", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, env=env, check=False)

    assert (done.returncode, done.stderr) == (4, b"")
    assert b"kernels under 5" in done.stdout
