"""What a capture will do, said before it does anything: to which processes, for how long, at which cost, written where.

A plan is what the user says yes to, and all that the worker is told besides the engine's API key. It knows each process
by PID and start time, so that a PID that is used again by another process is never touched.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gputop_llm.capture.way import Cost, Seen, Way
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
#: What the GPU does, without the API calls that made it do so.
GPU_KINDS = ("kernels", "copies", "memsets")
ALL_KINDS = (*GPU_KINDS, "runtime", "driver")
#: Per second of window and rank; 0.5 s of a small model at 32 streams were 12 MB with all API calls.
BYTES_PER_S = 96 << 20
LEAST_BYTES, MOST_BYTES = 64 << 20, 1 << 30
_SAFE = re.compile(r"[^A-Za-z0-9.]+")


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
    """One capture of all processes of a target.

    Args:
        target: in words; `argv` has its secrets blanked.
        window_s: how long to record, seconds.
        max_bytes: the most that one process may send.
        folder: where the capture's own folder `name` is made.
        url: the engine's metrics page, to watch what the window costs; None where there is none.
        at_s: wall time at which the plan was made.
        steps: how many engine steps were asked for, where it was steps.
        kinds: what a native window records.
        route: by which way (`ways.WAYS`).
        options: what only that way knows; JSON.
        some_ranks: whether the target has more processes, which were not asked for.
        armed: the symptom that fired it, with its evidence (`armed.evidence_of`); None where somebody asked for it.
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
    route: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)
    some_ranks: bool = False
    armed: Mapping[str, Any] | None = None

    @property
    def path(self) -> Path:
        """The capture's folder as the worker leaves it; with its verdict it gets a name that says more."""
        return Path(self.folder) / self.name

    @property
    def cost(self) -> Cost:
        """What it is expected to cost."""
        return self._way().cost

    def facts(self) -> tuple[tuple[str, str], ...]:
        """What must be known before saying yes, as (label, text)."""
        words = self._way().words(self)
        return (
            ("what", words.what),
            ("route", words.title),
            ("how", words.how),
            ("how long", f"{_seconds(self.window_s)}{f' (about {self.steps} steps)' if self.steps else ''}"),
            (
                "cost",
                f"{_expected(self.cost)}{words.costs and f'; {words.costs}'}; what it really cost is in the verdict",
            ),
            (
                "written",
                f"a folder of its own in {self.folder}, at most {size(self.max_bytes * len(self.ranks))}; "
                f"{words.written}",
            ),
            ("stays", words.stays),
            ("ends", words.ends),
        )

    def processes(self) -> str:
        """The processes that will be touched, in words."""
        if len(self.ranks) == 1:
            return f"PID {self.ranks[0].pid}"
        return f"{len(self.ranks)} processes (PID {', '.join(str(rank.pid) for rank in self.ranks)})"

    def _way(self) -> Way:
        from gputop_llm.capture.ways import way_of

        return way_of(self.route)


def make_plan(
    target: Target,
    folder: Path,
    *,
    seconds: float | None = None,
    steps: int | None = None,
    engine: EngineFrame | None = None,
    now_s: float | None = None,
    proc: ProcFs | None = None,
    route: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of a capture of all processes of the target that hold GPU contexts.

    Args:
        folder: where captures go.
        seconds, steps: how long; `steps` needs the engine's steps/s. Neither: half a second.
        engine: the target's metrics at the moment.
        route: by which way; None: the best that is open.
        options: for that way.

    Raises:
        NothingFound: none of its processes can be seen from here to use a GPU.
        UsageError: the window is too short or too long, steps can't be told, or there is no such way.
    """
    from gputop_llm.capture.ways import best_way, way_of

    proc = proc or ProcFs()
    now_s = time.time() if now_s is None else now_s
    window_s = asked_window_s(seconds, steps, engine)
    ranks = tuple(_ranks(target, proc))
    if not ranks:
        raise NothingFound(
            f"cannot capture {describe(target)}",
            _why_none(target),
            "`gputop-llm doctor` says what can be seen from here",
        )
    seen = [Seen(rank.pid, rank.start_ticks, proc, target) for rank in ranks]
    way = way_of(route) if route is not None else best_way(seen)
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
        # Two in one second, of one target or of two PID namespaces, must not meet.
        name=f"{stamp}-{words}-{ranks[0].pid}-{secrets.token_hex(3)}",
        at_s=now_s,
        url=target.urls[0] if target.urls else None,
        model=target.model,
        version=target.version,
        argv=target.argv,
        container=target.container,
        user=target.user,
        steps=steps,
        route=way.key,
        options={**way.options, **(options or {})},
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
    zombies = [process.pid for process in target.processes if process.gpus and process.state == "Z"]
    if zombies:
        return f"what used the GPU has ended, a zombie now (PID {', '.join(map(str, zombies))})"
    return f"none of its {len(target.pids)} processes is known to use a GPU"


def asked_window_s(seconds: float | None, steps: int | None, engine: EngineFrame | None) -> float:
    """How long a window is, of what was asked for; half a second of nothing.

    Raises:
        UsageError: it is too short or too long, or how long the steps take can't be told.
    """
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


def _expected(cost: Cost) -> str:
    silence = f"about {_seconds(cost.silence_s)} without a token" if cost.silence_s else "no added silence"
    told = f"({'as seen' if cost.measured else 'a guess'}: {cost.seen})"
    if cost.loss_pct is None:
        return f"{silence} {told}"
    low, high = cost.loss_pct
    share = f"{low:.0f}–{high:.0f}" if high > low else f"{low:.0f}"
    return (
        f"{silence}, {share} % of the token rate over {_seconds(cost.over_s)} around a "
        f"window of {_seconds(DEFAULT_WINDOW_S)} {told}"
    )


def _seconds(value: float) -> str:
    return f"{value:.3g} s"
