"""Samples the Python stacks of one process while something else is recorded, with the time of each sample.

py-spy counts its time from a moment that it doesn't tell. But right after that moment it starts a thread: watching for
that bounds it to some tenths of a millisecond.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from typing import Any

from gputop_llm.capture import process
from gputop_llm.capture.stacks import pyspy
from gputop_llm.capture.stacks.refused import situation, unreadable
from gputop_llm.capture.stacks.trace import samples_of
from gputop_llm.errors import GputopError

MOST_HZ, LEAST_HZ = 200, 10
#: Reading a thread took 0.08 ms of processor time; a tenth of one processor is for that.
_LOOKS_AT_A_TENTH = 1200
#: It begins a little before the window and is ended after it; this is for a worker that dies meanwhile.
_BEYOND_S = 30.0
_LOOK_S = 0.0003
#: Starting a program takes milliseconds; on a node that is overloaded, a second.
_ZERO_WITHIN_S = 3.0
_READY_WITHIN_S = 3.0
_END_WITHIN_S = 15.0
_COUNT_WITHIN_S = 2.0
_CLOSE_WITHIN_S = 3.0
#: What `start` and `stop` take at most.
LONGEST_S = 20.0
_MOST_BYTES = 256 << 20
_COUNTS = re.compile(r"Samples: (\d+) Errors: (\d+)")


@dataclass(frozen=True, slots=True)
class Zero:
    """When py-spy's time began: CLOCK_REALTIME (ns), and by how much it may have been earlier or later."""

    realtime_ns: int
    error_ns: int


class Sampler:
    """Samples one process from `start` to `stop`. It is never stopped for it.

    Args:
        pid: of the process.
        window_s: the least time to sample for.
    """

    def __init__(self, pid: int, window_s: float) -> None:
        self._pid = pid
        self._window_s = window_s
        self._recording = pyspy.Recording(_MOST_BYTES)
        self._rate_hz = LEAST_HZ
        self._wanted, self._closed = True, False
        self._ready = threading.Event()
        self._zero: Zero | None = None
        self._ready_cpu_s: float | None = None
        self._done: process.Ran | None = None
        self._failure: GputopError | None = None
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def start(self) -> None:
        """Begins; returns when it samples, or can't."""
        self._rate_hz = rate_for(_python_threads(self._pid))
        self._thread.start()
        self._ready.wait(_ZERO_WITHIN_S + _READY_WITHIN_S)

    def stop(self) -> dict[str, Any]:
        """Ends it; returns its samples, as `timeline.stack_samples` reads them.

        Raises:
            GputopError: there are none.
        """
        self._wanted = False
        self._thread.join(_END_WITHIN_S)
        return self._samples()

    def close(self) -> None:
        """Ends it, and lets go of everything."""
        self._wanted = False
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)
        if not self._closed and not self._thread.is_alive():
            self._closed = True
            self._recording.close()

    def _run(self) -> None:
        try:
            argv = self._recording.argv(self._pid, self._window_s + _BEYOND_S, self._rate_hz, "chrometrace", idle=True)
            within_s = self._window_s + 2 * _BEYOND_S
            fds = [self._recording.fd]
            self._done = process.ran(argv, within_s, self._started, lambda: not self._wanted, fds)
        except GputopError as failure:
            self._failure = failure
        finally:
            self._ready.set()

    def _started(self, pid: int) -> None:
        """Watches py-spy start: its second thread is there right after its time began, a third once it samples."""
        low = time.monotonic_ns()
        if self._threads_reach(pid, 2, low, _ZERO_WITHIN_S) and self._wanted:
            self._threads_reach(pid, 3, time.monotonic_ns(), _READY_WITHIN_S)
            self._ready_cpu_s = process.cpu_s_of(pid)
        self._ready.set()

    def _threads_reach(self, pid: int, count: int, low: int, within_s: float) -> bool:
        until = time.monotonic() + within_s
        while time.monotonic() < until and self._wanted:
            before = time.monotonic_ns()
            try:
                threads = len(os.listdir(f"/proc/{pid}/task"))
            except OSError:
                return False
            after = time.monotonic_ns()
            if threads >= count:
                if self._zero is None:
                    now = time.time_ns() - time.monotonic_ns()
                    self._zero = Zero(now + (low + after) // 2, (after - low) // 2)
                return True
            low = before
            time.sleep(_LOOK_S)
        return False

    def _samples(self) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        done = self._done
        if done is None or done.code != 0:
            said = done.err.decode("utf-8", "replace") if done is not None else ""
            why = unreadable(said, done is not None and done.code is not None, situation(self._pid))
            raise GputopError("no Python stacks were sampled", why.why, why.todo)
        if self._zero is None:
            raise GputopError("no Python stacks were sampled", "when the sampling began can't be told", "try again")
        try:
            samples = samples_of(self._recording.read())
        except (ValueError, RecursionError) as error:
            raise GputopError("no Python stacks were sampled", f"py-spy's trace makes no sense ({error})") from None
        counts = _COUNTS.search((done.out + done.err).decode("utf-8", "replace"))
        threads = max(1, len(samples["threads"]))
        taken = int(counts[1]) / threads if counts is not None else None
        return {
            **samples,
            "pid": self._pid,
            "tool": "py-spy",
            "rate_hz": self._rate_hz,
            "zero_realtime_ns": self._zero.realtime_ns,
            "zero_error_ns": self._zero.error_ns,
            "samples_per_thread": taken,
            "errors": int(counts[2]) if counts is not None else None,
            "cpu_s": self._sampling_cpu_s(done.cpu_s),
        }

    def _sampling_cpu_s(self, cpu_s: float | None) -> float | None:
        """What sampling took, without reading the interpreter's symbols at first."""
        return None if cpu_s is None or self._ready_cpu_s is None else max(0.0, cpu_s - self._ready_cpu_s)


def rate_for(threads: int) -> int:
    """How often to look at a process with so many Python threads, a second."""
    return max(LEAST_HZ, min(MOST_HZ, _LOOKS_AT_A_TENTH // max(1, threads)))


def _python_threads(pid: int) -> int:
    """How many there are; a great many where it can't be told."""
    try:
        done = pyspy.dump(pid, _COUNT_WITHIN_S)
        return len(pyspy.threads_of(done.out)) if done.code == 0 else _LOOKS_AT_A_TENTH
    except (GputopError, ValueError, RecursionError):
        return _LOOKS_AT_A_TENTH
