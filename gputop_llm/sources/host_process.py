"""CPU, memory and threads of one watched process between two polls.

A worker has more than a hundred threads, and reading them all costs a
millisecond. So all are read every fifth poll, and in between only the main
thread and the hottest eight of the last full reading; a thread that wakes up is
seen five polls later at the latest. A thread's share is over the time since it
was itself last read. Context switches are those of the main thread only, which
/proc/PID/status gives for nothing; in an engine core that is the busy one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import nlargest

from gputop_llm.clock import Clock
from gputop_llm.model import Host, ProcessLoad, TargetProcess, ThreadLoad
from gputop_llm.sources.procfs import GONE, PAGE_BYTES, TICKS_PER_S, ProcFs, Stat

NEEDS_TWO_POLLS = "needs two polls"
NEEDS_RIGHTS = "needs root or the same user"
NOT_TOLD = "/proc does not tell it of this process"
OTHER_PROCESS = "this PID is another process now"
IO_NOT_COUNTED = (
    "the kernel does not count it: `sudo sysctl kernel.task_delayacct=1` makes it, for processes started from then on"
)
NO_IO_COUNTED = "nothing was counted: it never waited, or was started before kernel.task_delayacct was 1"
FULL_EVERY = 5
HOTTEST = 8
TOP = 5

_STATUS = re.compile(rb"^(VmRSS|VmSwap|voluntary_ctxt_switches|nonvoluntary_ctxt_switches):\s+(\d+)", re.MULTILINE)
_RATES = (
    "cpu_pct",
    "main_thread_pct",
    "run_wait_pct",
    "top_threads",
    "ctx_voluntary_per_s",
    "ctx_involuntary_per_s",
    "io_wait_pct",
)
# Boot time is known to the second only, and by each reader on its own.
_SAME_START_S = 2.0


@dataclass(slots=True)
class _Thread:
    ticks: int
    io_ticks: int
    at_s: float
    name: str
    pct: float | None = None
    io_pct: float | None = None


@dataclass(frozen=True, slots=True)
class _Before:
    cpu_ticks: int
    voluntary: int | None
    involuntary: int | None
    waited_ns: int | None
    at_s: float


class WatchedProcess:
    """One process from poll to poll. A PID that is another process now starts anew."""

    def __init__(self, proc: ProcFs, pid: int, clock: Clock) -> None:
        self._proc = proc
        self._pid = pid
        self._clock = clock
        self._start_ticks: int | None = None
        self._before: _Before | None = None
        self._threads: dict[int, _Thread] = {}
        self._polls = 0

    def load(self, wanted: TargetProcess) -> ProcessLoad | None:
        """The process since the previous poll, without its control group; None if it has ended."""
        try:
            stat = self._proc.stat(self._pid)
            status = {name: int(number) for name, number in _STATUS.findall(self._proc.read(f"{self._pid}/status"))}
        except GONE:
            return None
        except (OSError, ValueError):
            return ProcessLoad(pid=self._pid, role=wanted.role, missing=dict.fromkeys(_ALL, NEEDS_RIGHTS))
        if wanted.start_s is not None and abs(self._proc.start_s(stat.start_ticks) - wanted.start_s) > _SAME_START_S:
            return ProcessLoad(pid=self._pid, role=wanted.role, missing=dict.fromkeys(_ALL, OTHER_PROCESS))
        if stat.start_ticks != self._start_ticks:
            self._start_ticks, self._before, self._threads, self._polls = stat.start_ticks, None, {}, 0
        now = _Before(
            stat.cpu_ticks,
            status.get(b"voluntary_ctxt_switches"),
            status.get(b"nonvoluntary_ctxt_switches"),
            self._waited_ns(),
            self._clock.mono(),
        )
        before, self._before = self._before, now
        missing: dict[str, str] = {}
        threads_denied = not self._read_threads(stat)
        if threads_denied:
            missing |= dict.fromkeys(("main_thread_pct", "top_threads", "io_wait_pct"), NEEDS_RIGHTS)
        elif (uncounted := self._io_uncounted()) is not None:
            missing["io_wait_pct"] = uncounted
        if now.waited_ns is None:
            missing["run_wait_pct"] = "this kernel keeps no schedstat"
        if before is None:
            missing |= {name: NEEDS_TWO_POLLS for name in _RATES if name not in missing}
        main = self._threads.get(self._pid)
        cpu, voluntary, involuntary = _rates(before, now)
        rss_kib, swap_kib = status.get(b"VmRSS"), status.get(b"VmSwap")
        load = ProcessLoad(
            pid=self._pid,
            role=wanted.role,
            state=stat.state,
            cpu_pct=None if cpu is None else 100.0 * cpu / TICKS_PER_S,
            rss_bytes=stat.rss_pages * PAGE_BYTES if rss_kib is None else rss_kib * 1024,
            swap_bytes=None if swap_kib is None else swap_kib * 1024,
            threads=stat.threads,
            top_threads=self._top(),
            main_thread_pct=main.pct if main else None,
            run_wait_pct=_wait_pct(before, now),
            ctx_voluntary_per_s=voluntary,
            ctx_involuntary_per_s=involuntary,
            io_wait_pct=None if "io_wait_pct" in missing else self._io_wait_pct(),
            missing=missing,
        )
        return replace(load, missing=explained(load, dict.fromkeys(_ALL, NOT_TOLD)))

    def _waited_ns(self) -> int | None:
        """How long the main thread has waited for a CPU in its life, in ns; None where the kernel doesn't tell."""
        try:
            _, waited, _ = self._proc.read(f"{self._pid}/schedstat").split()
            return int(waited)
        except (OSError, ValueError):
            return None

    def _io_wait_pct(self) -> float | None:
        known = [thread.io_pct for thread in self._threads.values() if thread.io_pct is not None]
        return sum(known) if known else None

    def _io_uncounted(self) -> str | None:
        """Why the wait for I/O can't be told; None if it is counted.

        Kernels before 5.14 count without being asked to and have no such setting; others count only tasks that were
        started while it was on, and say 0 of the rest.
        """
        try:
            if self._proc.read("sys/kernel/task_delayacct").strip() == b"0":
                return IO_NOT_COUNTED
        except OSError:
            pass
        return None if any(thread.io_ticks for thread in self._threads.values()) else NO_IO_COUNTED

    def _read_threads(self, stat: Stat) -> bool:
        """Reads all threads or the hottest ones; false if they may not be read."""
        # The second reading gives the first shares, so it is a full one too.
        full = self._polls == 1 or self._polls % FULL_EVERY == 0 or len(self._threads) <= HOTTEST
        self._polls += 1
        try:
            tids = [int(name) for name in self._proc.names(f"{self._pid}/task")] if full else self._hottest()
        except OSError:
            self._threads.clear()
            return False
        if full:
            self._threads = {tid: thread for tid, thread in self._threads.items() if tid in set(tids)}
        for tid in tids:
            try:
                name, ticks, io_ticks = self._proc.thread(self._pid, tid)
            except (OSError, ValueError, IndexError):
                self._threads.pop(tid, None)
                continue
            at_s = self._clock.mono()
            known = self._threads.get(tid)
            if known is None:
                self._threads[tid] = _Thread(ticks, io_ticks, at_s, name)
            elif at_s > known.at_s:
                per_pct = TICKS_PER_S * (at_s - known.at_s) / 100.0
                known.pct = max(0, ticks - known.ticks) / per_pct
                # A wait is counted as it ends, and may have begun before the last reading.
                known.io_pct = min(100.0, max(0, io_ticks - known.io_ticks) / per_pct)
                known.ticks, known.io_ticks, known.at_s, known.name = ticks, io_ticks, at_s, name
        return True

    def _hottest(self) -> list[int]:
        def heat(tid: int) -> float:
            thread = self._threads[tid]
            # A new thread may well be the hottest; one that waits for the disk is as interesting as one that computes.
            return math.inf if thread.pct is None else thread.pct + (thread.io_pct or 0.0)

        hottest = nlargest(HOTTEST, self._threads, key=heat)
        return list(dict.fromkeys((self._pid, *hottest)))

    def _top(self) -> tuple[ThreadLoad, ...]:
        busy = [ThreadLoad(tid, t.name, t.pct) for tid, t in self._threads.items() if t.pct is not None]
        return tuple(nlargest(TOP, busy, key=lambda thread: thread.cpu_pct))


