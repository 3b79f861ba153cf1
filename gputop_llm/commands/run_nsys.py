"""`gputop-llm run --nsys -- CMD`: a program under nsys as if there were none in between.

nsys puts itself between a program and its terminal: it copies the output through pipes, and a signal to it kills the
program. So nsys gets none of either: the program is handed this process's own input and output by a shim that nsys
launches in its place, nsys runs in a session of its own with all signals blocked, and this process hands on each signal
that it gets. As a container's first process it reaps what is left to it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from gputop_llm.capture.nsys.failures import explained
from gputop_llm.capture.nsys.tool import Tool, distrusted
from gputop_llm.errors import GputopError, UsageError
from gputop_llm.sources.nvml_driver import new_cuda_fails
from gputop_llm.timeline.nsys_export import find_nsys

_SHIM = Path(__file__).with_name("nsys_shim.py")
_SESSION = "NSYS_PROFILING_SESSION_ID"
_STARTS_WITHIN_S, _ATTEMPTS = 60.0, 3
#: After the program: nsys may write a report.
_ENDS_WITHIN_S = 120.0
_LOOK_S, _SHUTDOWN_WITHIN_S = 0.5, 10.0
_PR_SET_CHILD_SUBREAPER = 36
#: That go to this process alone, or can't be waited for.
_OURS = {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_UNKNOWN_STATUS = 1


class NotLaunched(GputopError):
    """The program is not there, or can't be executed."""

    def __init__(self, program: str, number: int, code: int) -> None:
        super().__init__(f"cannot start {program}", os.strerror(number).lower())
        self.exit_code = code


def launch(argv: Sequence[str]) -> int:
    """Runs a program under nsys to its end; returns its exit code (128 + N where signal N ended it).

    Raises:
        UsageError: it would run under nsys already, or CUDA is told to load something else.
        GputopError: no new CUDA process can work here, there is no nsys that can be used, or nsys or the program can't
            be started.
    """
    if (why := new_cuda_fails()) is not None:
        raise GputopError(f"will not start {argv[0]} under nsys", why)
    nsys = _nsys()
    return _Launch(nsys, argv).run()


def _nsys() -> Tool:
    for name in (_SESSION, "CUDA_INJECTION64_PATH"):
        if os.environ.get(name):
            raise UsageError(
                f"{name} is set already", "another profiler is asked for, or at work", f"unset {name}, or leave --nsys"
            )
    found = find_nsys()
    if not found:
        raise GputopError(
            "there is no nsys on this machine",
            "it is neither on the PATH nor where NVIDIA's packages put it",
            "install Nsight Systems (package nsight-systems-cli)",
        )
    if (doubt := distrusted(found[0].path)) is not None:
        raise GputopError(f"will not run {found[0].path}", doubt, "install it as root")
    return Tool(found[0].path)


def launch_options(tool: Tool, session: str) -> list[str]:
    """What nsys is told: CUDA and NVTX, replays of graphs as one row each (node by node they cost and distort)."""
    wanted = [
        ("--session-new", session),
        ("--trace", "cuda,nvtx"),
        ("--cuda-graph-trace", "graph"),
        ("--wait", "primary"),
        ("--discard-environment", "true"),
    ]
    return tool.options("launch", wanted)


