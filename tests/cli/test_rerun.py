"""`gputop-llm rerun` as a user runs it, on a recorded window of a vLLM that replays graphs."""

from __future__ import annotations

import ast
import json

import pytest

from gputop_llm.errors import ExitCode
from tests.rerun.test_candidates import CONFIG, RECORD
from tests.support.captures import CAPTURES
from tests.support.cli import run_cli


def test_the_script_is_written_and_nothing_is_run(tmp_path):
    config, script = tmp_path / "config.json", tmp_path / "again.py"
    config.write_text(json.dumps(CONFIG))
    done = run_cli("rerun", str(RECORD), "--model-config", str(config), "--write", str(script))

    assert (done.returncode, done.stdout) == (ExitCode.OK, "")
    assert "batch sizes are from the blocks of vLLM's KV writes" in done.stderr
    assert "the length of contexts is not known" in done.stderr
    assert "'gate_up projection, 32 tokens': lambda: linear(32, 2048, 16384)," in script.read_text()
    ast.parse(script.read_text())


def test_without_a_config_and_operators_it_says_what_is_missing():
    done = run_cli("rerun", str(CAPTURES / "public/flameox_graph_2025.5.2.sqlite"), "--yes")

    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "")
    assert "nothing to run again" in done.stderr
    assert "graph replays that were recorded whole" in done.stderr
    assert "--model-config" in done.stderr


@pytest.mark.parametrize(("command", "why"), [("python 'x", "is no command: no closing quotation"), (" ", "needs a")])
def test_a_command_that_is_none_is_told(command, why):
    done = run_cli("rerun", str(RECORD), "--repro", command, "--yes")

    assert done.returncode == ExitCode.USAGE
    assert why in done.stderr


def test_a_pattern_that_is_none_or_matches_nothing_is_told():
    assert "no regular expression" in run_cli("rerun", str(RECORD), "--kernel", "(").stderr
    done = run_cli("rerun", str(CAPTURES / "public/flameox_graph_2025.5.2.sqlite"), "--kernel", "none_such")

    assert done.returncode == ExitCode.FAILED
    assert "no kernel matches /none_such/" in done.stderr
