"""All processes of the node, kept from look to look so that a look stays cheap.

A node has thousands of processes and few of them matter. Each look lists /proc,
reads what is new or young or belongs to something interesting, and of the old
rest only every tenth process, in turn: a long-lived shell that becomes an engine
by `exec` is seen after ten looks at the latest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gputop_llm.clock import Clock
from gputop_llm.sources.procfs import GONE, ProcFs, Stat

YOUNG_S = 60.0
REST_EVERY = 10


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `argv` is empty for zombies and kernel threads."""

    pid: int
    ppid: int
    pgrp: int
    session: int
    state: str
    comm: str
    argv: tuple[str, ...]
    start_ticks: int

    @property
    def zombie(self) -> bool:
        """It has ended and only waits for its parent to take note."""
        return self.state in "ZX"

    @property
    def title(self) -> str:
        """What it calls itself: a setproctitle title, or its program; never the arguments."""
        return self.argv[0].strip() if self.argv and self.argv[0].strip() else self.comm


class ProcessTable:
    """The processes seen at the last `look`.

    `denied` are the PIDs that exist but can't be read.
    """

    def __init__(self, proc: ProcFs, clock: Clock) -> None:
        self.denied: set[int] = set()
        self._proc = proc
        self._clock = clock
        self._known: dict[int, Process] = {}
        self._young_until_s: dict[int, float] = {}
        self._turn = 0

    def look(self, interesting: Collection[int]) -> Mapping[int, Process]:
        """All processes by PID, those of `interesting` as they are now.

        Raises:
            OSError: /proc itself can't be listed.
        """
        self._turn += 1
        now_s = self._clock.mono()
        pids = self._proc.pids()
        for pid in pids:
            known = self._known.get(pid)
            if known is None or (pid + self._turn) % REST_EVERY == 0 or self._young_until_s[pid] > now_s:
                self._read(pid, None, now_s)
            elif pid in interesting:
                self._read(pid, known, now_s)
        for pid in self._known.keys() - set(pids):
            self._forget(pid)
        self.denied &= set(pids)
        return self._known

    def _read(self, pid: int, known: Process | None, now_s: float) -> None:
        """Reads one process; the command line of a `known` one only when it was renamed."""
        try:
            stat = self._proc.stat(pid)
            if known is not None and known.start_ticks == stat.start_ticks and known.comm == stat.comm:
                argv = known.argv
            else:
                argv = () if _kernel_thread(pid, stat) or stat.state == "Z" else self._proc.argv(pid)
        except GONE:
            self._forget(pid)
            return
        except (OSError, ValueError):
            self._forget(pid)
            self.denied.add(pid)
            return
        self.denied.discard(pid)
        now = Process(
            pid, stat.ppid, stat.pgrp, stat.session, stat.state, stat.comm, argv, start_ticks=stat.start_ticks
        )
        if self._known.get(pid) != now:
            self._known[pid] = now
            # Only its age comes from the wall clock, which may be set under us.
            age_s = self._clock.wall() - self._proc.start_s(stat.start_ticks)
            young_s = 0.0 if _kernel_thread(pid, stat) else min(YOUNG_S, YOUNG_S - age_s)
            self._young_until_s[pid] = now_s + young_s

    def _forget(self, pid: int) -> None:
        self._known.pop(pid, None)
        self._young_until_s.pop(pid, None)
        self.denied.discard(pid)


def _kernel_thread(pid: int, stat: Stat) -> bool:
    return stat.ppid == 2 or (pid == 2 and stat.ppid == 0 and stat.comm == "kthreadd")
