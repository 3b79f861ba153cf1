"""A case of the lab as a process: started, served for as long as it is needed, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from benchmarks.accuracy.results import ROOT, Job, Result

#: Loading PyTorch, making weights, compiling kernels.
_READY_WITHIN_S, _ENDS_WITHIN_S = 120.0, 60.0
#: Longer than any route needs; the harness ends it before.
_SERVES_S = 600


class RouteFailed(Exception):
    """Why a route gave no result."""


@dataclass(frozen=True)
class Serving:
    """A case that serves; `pid` is of what was started, which may be another program that has the case inside."""

    url: str
    pid: int


def lab_command(python: str, job: Job, device: str, seconds: float, port: int) -> list[str]:
    """How the case of a job is started."""
    fixed = ["--fixed"] if job.fixed else []
    command = [python, "-m", "gputop_llm", "lab", "run", job.case, *fixed]
    return [*command, "--device", device, "--seconds", f"{seconds:g}", "--port", str(port)]


def pace(python: str, job: Job, device: str, seconds: float) -> Result:
    """Serves a case that nothing watches; what it says of itself."""
    command = lab_command(python, job, device, seconds, free_port())
    done = run(command, _READY_WITHIN_S + seconds)
    return dict(json.loads(done))


@contextmanager
def serving(
    python: str, job: Job, device: str, before: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Iterator[Serving]:
    """A case that has made its first tokens, `before` in front of its command; ended with the block.

    Raises:
        RouteFailed: it has not come up.
    """
    port = free_port()
    command = [*before, *lab_command(python, job, device, _SERVES_S, port)]
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=said, env=_environment(environment), start_new_session=True
        )
        try:
            _await_tokens(child, port, said)
            yield Serving(f"http://127.0.0.1:{port}", child.pid)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(_ENDS_WITHIN_S)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()


def run(
    command: Sequence[str],
    timeout_s: float,
    good: Sequence[int] = (0,),
    environment: Mapping[str, str] | None = None,
) -> str:
    """The standard output of a command.

    Raises:
        RouteFailed: it ended with another code, or not in time.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=_environment(environment), check=False
        )
    except subprocess.TimeoutExpired:
        raise RouteFailed(f"{command[0]} took longer than {timeout_s:.0f} s") from None
    except OSError as error:
        raise RouteFailed(f"{command[0]}: {error.strerror}") from None
    if done.returncode not in good:
        raise RouteFailed(f"ended with {done.returncode}: {_last_line(done.stderr or done.stdout)}")
    return done.stdout


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


def _await_tokens(child: subprocess.Popen[bytes], port: int, said: IO[bytes]) -> None:
    end = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < end:
        if child.poll() is not None:
            said.seek(0)
            raise RouteFailed(f"the case ended with {child.returncode}: {_last_line(said.read().decode())}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                page = answer.read().decode()
        except (urllib.error.URLError, OSError):
            page = ""
        told = [line for line in page.splitlines() if line.startswith("vllm:generation_tokens_total")]
        if told and float(told[0].split()[-1]) > 0:
            return
        time.sleep(0.2)
    raise RouteFailed(f"the case made no token within {_READY_WITHIN_S:.0f} s")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
