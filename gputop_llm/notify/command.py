"""`--exec`: the user's own command for each event.

No shell: the text is split into words as a shell would, and nothing of an event gets into them. The event is
on the command's standard input as JSON, and in a few variables. What the command writes is discarded.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import BinaryIO

from gputop_llm.config import ENV_PREFIX
from gputop_llm.errors import GputopError, UsageError
from gputop_llm.notify.notice import Notice

DEADLINE_S = 30.0
_GRACE_S = 1.0
_LOOK_S = 0.05
# What the command has no business to know, or would start itself with.
_WITHHELD = tuple(ENV_PREFIX + name for name in ("API_KEY", "WEBHOOK", "EXEC"))


class Command:
    """Runs one command at a time.

    Args:
        text: the command line.
        deadline_s: a command that runs longer is killed with all its children.

    Raises:
        UsageError: it can't be run.
    """

    name = "the command of --exec"

    def __init__(self, text: str, deadline_s: float = DEADLINE_S) -> None:
        try:
            self._argv = shlex.split(text)
        except ValueError as error:
            raise UsageError("--exec: the command can't be used", str(error).lower()) from None
        if not self._argv:
            raise UsageError("--exec: the command is empty")
        if shutil.which(self._argv[0]) is None:
            raise UsageError(f"--exec: there is no program '{self._argv[0]}'", todo="give its full path")
        self._deadline_s = deadline_s
        self._aborted = threading.Event()

    def deliver(self, notice: Notice) -> None:
        """Runs the command to its end.

        Raises:
            GputopError: it could not be started, failed, or took too long.
        """
        if self._aborted.is_set():
            return
        environment = {name: value for name, value in os.environ.items() if name not in _WITHHELD}
        with _as_file(notice.body) as stdin:
            try:
                process = subprocess.Popen(
                    self._argv,
                    stdin=stdin,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**environment, **notice.words},
                    # Its own group: it is killed with all that it has started, and a Ctrl-C at the terminal isn't its.
                    start_new_session=True,
                )
            except OSError as error:
                raise GputopError(f"{self.name} could not be started", error.strerror or str(error)) from None
        in_time = self._ended(process.pid, self._deadline_s)
        if not in_time:
            self._kill(process.pid)
        try:
            status = process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            raise GputopError(f"{self.name} can't be killed", f"PID {process.pid} goes on") from None
        if not in_time and not self._aborted.is_set():
            raise GputopError(f"{self.name} was killed", f"it ran for {self._deadline_s:g} s")
        if in_time and status != 0:
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            raise GputopError(f"{self.name} {how}")

    def abort(self) -> None:
        """Kills the command that is running; no other one is started."""
        self._aborted.set()

    def _ended(self, pid: int, within_s: float) -> bool:
        """Whether the process ends in time. It is left a zombie, so that its number stays its own."""
        until = time.monotonic() + within_s
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() >= until or self._aborted.wait(_LOOK_S):
                return False
        return True

    def _kill(self, pid: int) -> None:
        _signal_group(pid, signal.SIGTERM)
        until = time.monotonic() + (0.0 if self._aborted.is_set() else _GRACE_S)
        while time.monotonic() < until:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(_LOOK_S)
        # The children of one that has ended may still be there.
        _signal_group(pid, signal.SIGKILL)


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _as_file(body: bytes) -> BinaryIO:
    """The body as a file in memory: unlike a pipe it takes all of it, whether or not it is ever read."""
    file = os.fdopen(os.memfd_create("event"), "w+b")
    file.write(body)
    file.seek(0)
    return file
