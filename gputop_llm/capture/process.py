"""Starts the worker and its watchdog: each a session of its own, so that no terminal takes it along."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
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
