"""`gputop-llm run`: the program runs as if it had been started by itself, but for one variable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gputop_llm.cli import main
from gputop_llm.errors import ExitCode
from tests.support.cli import environment, run_cli, start_cli

SHELL = ["run", "--", "/bin/sh", "-c"]


def test_input_output_and_exit_code_are_the_programs():
    ended = run_cli(*SHELL, "cat; echo told >&2; exit 37", input="given\n", stdin=None)

    assert (ended.stdout, ended.stderr, ended.returncode) == ("given\n", "told\n", 37)


def test_it_becomes_the_program_with_one_more_variable():
    script = "import os; print(os.getpid(), os.environ['CUDA_INJECTION64_PATH']); print(sorted(os.environ))"
    started = start_cli("run", "--", sys.executable, "-c", script)
    output, _ = started.communicate(timeout=60)
    first, second = output.splitlines()
    pid, library = first.split()

    assert int(pid) == started.pid
    assert Path(library).name == "libgputop_client.so"
    assert Path(library).read_bytes().startswith(b"\x7fELF")
    plain = subprocess.run(
        [sys.executable, "-c", "import os; print(sorted(os.environ))"],
        env=environment(CUDA_INJECTION64_PATH="x"), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert second == plain.stdout.strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_ends_the_program(number):
    started = start_cli(*SHELL, "echo up; exec sleep 60")
    assert started.stdout.readline() == "up\n"
    started.send_signal(number)

    assert started.wait(10) == -number


def test_signals_are_as_a_program_expects_them():
    shown = ("grep", "SigIgn", "/proc/self/status")
    ended = run_cli("run", "--", *shown)
    # Started without us: whatever runs the tests may itself ignore a signal, and that is inherited.
    plain = subprocess.run(shown, capture_output=True, text=True, check=True)

    assert ended.stdout == plain.stdout


def test_arguments_arrive_as_they_are():
    arguments = ["--help", "-x", "--", "check", "two words", "--pid"]
    ended = run_cli("run", "--", sys.executable, "-c", "import sys; print(sys.argv[1:])", *arguments)

    assert ended.stdout == f"{arguments}\n"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [("/nowhere/vllm", 127, "no such file or directory"), ("/etc/passwd", 126, "permission denied")],
)
@pytest.mark.parametrize("word", ["serve", "check"])
def test_a_program_that_cannot_be_started_is_one_sentence(program, code, said, word):
    ended = run_cli("run", "--", program, word)

    assert (ended.returncode, ended.stderr) == (code, f"cannot start {program}: {said}\n")


def test_another_profilers_variable_is_respected(capsys, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/other.so")
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("started"))

    assert main(["run", "--", "true"]) == ExitCode.USAGE
    assert "CUDA_INJECTION64_PATH is set already, to /opt/other.so" in capsys.readouterr().err


def test_without_the_library_it_says_so_and_starts_nothing(capsys, monkeypatch):
    monkeypatch.setattr("gputop_llm.capture.native.LIBRARY", "no-such-library.so")
    monkeypatch.setattr(os, "execvpe", lambda *_: pytest.fail("started"))

    assert main(["run", "--", "true"]) == ExitCode.FAILED
    assert "built without the client's library" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--"]])
def test_without_a_command_it_says_how(capsys, arguments):
    assert main(["run", *arguments]) == ExitCode.USAGE
    assert "run needs a command" in capsys.readouterr().err
