"""The program from outside: help, wrong usage, odd standard streams. Never a traceback."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm import __version__, cli, paths
from gputop_llm.cli import main
from gputop_llm.commands import logs
from gputop_llm.errors import ExitCode
from tests.support.cli import environment, run_cli, start_cli


def refused(capsys, *arguments: str) -> str:
    """The one sentence that wrong usage gives."""
    assert main(list(arguments)) == ExitCode.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    return output.err


def test_help_lists_every_command_and_every_exit_code():
    shown = run_cli("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    for word in ("snapshot", "watch", "demo", "--pid", "--url", "--gpu", "--api-key-file", "--ca-file", "--ascii"):
        assert word in shown.stdout
    for code in ExitCode:
        assert f"{code.value} " in shown.stdout.partition("exit codes:")[2]


@pytest.mark.parametrize("command", ["snapshot", "check", "capture", "stacks", "doctor"])
def test_help_does_not_offer_what_the_command_refuses(capsys, command):
    assert main([command, "--exec", "true"]) in (2, 3)
    assert "takes no --exec" in "".join(capsys.readouterr())
    assert main([command, "--help"]) == 0

    told = capsys.readouterr().out

    assert "--slo-ttft" in told
    assert "--exec" not in told
    assert "--webhook-file" not in told


def test_no_line_of_any_help_is_wider_than_100_columns():
    for arguments in ([], ["snapshot"], ["watch"], ["demo"]):
        shown = run_cli(*arguments, "--help", env=environment(COLUMNS="100"))
        assert shown.returncode == 0
        assert max(map(len, shown.stdout.splitlines())) <= 100


def test_version():
    assert run_cli("--version").stdout == f"gputop-llm {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "frobnicate"),
        (["--frobnicate"], "--frobnicate"),
        (["snapshot", "--js"], "--js"),
        (["snapshot", "--pid", "x"], "--pid: pid must be a whole number: got 'x'"),
        (["snapshot", "--period", "0.1"], "--period: the period must be between 0.25 s and 3600 s"),
        (["snapshot", "--window", "fast"], "--window: window_s must be a number"),
        (["snapshot", "--url", "ftp://h"], "http://HOST:PORT"),
        (["snapshot", "--url", "http://u:secret@h"], "GPUTOP_LLM_API_KEY"),
        (["watch", "--json", "--count", "x"], "--count: must be a whole number, got 'x'"),
        (["demo", "--seed", "x"], "--seed: must be a whole number, got 'x'"),
        (["snapshot", "--ca-file", "/nowhere"], "--ca-file: cannot read /nowhere"),
        (["snapshot", "--api-key-file", "/nowhere"], "cannot read the API key from /nowhere"),
        (["snapshot", "--config", "/nowhere"], "cannot read /nowhere: there is no such file"),
        (["snapshot", "--demo", "nonsense"], "choose one of: healthy"),
        (["snapshot", "--demo", "healthy", "--engines", "2"], "GPU"),
        (["demo", "nonsense"], "choose one of: healthy"),
        (["demo", "healthy", "--gpus", "0"], "must be at least 1"),
        (["watch"], "add --json"),
        (["watch", "--json", "--count", "-1"], "must be at least 1"),
    ],
)
def test_wrong_usage_is_one_sentence_and_exit_code_2(capsys, arguments, said):
    assert said in refused(capsys, *arguments)


@pytest.mark.parametrize(
    "arguments", [["--api-key", "sk-123"], ["snapshot", "--api-key=sk-123"], ["watch", "--api-key"]]
)
def test_an_api_key_on_the_command_line_is_refused_with_the_reason_and_what_to_do(capsys, arguments):
    sentence = refused(capsys, *arguments)
    assert "every user of this node can read a command line" in sentence
    assert "GPUTOP_LLM_API_KEY" in sentence
    assert "--api-key-file" in sentence
    assert "sk-123" not in sentence


def test_flags_may_stand_before_or_after_the_command(capsys):
    for arguments in (["--period", "0.1", "snapshot"], ["snapshot", "--period", "0.1"]):
        assert "--period: the period" in refused(capsys, *arguments)


def test_the_environment_is_named_when_its_value_is_wrong(capsys, monkeypatch):
    monkeypatch.setenv("GPUTOP_LLM_PERIOD_S", "soon")
    assert "GPUTOP_LLM_PERIOD_S: period_s must be a number: got 'soon'" in refused(capsys, "snapshot")


def test_the_users_config_file_is_read_without_being_named(capsys):
    paths.config_file().parent.mkdir(parents=True, exist_ok=True)
    paths.config_file().write_text("period = 1\n")
    try:
        assert f"unknown setting 'period' in {paths.config_file()}" in refused(capsys, "snapshot")
    finally:
        paths.config_file().unlink()


def test_control_characters_of_an_argument_do_not_reach_the_terminal(capsys):
    assert r"\x1b]0;evil\x07" in refused(capsys, "snapshot", "--config", "/\x1b]0;evil\x07")


@pytest.mark.parametrize("arguments", [[], ["demo"], ["demo", "overload"]])
@pytest.mark.parametrize("term", ["xterm-256color", "dumb", None])
def test_without_a_terminal_the_monitor_says_what_to_use_instead(arguments, term):
    """Field case 33: TERM=dumb, no TERM, or output into a pipe."""
    ended = run_cli(*arguments, env=environment(TERM=term))
    assert ended.returncode == ExitCode.USAGE
    assert ended.stdout == ""
    assert "gputop-llm snapshot" in ended.stderr
    assert "watch --json" in ended.stderr
    assert "\x1b" not in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_the_scenarios_of_the_demo_are_listed():
    listed = run_cli("demo", "--list")
    assert (listed.returncode, listed.stderr) == (0, "")
    names = [line.split()[0] for line in listed.stdout.splitlines() if line]
    assert names[:3] == ["healthy", "overload", "long-prompts"]
    assert {"kv-pressure", "stalled-dead-worker", "gpu-fault"} < set(names)
    assert not [name for name in names if name.endswith("-near-miss") and name != "NAME-near-miss"]


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--list"], ["snapshot", "--demo", "healthy"]])
def test_a_reader_that_went_away_is_no_error(arguments):
    program = start_cli(*arguments)
    program.stdout.close()
    _, complaints = program.communicate(timeout=60)
    assert (program.returncode, complaints) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [["snapshot", "--demo", "healthy"], ["watch", "--json", "--demo", "healthy"], ["demo", "--list"]],
)
def test_a_full_disk_is_one_sentence_and_exit_code_1(arguments):
    with open("/dev/full", "w") as full:
        ended = run_cli(*arguments, stdout=full)
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr == "cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("arguments", ["snapshot --demo healthy", "watch --json --demo healthy", "demo --list"])
def test_a_closed_standard_output_is_one_sentence(arguments):
    command = f"exec {' '.join(cli_words())} {arguments} >&-"
    ended = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, text=True, env=environment(), timeout=60, check=False
    )
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr == "cannot write to standard output: it is closed\n"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--no-such-flag"], ExitCode.USAGE), (["snapshot", "--pid", "1"], ExitCode.NOTHING_FOUND)]
)
def test_the_exit_code_is_the_same_when_standard_error_takes_nothing(arguments, code):
    with open("/dev/full", "w") as full:
        assert run_cli(*arguments, stderr=full).returncode == code


def test_a_user_without_a_home_directory_has_no_config_and_no_log_but_a_monitor(tmp_path):
    """As in a container that runs as a user ID of no passwd; here by way of an `expanduser` that finds none."""
    program = (
        "import os, os.path, sys; os.path.expanduser = lambda path: path\n"
        "import pwd; pwd.getpwuid = lambda uid: {}[uid]\n"
        "from gputop_llm.cli import main; from gputop_llm import paths\n"
        "assert (paths.config_file(), paths.log_file()) == (None, None)\n"
        "from gputop_llm.commands import logs; print(logs.record(ValueError('x')))\n"
        "sys.exit(main(['snapshot', '--demo', 'healthy']))"
    )
    nowhere = {"HOME": None, **dict.fromkeys(("XDG_CONFIG_HOME", "XDG_STATE_HOME"), None)}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(**nowhere),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("its details can't be kept: this user has no home directory (set HOME)\ngputop-llm")
    assert list(tmp_path.iterdir()) == []


def cli_words() -> list[str]:
    from tests.support.cli import COMMAND

    return COMMAND


def test_a_bug_is_one_sentence_that_names_the_log_where_its_traceback_is(capsys, monkeypatch):
    def broken(_arguments: object) -> int:
        raise ZeroDivisionError("by\x1bzero")

    monkeypatch.setattr("gputop_llm.commands.snapshot.run", broken)
    assert main(["snapshot"]) == ExitCode.FAILED
    output = capsys.readouterr()
    assert output.err == (f"gputop-llm failed: ZeroDivisionError: by\\x1bzero; the details are in {paths.log_file()}\n")
    assert "ZeroDivisionError" in paths.log_file().read_text()
    assert "Traceback" in paths.log_file().read_text()
    assert paths.log_file().stat().st_mode & 0o077 == 0


def test_a_log_that_can_not_be_written_is_no_reason_to_fail(capsys, monkeypatch, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    handler = logs.LogFile()
    monkeypatch.setattr(logs.paths, "log_file", lambda: blocked / "gputop-llm.log")
    record = logging.LogRecord("gputop_llm", logging.ERROR, __file__, 1, "hello", None, None)
    handler.emit(record)
    handler.emit(record)
    assert capsys.readouterr().err == ""


def test_a_log_that_can_not_be_written_is_not_said_to_have_the_details(capsys, monkeypatch):
    monkeypatch.setattr(logs.paths, "log_file", lambda: Path("/dev/full/gputop-llm.log"))
    monkeypatch.setattr(logging.getLogger("gputop_llm"), "handlers", [])
    assert logs.record(ValueError("x")) == "the details could not be written to /dev/full/gputop-llm.log"
    monkeypatch.setattr(logs, "_open", lambda: logs._Rotating("/dev/full"))
    assert "could not be written" in logs.record(ValueError("x"))
    assert capsys.readouterr().err == ""


def test_no_log_is_made_when_there_is_nothing_to_log(tmp_path):
    ended = run_cli("snapshot", "--demo", "healthy", env=environment(XDG_STATE_HOME=str(tmp_path)))
    assert ended.returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_ends_a_snapshot_without_a_word(monkeypatch, capsys):
    def interrupted(_arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("gputop_llm.commands.snapshot.run", interrupted)
    assert main(["snapshot"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_help_takes_less_than_a_tenth_of_a_second_of_cpu():
    """Processor time, since this machine may be busy; the best of five."""
    best = min(_cpu_s("--help") for _ in range(5))
    assert best < 0.1


def _cpu_s(*arguments: str) -> float:
    before = os.times()
    run_cli(*arguments)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system
