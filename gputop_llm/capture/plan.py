"""What a capture will do, said before it does anything: to which processes, for how long, at which cost, written where.

A plan is what the user says yes to, and all that the worker is told besides the engine's API key. It knows each process
by PID and start time, so that a PID that is used again by another process is never touched.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gputop_llm.errors import NothingFound, UsageError
from gputop_llm.follow import describe
from gputop_llm.model import EngineFrame, Target, TargetProcess
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.units import size

DEFAULT_WINDOW_S = 0.5
LEAST_WINDOW_S = 0.05
LONGEST_WINDOW_S = 60.0
#: How long the engine is watched after the window, at most: a target must be back at its own rate by then.
RECOVERY_S = 10.0
ALL_KINDS = ("kernels", "copies", "memsets", "runtime", "driver")
#: Per second of window and rank; 0.5 s of a small model at 32 streams were 12 MB with all API calls.
BYTES_PER_S = 96 << 20
LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
#: By how much the wait of a thread that is borrowed may become longer (capture/inject/waits.py).
LATER_S = 1.0
_SAFE = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kind of capture was seen to cost on a loaded engine.

    Args:
        silence_s: added to the longest time without a token; 0.0 when none was seen.
        loss_pct: low and high of the token rate that was missing over `over_s` seconds around the window.
        seen: where that was measured.
    """

    silence_s: float
    loss_pct: tuple[float, float]
    over_s: float
    seen: str


#: Windows of 0.5 s, CUPTI 13.0; docs/capture.md has the figures.
NATIVE_COST = Cost(0.0, (5.0, 10.0), 5.0, "vLLM 0.24, 32 streams, one H200")


@dataclass(frozen=True, slots=True)
class PlannedRank:
    """One process to record: `number` counts them from 0, `rank` is what the engine calls it."""

    number: int
    pid: int
    start_ticks: int
    title: str
    rank: str | None = None
    gpus: tuple[int, ...] = ()

    @property
    def file(self) -> str:
        """The name of its record, once that is whole."""
        return f"rank{self.number}_pid{self.pid}.gtw"


@dataclass(frozen=True, slots=True)
class Plan:
    """One native window in all processes of a target.

    Args:
        target: in words; `argv` has its secrets blanked.
        window_s: how long to record, seconds.
        max_bytes: the most that one process may send.
        folder: where the capture's own folder `name` is made.
        url: the engine's metrics page, to watch what the window costs; None where there is none.
        at_s: wall time at which the plan was made.
        steps: how many engine steps were asked for, where it was steps.
    """

    target: str
    key: str
    engine: str
    ranks: tuple[PlannedRank, ...]
    window_s: float
    max_bytes: int
    folder: str
    name: str
    at_s: float
    url: str | None = None
    model: str | None = None
    version: str | None = None
    argv: tuple[str, ...] = ()
    container: str | None = None
    user: str | None = None
    steps: int | None = None
    kinds: tuple[str, ...] = ALL_KINDS

    @property
    def path(self) -> Path:
        """The capture's folder as the worker leaves it; with its verdict it gets a name that says more."""
        return Path(self.folder) / self.name

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that will be touched."""
        return tuple(rank.pid for rank in self.ranks)

    def facts(self) -> tuple[tuple[str, str], ...]:
        """What must be known before saying yes, as (label, text)."""
        cost = NATIVE_COST
        low, high = cost.loss_pct
        together = "; all at once" if len(self.ranks) > 1 else ""
        return (
            ("what", f"record what the GPU and its API calls do in {self.target}"),
            (
                "how",
                f"a small library is loaded into {_processes(self.ranks)}, through a thread that waits in the kernel "
                f"(stopped for about a millisecond; its wait may last up to {LATER_S:g} s longer, twice at most), "
                f"and records on a thread of its own{together}",
            ),
            ("how long", f"{_seconds(self.window_s)}{f' (about {self.steps} steps)' if self.steps else ''}"),
            (
                "cost",
                f"no added silence, {low:.0f}–{high:.0f} % of the token rate over {_seconds(cost.over_s)} around a "
                f"window of {_seconds(DEFAULT_WINDOW_S)} (as seen: {cost.seen}); what it really cost is in the verdict",
            ),
            (
                "written",
                f"a folder of its own in {self.folder}, at most {size(self.max_bytes * len(self.ranks))}; "
                "nothing on the target's side",
            ),
            (
                "stays",
                "the library stays mapped in each process, idle, until that process ends (the next window uses it)",
            ),
            (
                "ends",
                "by itself when the time, bytes, disk or memory bound is reached or the engine stalls; at once by "
                "cancelling, or when this program or its terminal is gone. The engine is never signalled or restarted",
            ),
        )


def make_plan(
    target: Target,
    folder: Path,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    engine: EngineFrame | None = None,
    now_s: float | None = None,
    proc: ProcFs | None = None,
) -> Plan:
    """The plan of a native window in all processes of the target that hold GPU contexts.

    Args:
        folder: where captures go.
        seconds, steps: how long; `steps` needs the engine's steps/s. Neither: half a second.
        engine: the target's metrics at the moment.

    Raises:
        NothingFound: none of its processes can be seen from here to use a GPU.
        UsageError: the window is too short or too long, or steps can't be told.
    """
    proc = proc or ProcFs()
    now_s = time.time() if now_s is None else now_s
    window_s = _window_s(seconds, steps, engine)
    ranks = tuple(_ranks(target, proc))
    if not ranks:
        raise NothingFound(
            f"cannot capture {describe(target)}",
            _why_none(target),
            "`gputop-llm doctor` says what can be seen from here",
        )
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
    words = _SAFE.sub("-", f"{target.engine} {(target.model or '').rpartition('/')[2]}").strip("-.")[:60]
    return Plan(
        target=describe(target),
        key=target.key,
        engine=target.engine,
        ranks=ranks,
        window_s=window_s,
        max_bytes=int(min(MOST_BYTES, max(LEAST_BYTES, window_s * BYTES_PER_S))),
        folder=str(folder.absolute()),
        name=f"{stamp}-{words}-{ranks[0].pid}",
        at_s=now_s,
        url=target.urls[0] if target.urls else None,
        model=target.model,
        version=target.version,
        argv=target.argv,
        container=target.container,
        user=target.user,
        steps=steps,
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as JSON."""
    return asdict(plan)


