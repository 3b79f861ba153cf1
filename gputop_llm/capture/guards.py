"""What ends a window early: bytes, time, the disk, the target's memory, its silence, its end.

Each guard answers with a clause that says why, or None. Looking costs well below a millisecond.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.capture.plan import Plan, PlannedRank
from gputop_llm.sources.procfs import GONE, PAGE_BYTES, ProcFs, Stat
from gputop_llm.units import size

FREE_PCT, FREE_BYTES = 5.0, 2 << 30
#: What a process may grow by during a window; the client's own buffers are some tens of MB.
GROWTH_BYTES = 1 << 30
#: Windows of this length and more are ended when the engine's tokens stand still for longer than announced, by this.
WATCHED_S, STILL_S = 3.0, 1.5
#: A client is late when its end has not come this long after the window's.
LATE_S = 10.0


@dataclass(frozen=True, slots=True)
class Disk:
    """Room where captures go, in bytes."""

    total: int
    free: int

    @property
    def kept_free(self) -> int:
        """What a capture never uses."""
        return max(FREE_BYTES, int(self.total * FREE_PCT / 100))


def disk_at(path: Path) -> Disk:
    """Room at a path, or at the nearest folder above it that exists.

    Raises:
        OSError: it can't be told.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    usage = shutil.disk_usage(path)
    return Disk(usage.total, usage.free)


def disk_full(disk: Disk, planned_bytes: int = 0) -> str | None:
    """Why there is too little room."""
    if disk.free - planned_bytes >= disk.kept_free:
        return None
    wanted = f" after {size(planned_bytes)} more" if planned_bytes else ""
    return f"{size(disk.free)} are free, and {size(disk.kept_free)} must stay free{wanted}"


def stat_of(pid: int, start_ticks: int, proc: ProcFs) -> Stat | None:
    """What /proc says of a process; None when it has ended, also where its PID is another process's by now."""
    try:
        stat = proc.stat(pid)
    except (*GONE, ValueError):
        return None
    return stat if stat.start_ticks == start_ticks and stat.state not in "ZX" else None


def process_trouble(rank: PlannedRank, proc: ProcFs) -> str | None:
    """Why a process can't be recorded now: it has ended, or is stopped."""
    stat = stat_of(rank.pid, rank.start_ticks, proc)
    if stat is None:
        return f"PID {rank.pid} ({rank.title}) has ended"
    if stat.state == "T":
        return f"PID {rank.pid} ({rank.title}) is stopped (SIGSTOP)"
    if stat.state == "t":
        return f"PID {rank.pid} ({rank.title}) is held by a debugger"
    return None


class Guards:
    """The guards of one window.

    Args:
        plan: of the window.
        folder: where it is written.
        samples: what the engine said so far, oldest first.
        disk: room there, for tests.
        proc: for tests.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        samples: Callable[[], Sequence[EngineSample]],
        disk: Callable[[Path], Disk] = disk_at,
        proc: ProcFs | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._samples = samples
        self._disk = disk
        self._proc = proc or ProcFs()
        self._rss = {rank.pid: self._rss_of(rank) for rank in plan.ranks}

    def trouble(self, received_bytes: int, since_start_s: float) -> str | None:
        """Why the window must end now; None while all is well.

        Args:
            received_bytes: from all ranks.
            since_start_s: of the window, negative before it.
        """
        return (
            self.target()
            or self._bytes(received_bytes)
            or self._time(since_start_s)
            or self._room()
            or self._memory()
            or self._silence(since_start_s)
        )

    def all_there(self) -> bool:
        """Whether every process can answer."""
        return self.target() is None

    def target(self) -> str | None:
        """Why a process of the target can't answer any more; None while all can."""
        return next((why for rank in self._plan.ranks if (why := process_trouble(rank, self._proc))), None)

    def _bytes(self, received: int) -> str | None:
        most = self._plan.max_bytes * len(self._plan.ranks)
        return f"{size(received)} were received, the most that this window may have" if received >= most else None

    def _time(self, since_start_s: float) -> str | None:
        late_s = since_start_s - self._plan.window_s
        return f"its end is overdue by {late_s:.0f} s" if late_s > LATE_S else None

    def _room(self) -> str | None:
        try:
            full = disk_full(self._disk(self._folder))
        except OSError as error:
            return f"the room on the disk can't be told ({(error.strerror or str(error)).lower()})"
        return f"the disk is nearly full: {full}" if full else None

    def _memory(self) -> str | None:
        for rank in self._plan.ranks:
            before, now = self._rss[rank.pid], self._rss_of(rank)
            if before is not None and now is not None and now - before > GROWTH_BYTES:
                return f"PID {rank.pid} ({rank.title}) has grown by {size(now - before)}"
        return None

    def _silence(self, since_start_s: float) -> str | None:
        """The engine's own counter; only where it moved before, and only while the engine says that it has work."""
        if self._plan.window_s < WATCHED_S or since_start_s < 0:
            return None
        still_s = standing_still_s(self._samples())
        allowed_s = self._plan.cost.silence_s + STILL_S
        return f"the engine has made no token for {still_s:.1f} s" if still_s and still_s > allowed_s else None

    def _rss_of(self, rank: PlannedRank) -> int | None:
        stat = stat_of(rank.pid, rank.start_ticks, self._proc)
        return stat.rss_pages * PAGE_BYTES if stat is not None else None


def standing_still_s(samples: Sequence[EngineSample]) -> float | None:
    """How long the engine's token counter has stood still with requests running, by its last answers, in seconds.

    None where that can't be told: too few answers, no counter that moves step by step, or it never moved.
    """
    known = [s for s in samples if s.progress is not None]
    if len(known) < 2:
        return None
    last = known[-1]
    since = last.mono_ns
    for sample in reversed(known[:-1]):
        if sample.progress != last.progress:
            return (last.mono_ns - since) / 1e9
        if not sample.running:
            return 0.0
        since = sample.mono_ns
    return None