class _Launch:
    """One program under nsys."""

    def __init__(self, tool: Tool, argv: Sequence[str]) -> None:
        self._tool = tool
        self._argv = list(argv)
        self._session = f"gputop-llm-{os.getpid()}"
        self._nsys = -1
        self._program = -1
        self._handle = -1
        self._ended: dict[int, int] = {}
        self._killed: set[int] = set()

    def run(self) -> int:
        """Its exit code."""
        masked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        handed_on = signal.valid_signals() - _OURS - _OWN_FAULTS
        signal.pthread_sigmask(signal.SIG_BLOCK, handed_on | {signal.SIGCHLD})
        # Left by nsys, should that be ended, the program comes to this process: its exit code is not lost.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        told = self._started(masked)
        try:
            code = self._until_end(handed_on)
            if code in (126, 127) and select.select([told], [], [], 0)[0]:
                failed = os.read(told, 64).partition(b"!")[2]
                if failed.strip().isdigit():
                    raise NotLaunched(self._argv[0], int(failed), code)
            return code
        finally:
            os.close(told)
            self._end_session()

    def _started(self, masked: set[int] | set[signal.Signals]) -> int:
        """Starts the program; a descriptor that tells of it.

        Raises:
            GputopError: nsys doesn't start it.
        """
        said = ""
        # Several nsys that start or end at the same moment trip over each other; nothing has been run by then.
        for _ in range(_ATTEMPTS):
            with tempfile.TemporaryFile() as words:
                told = self._start(masked, words)
                self._program = self._pid(told)
                if self._program >= 0:
                    return told
                os.close(told)
                words.seek(0)
                said = words.read(1 << 20).decode("utf-8", "replace")
                if self._nsys not in self._ended:
                    break
        meaning = explained(said)
        raise GputopError("nsys did not start the program", meaning.why, meaning.todo)

    def _start(self, masked: set[int] | set[signal.Signals], words: IO[bytes]) -> int:
        """Starts nsys; a descriptor that tells of the program."""
        told, tell = os.pipe()
        ours = [_duplicate(fd) for fd in (0, 1, 2)]
        mask = ",".join(str(int(number)) for number in masked)
        shim = [sys.executable, "-I", "-S", str(_SHIM), *map(str, ours), str(tell), mask]
        # Workers that are forked are not traced; nsys's own remedy for that may crash them.
        environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **os.environ}
        options = launch_options(self._tool, self._session)
        passed = [fd for fd in (*ours, tell) if fd >= 0]
        try:
            process = subprocess.Popen(
                [str(self._tool.path), "launch", *options, *shim, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=environment,
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError as error:
            raise GputopError(f"cannot start {self._tool.path}", error.strerror or str(error)) from error
        finally:
            for fd in passed:
                os.close(fd)
        self._nsys = process.pid
        # All children are waited for together, by number.
        process.returncode = 0
        return told

    def _pid(self, told: int) -> int:
        """The program's PID; -1 when nsys ended before it, or it isn't told in time."""
        until = time.monotonic() + _STARTS_WITHIN_S
        said = b""
        while not said.endswith(b"\n") and time.monotonic() < until:
            if select.select([told], [], [], 0.05)[0]:
                said += os.read(told, 1)
            elif self._reap() and self._nsys in self._ended:
                return -1
        pid = int(said) if said.strip().isdigit() else -1
        with suppress(OSError):
            self._handle = os.pidfd_open(pid)
        return pid

    def _until_end(self, handed_on: set[signal.Signals]) -> int:
        gave_up = float("inf")
        orphaned = False
        while True:
            info = signal.sigtimedwait(handed_on | {signal.SIGCHLD}, _LOOK_S)
            if info is not None and info.si_signo != signal.SIGCHLD:
                self._hand_on(info)
            self._reap()
            if self._program in self._ended:
                return self._ended[self._program]
            gone = self._gone()
            if self._nsys in self._ended:
                # One that was ended before the program, or was killed, knows nothing of it.
                orphaned = orphaned or not gone or self._nsys in self._killed
                if gone:
                    return _UNKNOWN_STATUS if orphaned else self._ended[self._nsys]
            if gone:
                gave_up = min(gave_up, time.monotonic() + _ENDS_WITHIN_S)
            if time.monotonic() > gave_up:
                return _UNKNOWN_STATUS

    def _end_session(self) -> None:
        """Of nsys parts that lost the others; by itself a session ends with its program."""
        with suppress(GputopError):
            if any(one.name == self._session for one in self._tool.sessions()):
                self._tool.run(["shutdown", "--kill=none", f"--session={self._session}"], _SHUTDOWN_WITHIN_S)

    def _hand_on(self, info: signal.struct_siginfo) -> None:
        """To the program; what a terminal sends, to all of its group."""
        stopping = info.si_signo in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
        number = signal.SIGSTOP if stopping else info.si_signo
        with suppress(OSError):
            if info.si_code > 0:
                os.killpg(self._program, number)
            else:
                os.kill(self._program, number)
        if stopping:
            os.kill(os.getpid(), signal.SIGSTOP)

    def _reap(self) -> bool:
        """Waits for all children that have ended."""
        found = False
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                found = True
                code = os.waitstatus_to_exitcode(status)
                self._ended[pid] = code if code >= 0 else 128 - code
                if code < 0:
                    self._killed.add(pid)
        return found

    def _gone(self) -> bool:
        if self._handle >= 0:
            return bool(select.select([self._handle], [], [], 0)[0])
        try:
            os.kill(self._program, 0)
        except OSError:
            return True
        return False


def _duplicate(fd: int) -> int:
    """Another descriptor of the same; -1 where it is closed."""
    try:
        return os.dup(fd)
    except OSError:
        return -1