def plan_of(told: dict[str, Any]) -> Plan:
    """The plan in its JSON."""
    ranks = tuple(PlannedRank(**{**rank, "gpus": tuple(rank["gpus"])}) for rank in told["ranks"])
    return Plan(**{**told, "ranks": ranks, "argv": tuple(told["argv"]), "kinds": tuple(told["kinds"])})


def _ranks(target: Target, proc: ProcFs) -> list[PlannedRank]:
    found: list[PlannedRank] = []
    for process in target.processes:
        if process.pid is None or not _holds_gpu(process):
            continue
        try:
            ticks = proc.stat(process.pid).start_ticks
        except (OSError, ValueError):
            continue
        found.append(PlannedRank(len(found), process.pid, ticks, process.title, process.rank, process.gpus))
    return found


def _holds_gpu(process: TargetProcess) -> bool:
    return bool(process.gpus) and process.state != "Z"


def _why_none(target: Target) -> str:
    if not target.pids:
        return "it is not a process of this node" if target.urls_from == "flag" else "its processes can't be seen here"
    return f"none of its {len(target.pids)} processes is known to use a GPU"


def _window_s(seconds: float | None, steps: int | None, engine: EngineFrame | None) -> float:
    if steps is not None:
        rate = engine.window.total.steps_per_s if engine is not None and engine.window is not None else None
        if not rate:
            raise UsageError(
                f"cannot tell how long {steps} steps take",
                "the engine doesn't say its steps/s, or is idle",
                "give --seconds",
            )
        # A step more, so that the first and last, which are cut, don't count.
        return min(LONGEST_WINDOW_S, max(LEAST_WINDOW_S, (steps + 1) / rate))
    if seconds is None:
        return DEFAULT_WINDOW_S
    if not LEAST_WINDOW_S <= seconds <= LONGEST_WINDOW_S:
        raise UsageError(
            "the window can't be that long",
            f"it must be from {LEAST_WINDOW_S:g} to {LONGEST_WINDOW_S:g} s, got {seconds:g}",
        )
    return seconds


def _processes(ranks: Sequence[PlannedRank]) -> str:
    if len(ranks) == 1:
        return f"PID {ranks[0].pid}"
    return f"{len(ranks)} processes (PID {', '.join(str(rank.pid) for rank in ranks)})"


def _seconds(value: float) -> str:
    return f"{value:.3g} s"
