"""Runs every analysis on a capture, and collects what they found and the tables that they give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gputop_llm.model.finding import Finding
from gputop_llm.model.pace import EnginePace
from gputop_llm.verdict import (
    allocator,
    comm,
    copies,
    gil,
    host,
    idle_elsewhere,
    idle_left,
    interference,
    kernels,
    launch,
    operators,
    phases,
    steps,
    streams,
    sync,
    tables,
)
from gputop_llm.verdict.context import Context

T = TypeVar("T")
#: Those that `analysed` runs.
_ANALYSES = 13


@dataclass(frozen=True)
class Analysed:
    """All findings, not yet ranked; the tables by name, without empty ones; what fills a device and feeds it."""

    findings: tuple[Finding, ...] = ()
    tables: dict[str, tables.Rows] = field(default_factory=dict)
    hot: tuple[kernels.Hot, ...] = ()
    steps: tuple[steps.Steps, ...] = ()
    launches: tuple[launch.Launches, ...] = ()


class _Advance:
    """Hands on what an analysis found, and tells the share of them that is done."""

    def __init__(self, progress: Callable[[float], None] | None) -> None:
        self._progress = progress
        self._done = 0

    def __call__(self, result: T) -> T:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done / _ANALYSES)
        return result


def analysed(
    context: Context, progress: Callable[[float], None] | None = None, pace: EnginePace | None = None
) -> Analysed:
    """Everything that the analyses say. Nothing where no device did anything.

    `pace` is what the engine said while it was captured. `progress` gets the share of the analyses that is done, 0 to
    1; what it raises ends them.
    """
    if not context.coverage:
        return Analysed()
    step = _Advance(progress)
    # First those that take most memory for a moment: what the later ones keep for one another isn't there yet.
    hot = step(kernels.analyse(context))
    talked = step(comm.analyse(context))
    overlapped = step(streams.analyse(context))
    stepped = step(steps.analyse(context))
    phased = step(phases.analyse(context))
    launches = step(launch.analyse(context))
    copied = step(copies.analyse(context))
    threads = step(host.analyse(context, launches))
    operated = step(operators.analyse(context))
    synced = step(sync.analyse(context))
    allocated = step(allocator.analyse(context))
    contended = step(gil.analyse(context))
    delayed = step(interference.analyse(context))
    found = [
        *launch.findings(launches, context),
        *sync.findings(synced, context),
        *copies.findings(copied, context),
        *allocator.findings(allocated, context),
        *host.findings(threads, context),
        *gil.findings(contended, context),
        *operators.findings(operated, context),
        *kernels.findings(hot, context),
        *comm.findings(talked, context),
        *streams.findings(overlapped, context),
        *steps.findings(stepped, context),
        *phases.findings(phased, context),
        *interference.findings(delayed, context, pace),
    ]
    found += idle_elsewhere.findings(context)
    found += idle_left.findings(context, launches, found)
    shown = {
        "coverage": tables.coverage(context),
        "steps": tables.steps(stepped),
        "phases": tables.phases(phased),
        "families": tables.families(hot),
        "kernels": tables.kernels(hot),
        "idle": tables.idle(context),
        "gaps": tables.gaps(context),
        "communication": tables.communication(talked),
        "streams": tables.streams(overlapped),
        "copies": tables.copies(copied),
        "threads": tables.threads(threads),
        **tables.operators(operated),
    }
    return Analysed(tuple(found), {name: rows for name, rows in shown.items() if rows}, hot, stepped, launches)
