"""Runs every analysis on a capture, and collects what they found and the tables that they give."""

from __future__ import annotations

from dataclasses import dataclass, field

from gputop_llm.model.finding import Finding
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


@dataclass(frozen=True)
class Analysed:
    """All findings, not yet ranked; the tables by name, without empty ones; what fills each device, and its steps."""

    findings: tuple[Finding, ...] = ()
    tables: dict[str, tables.Rows] = field(default_factory=dict)
    hot: tuple[kernels.Hot, ...] = ()
    steps: tuple[steps.Steps, ...] = ()


def analysed(context: Context) -> Analysed:
    """Everything that the analyses say. Nothing where no device did anything."""
    if not context.coverage:
        return Analysed()
    # First those that take most memory for a moment: what the later ones keep for one another isn't there yet.
    hot = kernels.analyse(context)
    talked = comm.analyse(context)
    overlapped = streams.analyse(context)
    stepped = steps.analyse(context)
    phased = phases.analyse(context)
    launches = launch.analyse(context)
    copied = copies.analyse(context)
    threads = host.analyse(context, launches)
    operated = operators.analyse(context)
    found = [
        *launch.findings(launches, context),
        *sync.findings(sync.analyse(context), context),
        *copies.findings(copied, context),
        *allocator.findings(allocator.analyse(context), context),
        *host.findings(threads, context),
        *gil.findings(gil.analyse(context), context),
        *operators.findings(operated, context),
        *kernels.findings(hot, context),
        *comm.findings(talked, context),
        *streams.findings(overlapped, context),
        *steps.findings(stepped, context),
        *phases.findings(phased, context),
        *interference.findings(interference.analyse(context), context),
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
    return Analysed(tuple(found), {name: rows for name, rows in shown.items() if rows}, hot, stepped)