_ALL = ("state", "rss_bytes", "swap_bytes", "threads", *_RATES)


def explained(reading: Host | ProcessLoad, reasons: Mapping[str, str]) -> dict[str, str]:
    """The reading's `missing`, and those of `reasons` whose field is unknown without one."""
    unexplained = {name: reason for name, reason in reasons.items() if getattr(reading, name) is None}
    return {**unexplained, **reading.missing}


def _rates(before: _Before | None, now: _Before) -> tuple[float | None, float | None, float | None]:
    """CPU ticks, voluntary and involuntary switches per second; None without a reading before."""
    if before is None or now.at_s <= before.at_s:
        return None, None, None
    seconds = now.at_s - before.at_s
    switches = [
        None if old is None or new is None else max(0, new - old) / seconds
        for old, new in ((before.voluntary, now.voluntary), (before.involuntary, now.involuntary))
    ]
    return max(0, now.cpu_ticks - before.cpu_ticks) / seconds, switches[0], switches[1]


def _wait_pct(before: _Before | None, now: _Before) -> float | None:
    if before is None or before.waited_ns is None or now.waited_ns is None or now.at_s <= before.at_s:
        return None
    return min(100.0, max(0, now.waited_ns - before.waited_ns) / (now.at_s - before.at_s) / 1e7)
