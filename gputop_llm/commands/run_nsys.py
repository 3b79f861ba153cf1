"""`gputop-llm run --nsys -- CMD`: a program under nsys as if there were none in between.

nsys puts itself between a program and its terminal: it copies the output through pipes, and a signal to it kills the
program. So nsys gets none of either: a shim that nsys launches in the program's place is handed this process's own
input and output through a socket (what nsys is given, parts of it keep open when all is over), nsys runs in a session
of its own with all signals blocked, and this process hands on each signal that it gets. As a container's first process
it reaps what is left to it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from gputop_llm.capture.nsys.failures import explained
from gputop_llm.capture.nsys.tool import Tool, distrusted
from gputop_llm.errors import GputopError, UsageError
from gputop_llm.sources.nvml_driver import new_cuda_fails
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.timeline.nsys_export import find_nsys

_SHIM = Path(__file__).with_name("nsys_shim.py")
_SESSION = "NSYS_PROFILING_SESSION_ID"
_STARTS_WITHIN_S, _ATTEMPTS = 60.0, 3
#: After the program: nsys may write a report; one that has none to write was seen to hang.
_ENDS_WITHIN_S, _HANGS_S = 120.0, 10.0
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
        self._agent_handle = -1
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
            # Whatever nsys makes of it: this the program's shim has said itself.
            failed = os.read(told, 64).partition(b"!")[2] if select.select([told], [], [], 0)[0] else b""
            if failed.strip().isdigit():
                number = int(failed)
                raise NotLaunched(self._argv[0], number, 127 if number == errno.ENOENT else 126)
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
        for attempt in range(_ATTEMPTS):
            if attempt:
                # What is left of a session takes no program any more.
                self._end_session()
                self._end_agent()
                self._session = f"gputop-llm-{os.getpid()}-{attempt}"
            with tempfile.TemporaryFile() as words:
                told = self._start(masked, words)
                self._program = self._pid(told)
                if self._program >= 0:
                    self._watch_agent()
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
        ours, shims = socket.socketpair()
        mask = ",".join(str(int(number)) for number in masked)
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(shims.fileno()), mask]
        # Workers that are forked are not traced; nsys's own remedy for that may crash them.
        environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **os.environ}
        options = launch_options(self._tool, self._session)
        try:
            process = subprocess.Popen(
                [str(self._tool.path), "launch", *options, *shim, *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=environment,
                pass_fds=(shims.fileno(),),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise GputopError(f"cannot start {self._tool.path}", error.strerror or str(error)) from error
        finally:
            shims.close()
        self._nsys = process.pid
        # All children are waited for together, by number.
        process.returncode = 0
        return ours.detach()

    def _pid(self, told: int) -> int:
        """The program's PID; -1 when nsys ended before it, or it isn't told in time."""
        until = time.monotonic() + _STARTS_WITHIN_S
        said = b""
        while not said.endswith(b"\n") and time.monotonic() < until:
            self._reap()
            # Looked at before what was said is read: a program that has begun must not be begun again.
            ended = self._nsys in self._ended
            if select.select([told], [], [], 0.05)[0]:
                if piece := os.read(told, 1):
                    said += piece
                    continue
                # Its other end is gone, with all that could still say something.
                time.sleep(0.05)
            if ended:
                return -1
        if not said.strip().isdigit():
            return -1
        with suppress(OSError):
            self._handle = os.pidfd_open(int(said))
        _hand_over(told)
        return int(said)

    def _until_end(self, handed_on: set[signal.Signals]) -> int:
        over_at = float("inf")
        orphaned = asked = False
        while True:
            info = signal.sigtimedwait(handed_on | {signal.SIGCHLD}, _LOOK_S)
            # Before a signal ends the program. Without its agent, nsys was seen to call any end of it 0.
            orphaned = orphaned or (_has_ended(self._agent_handle) and not self._gone())
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
                over_at = min(over_at, time.monotonic())
            since_s = time.monotonic() - over_at
            if since_s > _HANGS_S and not asked and not self._collects():
                asked = orphaned = True
                self._end_session()
            if since_s > (2 * _HANGS_S if asked else _ENDS_WITHIN_S):
                # It holds our output open, for which others may wait.
                with suppress(ProcessLookupError):
                    os.kill(self._nsys, signal.SIGKILL)
                self._end_agent()
                return _UNKNOWN_STATUS

    def _collects(self) -> bool:
        """Whether nsys is at a collection, or writes its report."""
        with suppress(GputopError):
            session = self._tool.session(self._session)
            return session is not None and session.collecting
        return False

    def _end_session(self) -> None:
        """Of nsys parts that lost the others; by itself a session ends with its program."""
        with suppress(GputopError):
            if any(one.name == self._session for one in self._tool.sessions()):
                self._tool.run(["shutdown", "--kill=none", f"--session={self._session}"], _SHUTDOWN_WITHIN_S)

    def _watch_agent(self) -> None:
        for pid in self._agents():
            with suppress(OSError):
                self._agent_handle = os.pidfd_open(pid)

    def _end_agent(self) -> None:
        """Of a session without a program: in state Shutdown it was seen to stay for good, and to answer nothing."""
        for pid in self._agents():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def _agents(self) -> Iterator[int]:
        """Of nsys's parts, those that hold the session; one, or none."""
        proc = ProcFs()
        for pid in proc.pids():
            with suppress(OSError):
                argv = proc.argv(pid)
                if "--start-agent" in argv[:3] and f"--session-name={self._session}" in argv:
                    yield pid

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
            return _has_ended(self._handle)
        try:
            os.kill(self._program, 0)
        except OSError:
            return True
        return False


def _has_ended(handle: int) -> bool:
    """Whether the process of a pidfd has; of none (-1) that isn't known."""
    return handle >= 0 and bool(select.select([handle], [], [], 0)[0])


def _hand_over(told: int) -> None:
    """Gives the shim what is open of this process's input and output, and says which that is."""
    fds = [fd for fd in (0, 1, 2) if _is_open(fd)]
    with suppress(OSError), socket.socket(fileno=os.dup(told)) as line:
        socket.send_fds(line, ["".join(map(str, fds)).encode() + b"\n"], fds)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
