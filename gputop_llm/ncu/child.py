"""Runs a tool with the program that it starts, to the end of both: within a time, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from gputop_llm.errors import GputopError

_LOOK_S = 0.05
#: Between asking all of it to end and killing it.
_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended: `code` as of `subprocess` (negative: a signal), None when its time was up; how long it took."""

    code: int | None
    wall_s: float


def run(
    argv: Sequence[str],
    output: IO[bytes],
    within_s: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    running: Callable[[int], None] = lambda _pid: None,
) -> Ended:
    """Runs it to its end, with nothing on its standard input.

    Args:
        output: where its standard output and error go.
        within_s: after so long it is ended, with all that it started.
        cwd: where it runs; None: here.
        environment: None: this process's own.
        cancelled: asked some times a second whether to end it.
        running: called as often with its PID.

    Raises:
        GputopError: it can't be started.
        KeyboardInterrupt: Ctrl-C, `cancelled`, or a signal that would end this process; all of it is ended by then.
    """
    began = time.monotonic()
    with ended_by_signals():
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise GputopError(f"cannot start {argv[0]}", (error.strerror or str(error)).lower()) from error
        try:
            while time.monotonic() - began < within_s:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_S)
                    return Ended(code, time.monotonic() - began)
                if cancelled():
                    raise KeyboardInterrupt
                running(process.pid)
            return Ended(None, time.monotonic() - began)
        finally:
            _end(process)


def family(pid: int) -> list[int]:
    """The processes of the session that `pid` leads, and all that descend from it; without those that have ended."""
    parents: dict[int, int] = {}
    found = {pid}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
            # After the name, which may hold anything: state, parent, group, session.
            state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
            if state not in (b"Z", b"X"):
                parents[int(name)] = int(parent)
                if int(session) == pid:
                    found.add(int(name))
    grown = True
    while grown:
        more = {one for one, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    return sorted(one for one in found if one in parents)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks all of it to end, then kills what is left; also who left the process group."""
    # A second Ctrl-C must not leave half of it running; this takes no longer than the grace.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        _end_all(process)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _end_all(process: subprocess.Popen[bytes]) -> None:
    left = family(process.pid)
    until = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, number)
        while left and time.monotonic() < until:
            process.poll()
            left = [pid for pid in {*left, *family(process.pid)} if os.path.exists(f"/proc/{pid}") and _alive(pid)]
            if left:
                time.sleep(0.01)
    process.wait()


def _alive(pid: int) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    return False


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end what runs as Ctrl-C does: a tool is a session of its own, and would go on."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
