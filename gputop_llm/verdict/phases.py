"""Prefill, decode and sampling apart, as the device saw them: never averaged together.

Where annotations mark the steps, a device row belongs to the range in which it was launched, whenever it ran; else to
the step that time puts it in, and the split is labelled inferred. Sampling is told by the kernels' names and is a part
of the steps, not a phase beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.timeline.intervals import length, union
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import listed, ms, share, span
from gputop_llm.verdict.grouped import FAMILIES, union_lengths
from gputop_llm.verdict.kernel_names import Family
from gputop_llm.verdict.step_marks import ANNOTATION, PHASE_LABELS, Marks, Phase

_INFERRED_LABELS = {**PHASE_LABELS, Phase.PREFILL: "prefill or mixed"}


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One phase on one device: its steps, |∪ its device rows| (`busy_ns`), its time from step to step (`total_ns`,
    idle included), kernels and replays, and its families with their union time, the longest first.
    """

    phase: Phase
    label: str
    steps: int
    busy_ns: int
    total_ns: int
    kernels: int
    families: tuple[tuple[Family, int], ...]


@dataclass(frozen=True)
class Phases:
    """The phases on one device. `outside_ns` is busy time that no step owns, `sampling_ns` the union of sampling
    kernels in the window, `sampling_kernels` theirs.
    """

    device: int
    window_ns: int
    inferred: bool
    anchor: str
    phases: tuple[PhaseTime, ...]
    sampling_ns: int
    sampling_kernels: int
    outside_ns: int

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0


def analyse(context: Context) -> tuple[Phases, ...]:
    """One entry for each device whose steps are known to be of a phase."""
    return tuple(
        _of_device(context, c, context.marks[c.device])
        for c in context.coverage
        if c.device in context.marks and (context.marks[c.device].phase != Phase.UNKNOWN).any()
    )


def _of_device(context: Context, covered: DeviceCoverage, marks: Marks) -> Phases:
    timeline = context.timeline
    ops = timeline.ops
    start = np.maximum(ops.start[marks.rows], timeline.start)
    end = np.minimum(ops.end[marks.rows], timeline.end)
    family = context.families[marks.rows]
    kind = ops.kind[marks.rows]
    compute = (kind == Kind.KERNEL) | (kind == Kind.GRAPH)
    phase_of_row = np.where(marks.owner >= 0, marks.phase[np.maximum(marks.owner, 0)], 255)
    time = np.diff(marks.at)
    labels = PHASE_LABELS if marks.source == ANNOTATION else _INFERRED_LABELS
    found = []
    for phase in Phase:
        own = marks.phase == phase
        if not own.any():
            continue
        rows = phase_of_row == phase
        spent = union_lengths(family[rows], len(FAMILIES), start[rows], end[rows])
        found.append(
            PhaseTime(
                phase=phase,
                label=labels[phase],
                steps=int(own.sum()),
                busy_ns=length(*union(start[rows], end[rows])),
                total_ns=int(time[own].sum()),
                kernels=int(compute[rows].sum()),
                families=tuple((FAMILIES[i], int(spent[i])) for i in np.argsort(-spent, kind="stable") if spent[i])[:5],
            )
        )
    outside = phase_of_row == 255
    sampling = family == FAMILIES.index(Family.SAMPLING)
    return Phases(
        device=covered.device,
        window_ns=covered.window_ns,
        inferred=marks.source != ANNOTATION,
        anchor=marks.anchor,
        phases=tuple(sorted(found, key=lambda p: -p.busy_ns)),
        sampling_ns=length(*union(start[sampling], end[sampling])),
        sampling_kernels=int(sampling.sum()),
        outside_ns=length(*union(start[outside], end[outside])),
    )


def findings(results: tuple[Phases, ...], context: Context) -> list[Finding]:
    """How the window divides into phases. About the device with the most of them at work."""
    if not results:
        return []
    result = max(results, key=lambda r: sum(p.busy_ns for p in r.phases))
    said = listed(
        f"{p.label} {share(result.pct(p.total_ns))} of the window in {p.steps:,} step{'' if p.steps == 1 else 's'}"
        for p in result.phases
    )
    inferred = " (inferred)" if result.inferred else ""
    return [
        Finding(
            id="phases",
            weight=Weight.NOTE,
            headline=f"Phases{inferred}: {said}",
            facts=tuple(f for p in result.phases for f in _facts(p, result)) + _sampling(result),
            cause=f"steps {'inferred from' if result.inferred else 'annotated as'} {result.anchor}",
            advice=(),
            recoverable_pct=None,
            recoverable_formula="none: it is a fact",
            confidence="medium: inferred from kernels and replays; prefill may hold decode work of the same batch"
            if result.inferred
            else "high: the capture's own annotations, projected on the device through launches",
            refuted_by="the engine's own counts of prefill and decode tokens in the window",
            next_capture="the same window with annotations of the engine's steps" if result.inferred else None,
            subject=context.subject(result.device),
        )
    ]


def _facts(p: PhaseTime, result: Phases) -> tuple[Fact, ...]:
    rows = f"{p.kernels:,} kernels and replays"
    first = (
        ", ".join(f"{family.value} {100 * ns / p.busy_ns:.0f} %" for family, ns in p.families[:4]) if p.busy_ns else ""
    )
    return (
        ms(f"{p.label}: time of its steps", p.total_ns, "Σ begin to next begin", f"{p.steps:,} steps"),
        Fact(
            f"{p.label}: GPU busy, of the window",
            result.pct(p.busy_ns),
            "%",
            "|∪ its device rows| ÷ window",
            rows,
            first,
        ),
        Fact(
            f"{p.label}: GPU busy, of its steps",
            100.0 * p.busy_ns / p.total_ns if p.total_ns else None,
            "%",
            "|∪ its device rows| ÷ Σ step time",
            rows,
        ),
    )


def _sampling(result: Phases) -> tuple[Fact, ...]:
    found = []
    if result.sampling_kernels:
        found.append(
            Fact(
                "sampling and logits, of the window",
                result.pct(result.sampling_ns),
                "%",
                "|∪ kernels with such names| ÷ window: a part of the steps",
                f"{result.sampling_kernels:,} kernels",
                span(result.sampling_ns),
            )
        )
    if result.outside_ns:
        found.append(
            Fact("in no step", result.pct(result.outside_ns), "%", "|∪ device rows that no step owns| ÷ window")
        )
    return tuple(found)
