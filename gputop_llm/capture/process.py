"""Starts the worker and its watchdog: each a session of its own, so that no terminal takes it along. And tools."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

import gputop_llm
from gputop_llm.config import ENV_PREFIX
from gputop_llm.errors import GputopError

#: What a capture has no business to inherit; the engine's key is handed over by the command pipe.
_WITHHELD = tuple(ENV_PREFIX + name for name in ("API_KEY", "WEBHOOK", "EXEC"))


class Started:
    """A process with a pipe to it and a pipe from it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self.to: IO[bytes] = process.stdin
        self.out: IO[bytes] = process.stdout

    @property
    def pid(self) -> int:
        """Its PID."""
        return self._process.pid

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether it has ended, or does so within that time."""
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def start(module: str, arguments: Sequence[str] = (), pass_fds: Sequence[int] = ()) -> Started:
    """Runs a module of this package in a process of its own.

    Raises:
        GputopError: it can't be started.
    """
    home = os.path.dirname(os.path.dirname(os.path.abspath(gputop_llm.__file__)))
    path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH")) if part)
    environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # As in gputop_llm.timeline, for a worker that has no say in what is loaded first.
            env={**environment, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            # `-m` puts the working directory first on the path: nobody's own module must get in.
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        raise GputopError("cannot start the capture's own process", error.strerror or str(error)) from error
    return Started(process)


@dataclass(frozen=True, slots=True)
class Ran:
    """How a tool ended: `code` is None when it was killed, for its time was up.

    `cpu_s` is the processor time that it took, as last seen while it ran; None for one that was over at once.
    """

    code: int | None
    out: bytes
    err: bytes
    cpu_s: float | None = None


#: How often a running tool is asked for.
_LOOK_S = 0.05
#: Of what a tool says, bytes.
_MOST_WORDS = 1 << 20
#: Between asking a tool to end and killing it.
_GRACE_S = 10.0


def ran(
    argv: Sequence[str],
    within_s: float,
    started: Callable[[int], None] = lambda _pid: None,
    unwanted: Callable[[], bool] = lambda: False,
    pass_fds: Sequence[int] = (),
) -> Ran:
    """Runs a tool that touches nothing which outlives it, to its end.

    Args:
        within_s: kills it when it takes longer.
        started: told its PID at once.
        unwanted: asked now and then whether to end it: by SIGINT, on which tools write what they have.
        pass_fds: descriptors that it gets.

    Raises:
        GputopError: it can't be started.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=tuple(pass_fds),
        )
    except OSError as error:
        raise GputopError(f"cannot start {argv[0]}", error.strerror or str(error)) from error
    cpu_s, asked = None, False
    with process:
        started(process.pid)
        until = time.monotonic() + within_s
        while True:
            try:
                out, err = process.communicate(timeout=max(0.0, min(_LOOK_S, until - time.monotonic())))
                return Ran(process.returncode, out, err, cpu_s)
            except subprocess.TimeoutExpired:
                cpu_s = cpu_s_of(process.pid)
                if not asked and unwanted():
                    asked = True
                    process.send_signal(signal.SIGINT)
                    until = min(until, time.monotonic() + _GRACE_S)
                if time.monotonic() < until:
                    continue
            process.kill()
            out, err = process.communicate()
            return Ran(None, out, err, cpu_s)


def cpu_s_of(pid: int) -> float | None:
    """The processor time that a process has taken so far, seconds; None where it can't be read."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def said(argv: Sequence[str], within_s: float) -> tuple[int | None, str]:
    """Runs a tool that may leave a process of its own behind; its exit code and all its words.

    What is left behind may hold the tool's output open: it goes to a file, and only the tool itself is waited for.

    Args:
        within_s: kills it when it takes longer; its code is None then.

    Raises:
        GputopError: it can't be started.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
    with tempfile.TemporaryFile() as words:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise GputopError(f"cannot start {argv[0]}", error.strerror or str(error)) from error
        code: int | None
        try:
            code = process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
        words.seek(0)
        return code, words.read(_MOST_WORDS).decode("utf-8", "replace")
