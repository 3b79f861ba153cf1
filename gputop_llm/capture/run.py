"""One capture as whoever asked for it sees it: started, followed, cancelled.

The capture's own process is told everything by a pipe: closing it, or dying, cancels.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict

from gputop_llm.capture import process
from gputop_llm.capture.engine_watch import samples_in
from gputop_llm.capture.plan import Plan, plan_json
from gputop_llm.capture.progress import MOST_BYTES, Progress, progress_of
from gputop_llm.model import Frame

WORKER = "gputop_llm.capture.worker"
#: A cancel ends each of the worker's steps sooner; only the verdict of a window that was cancelled before may take
#: longer, and is finished without us.
_END_WITHIN_S = 30.0
_LOOK_S = 0.2
_ASK_WITHIN_S = 1.0
#: On a busy node the worker may need so long before it reads; frames that find no room until then are left out.
_ORDER_WITHIN_S = 30.0
_FRAMES_WITHIN_S = 3.0
#: Of the rest of a line that was begun.
_REST_WITHIN_S = 5.0
#: What any user may have; a minute of frames of eight processes.
_PIPE_BYTES = 1 << 20


class CaptureRun:
    """Runs a plan in a process of its own. Call `close` in the end, from any state.

    Making one takes as long as that process needs to read `frames`: up to some seconds on a busy node.

    Args:
        plan: what was agreed to.
        api_key, url, ca_file: for the engine's metrics page; `url` as it is asked, which the plan's own may not show.
        frames: lines of JSON of what was seen of the node before (`report.jsonform.frame_line`), oldest first.
        before: the same frames themselves: what they say of the engine's pace need not be waited for.

    Raises:
        GputopError: the process can't be started.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        api_key: str | None = None,
        url: str | None = None,
        ca_file: str | None = None,
        frames: Sequence[str] = (),
        before: Sequence[Frame] = (),
    ) -> None:
        self.plan = plan
        self._buffer = b""
        self._last: Progress | None = None
        self._writing = threading.RLock()
        self._worker = process.start(WORKER)
        os.set_blocking(self._worker.out.fileno(), False)
        os.set_blocking(self._worker.to.fileno(), False)
        with suppress(OSError):
            fcntl.fcntl(self._worker.to.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        samples = [asdict(one) for one in samples_in(before, plan.key)]
        order = {"plan": plan_json(plan), "api_key": api_key, "url": url or plan.url, "ca_file": ca_file}
        self._write(json.dumps({**order, "samples": samples}).encode("ascii") + b"\n", patience_s=_ORDER_WITHIN_S)
        until = time.monotonic() + _FRAMES_WITHIN_S
        for frame in frames:
            self.frame(frame, patience_s=max(0.0, until - time.monotonic()))

    @property
    def pid(self) -> int:
        """The PID of the capture's process."""
        return self._worker.pid

    @property
    def fd(self) -> int:
        """A descriptor that is readable when there is something to `poll`."""
        return self._worker.out.fileno()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._worker.to.closed

    @property
    def ended(self) -> Progress | None:
        """How it ended; None while it goes on."""
        return self._last

    def frame(self, text: str, patience_s: float = 0.0) -> None:
        """Hands over a frame (one line of JSON) for the capture's folder; one that finds no room is left out."""
        self._write(b'{"frame":' + text.encode("ascii") + b"}\n", patience_s)

    def cancel(self) -> None:
        """Ends it at once; what was recorded is kept. Goes on to tell its progress."""
        # A thread that hands over a frame must not write to what the number stands for next.
        with self._writing, suppress(OSError):
            self._worker.to.close()

    def poll(self) -> list[Progress]:
        """What was told since the last call. Never waits."""
        told: list[Progress] = []
        while self._last is None:
            try:
                more = os.read(self._worker.out.fileno(), 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                more = b""
            if not more:
                self._last = self._died()
                told.append(self._last)
                break
            *lines, self._buffer = (self._buffer + more).split(b"\n")
            self._buffer = self._buffer[:MOST_BYTES]
            for line in lines:
                if (one := progress_of(line)) is not None:
                    told.append(one)
                    if one.stage == "ended":
                        self._last = one
        return told

    def follow(self) -> Iterator[Progress]:
        """Yields progress until the end; waits in between."""
        while self._last is None:
            select.select([self.fd], [], [], _LOOK_S)
            yield from self.poll()

    def close(self) -> None:
        """Cancels what goes on, waits for its end (bounded), and lets go of the process."""
        self.cancel()
        until = time.monotonic() + _END_WITHIN_S
        while self._last is None and time.monotonic() < until:
            select.select([self.fd], [], [], _LOOK_S)
            self.poll()
        with suppress(OSError):
            self._worker.out.close()
        self._worker.ended(_ASK_WITHIN_S)

    def _died(self) -> Progress:
        return Progress(
            "ended",
            outcome="failed",
            what="the capture's own process was ended from outside",
            why="it may have been killed",
            todo="what it had recorded is among the captures; `gputop-llm doctor --leftovers` shows what else is left",
        )

    def _write(self, line: bytes, patience_s: float) -> None:
        """All of a line, or, where there is no room for it within `patience_s`, nothing."""
        rest = memoryview(line)
        until = time.monotonic() + patience_s
        with self._writing, suppress(OSError, ValueError):
            fd = self._worker.to.fileno()
            while not _has_room(fd, len(line)):
                if time.monotonic() >= until:
                    return
                time.sleep(min(_LOOK_S, max(0.0, until - time.monotonic())))
            until = max(until, time.monotonic() + _REST_WITHIN_S)
            while rest:
                try:
                    rest = rest[os.write(fd, rest) :]
                    continue
                except BlockingIOError:
                    pass
                # A line that was begun must be ended.
                if time.monotonic() >= until:
                    self.cancel()
                    return
                select.select([], [fd], [], _LOOK_S)


def _has_room(fd: int, count: int) -> bool:
    """Whether a pipe takes so many bytes at once, or holds none: then whoever reads it will take them."""
    waiting = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
    # Of the pages that a line takes half may be wasted.
    size = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
    return waiting == 0 or count <= (size - waiting) // 2
