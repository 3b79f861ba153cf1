"""The repeating step of the engine on each device: how often, how long, with what in it, and why some are slow.

A step's time is the distance from its beginning to the next one's on the device, idle time included. Steps of
different phases are never averaged together. Quantiles are values that occurred (nearest rank).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import overlap_with
from gputop_llm.timeline.model import I32, I64, Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Mask
from gputop_llm.verdict.facts import listed, ms, share, span, us
from gputop_llm.verdict.grouped import FAMILIES, union_lengths
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.step_marks import ANNOTATION, PHASE_LABELS, Marks, Phase

#: Steps of one phase that a comparison of slow ones with usual ones needs.
_ENOUGH = 20
_SLOW_SHARE = 0.1
#: Slow steps are a finding from this share of the window on, if they take so many times the usual.
_WORTH_PCT = 3.0
_SLOW_TIMES = 1.3
#: A kernel belongs to slow steps only if this share of them has it, and at most that share of the usual ones.
_IN_SLOW = 0.5
_IN_USUAL = 0.1
#: Launches are counted only where this share of the device rows has a known one.
_KNOWN = 0.9


@dataclass(frozen=True, slots=True)
class PhaseSteps:
    """The steps of one phase: how many, and of those with a known end the time's p50, p95 and maximum (ns).

    Medians for one step: kernels, launch calls (None where unknown), bytes copied, busy time and idle time (ns).
    """

    phase: Phase
    steps: int
    timed: int
    p50_ns: int | None
    p95_ns: int | None
    max_ns: int | None
    kernels: float
    launches: float | None
    copied_bytes: float
    busy_ns: float
    idle_ns: float
    total_ns: int

    @property
    def per_s(self) -> float | None:
        """Steps for each second spent in steps of this phase."""
        return 1e9 * self.timed / self.total_ns if self.total_ns else None


@dataclass(frozen=True, slots=True)
class Slow:
    """The slowest tenth of one phase's steps against the usual ones (those from p40 to p60), means in ns.

    `idle_ns` and `families_ns` are how much more the slow ones have of each; `only` are kernels that only they have;
    `over_ns` is what all of them take beyond the median.
    """

    phase: Phase
    steps: int
    usual_ns: float
    slow_ns: float
    idle_ns: float
    families_ns: tuple[tuple[str, float], ...]
    kernels: float
    only: tuple[str, ...]
    over_ns: int
    rows: tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """The steps on one device. `start`, `time` (ns; -1 for the last one if its end is unknown), `phase`, `busy`
    (ns), `kernels`, `launches`, `replays`, `copied` (bytes) hold one value for each step, in time order.
    """

    device: int
    window_ns: int
    source: str
    anchor: str
    start: I64
    time: I64
    phase: I64
    busy: I64
    kernels: I64
    launches: I64 | None
    copied: I64
    by_phase: tuple[PhaseSteps, ...]
    slow: Slow | None

    @property
    def main(self) -> PhaseSteps:
        """The phase with the most steps."""
        return max(self.by_phase, key=lambda p: p.steps)

    @property
    def inferred(self) -> bool:
        """Whether no annotation told the steps."""
        return self.source != ANNOTATION


def analyse(context: Context) -> tuple[Steps, ...]:
    """One entry for each device on which steps were found."""
    return tuple(_of_device(context, c, context.marks[c.device]) for c in context.coverage if c.device in context.marks)


def _of_device(context: Context, covered: DeviceCoverage, marks: Marks) -> Steps:
    timeline = context.timeline
    ops = timeline.ops
    count = len(marks)
    at = marks.at
    step = np.searchsorted(at, ops.start[marks.rows], side="right") - 1
    # The last moment belongs to the last step where nothing follows it.
    inside = (step >= 0) & (step < count)
    rows, step = marks.rows[inside], step[inside]
    kernel = (ops.kind[rows] == Kind.KERNEL) | (ops.kind[rows] == Kind.GRAPH)
    copy = ops.kind[rows] == Kind.COPY
    launched = np.zeros(len(ops) + 1, dtype=bool)
    launched[context.first_op] = True
    known = len(rows) > 0 and float((ops.launch[rows] >= 0).mean()) >= _KNOWN
    time = np.diff(at)
    if marks.open_end and count > 1:
        time[-1] = -1
    busy = overlap_with(at[:-1], at[1:], covered.busy)
    kernels = np.bincount(step[kernel], minlength=count)
    launches = np.bincount(step[launched[rows]], minlength=count) if known else None
    copied = np.rint(np.bincount(step[copy], weights=ops.bytes[rows[copy]], minlength=count)).astype(np.int64)
    phase = marks.phase.astype(np.int64)
    by_phase = []
    for each in Phase:
        own = phase == each
        if own.any():
            by_phase.append(_phase_steps(each, own, time, busy, kernels, launches, copied))
    main = max(by_phase, key=lambda p: p.steps)
    return Steps(
        device=covered.device,
        window_ns=covered.window_ns,
        source=marks.source,
        anchor=marks.anchor,
        start=at[:-1],
        time=time,
        phase=phase,
        busy=busy,
        kernels=kernels,
        launches=launches,
        copied=copied,
        by_phase=tuple(by_phase),
        slow=_slow(context, main.phase, np.flatnonzero((phase == main.phase) & (time >= 0)), time, busy, rows, step),
    )


def _phase_steps(
    phase: Phase, own: Mask, time: I64, busy: I64, kernels: I64, launches: I64 | None, copied: I64
) -> PhaseSteps:
    timed = own & (time >= 0)
    ordered = np.sort(time[timed])
    some = timed if timed.any() else own
    return PhaseSteps(
        phase=phase,
        steps=int(own.sum()),
        timed=len(ordered),
        p50_ns=nearest_rank(ordered, 0.5),
        p95_ns=nearest_rank(ordered, 0.95),
        max_ns=nearest_rank(ordered, 1.0),
        kernels=float(np.median(kernels[some])),
        launches=None if launches is None else float(np.median(launches[some])),
        copied_bytes=float(np.median(copied[some])),
        busy_ns=float(np.median(busy[some])),
        idle_ns=float(np.median(np.maximum(time[some] - busy[some], 0))),
        total_ns=int(ordered.sum()),
    )


def nearest_rank(ordered: I64, part: float) -> int | None:
    """The quantile of sorted values as a value that occurred; None of none."""
    if not len(ordered):
        return None
    return int(ordered[max(0, int(np.ceil(part * len(ordered))) - 1)])


def _slow(context: Context, phase: Phase, own: I64, time: I64, busy: I64, rows: I64, step: I64) -> Slow | None:
    if len(own) < _ENOUGH:
        return None
    ops = context.timeline.ops
    order = own[np.argsort(time[own], kind="stable")]
    slow = order[-int(np.ceil(_SLOW_SHARE * len(order))) :]
    usual = order[int(0.4 * len(order)) : int(np.ceil(0.6 * len(order)))]
    which = np.zeros(len(time), dtype=np.int64)
    which[usual], which[slow] = 1, 2
    compared = which[step] > 0
    rows, step = rows[compared], step[compared]
    family = context.families[rows].astype(np.int64)
    size = len(FAMILIES)
    spent = union_lengths(step * size + family, len(time) * size, ops.start[rows], ops.end[rows]).reshape(-1, size)
    more = spent[slow].mean(axis=0) - spent[usual].mean(axis=0)
    median = float(np.median(time[own]))
    idle = time - busy
    counts = np.bincount(step, minlength=len(time))
    return Slow(
        phase=phase,
        steps=len(slow),
        usual_ns=float(time[usual].mean()),
        slow_ns=float(time[slow].mean()),
        idle_ns=float(idle[slow].mean() - idle[usual].mean()),
        families_ns=tuple((FAMILIES[i].value, float(more[i])) for i in np.argsort(-more) if more[i] > 0)[:4],
        kernels=float(counts[slow].mean() - counts[usual].mean()),
        only=_only_in(context, ops.name_id[rows], step, slow, usual),
        over_ns=int(np.maximum(time[slow] - median, 0).sum()),
        rows=tuple(int(i) for i in slow[::-1][:10]),
    )


def _only_in(context: Context, names: I64 | I32, step: I64, slow: I64, usual: I64) -> tuple[str, ...]:
    """Kernels that most slow steps have and hardly any usual one."""
    known, which = np.unique(names, return_inverse=True)
    pairs = np.unique(which * (int(step.max(initial=0)) + 1) + step)
    of_name, of_step = np.divmod(pairs, int(step.max(initial=0)) + 1)
    in_slow = np.bincount(of_name[np.isin(of_step, slow)], minlength=len(known)) / len(slow)
    in_usual = np.bincount(of_name[np.isin(of_step, usual)], minlength=len(known)) / max(1, len(usual))
    chosen = np.flatnonzero((in_slow >= _IN_SLOW) & (in_usual <= _IN_USUAL))
    labels = [printable(short_name(context.timeline.name(int(known[i]))), 80) for i in chosen]
    return tuple(dict.fromkeys(label for label in labels if label))[:6]


def findings(results: tuple[Steps, ...], context: Context) -> list[Finding]:
    """The step itself, as a note; slow steps, where they cost something. About the device with the most steps."""
    if not results:
        return []
    steps = max(results, key=lambda s: len(s.start))
    if steps.main.timed < 1:
        return []
    found = [_note(steps, context)]
    slow = steps.slow
    if slow and slow.slow_ns >= _SLOW_TIMES * slow.usual_ns:
        pct = 100.0 * slow.over_ns / steps.window_ns
        if pct >= _WORTH_PCT:
            found.append(_slow_finding(steps, slow, pct, context))
    return found


def _told(steps: Steps) -> str:
    return f"steps {'inferred from' if steps.inferred else 'annotated as'} {steps.anchor}"


def _note(steps: Steps, context: Context) -> Finding:
    main = steps.main
    label = PHASE_LABELS[main.phase]
    label = label if label == "step" else f"{label} step"
    digits = 0 if main.per_s and main.per_s >= 10 else 1
    per_s = f"{main.per_s:,.{digits}f}/s, " if main.per_s and main.timed > 1 else ""
    return Finding(
        id="steps",
        weight=Weight.NOTE,
        headline=f"{main.steps:,} {label}{'' if main.steps == 1 else 's'}: {per_s}p50 {span(main.p50_ns)}, "
        f"p95 {span(main.p95_ns)}, longest {span(main.max_ns)}{' (inferred)' if steps.inferred else ''}",
        facts=tuple(f for p in steps.by_phase for f in _phase_facts(p)),
        cause=_told(steps),
        advice=(),
        recoverable_pct=None,
        recoverable_formula="none: it is a fact",
        confidence="medium: inferred from what repeats" if steps.inferred else "high: the capture's own annotations",
        refuted_by="the engine's own count of steps in the window",
        next_capture=None,
        subject=context.subject(steps.device),
    )


def _phase_facts(p: PhaseSteps) -> tuple[Fact, ...]:
    label = PHASE_LABELS[p.phase]
    of_phase = "steps" if p.phase is Phase.UNKNOWN else f"{label} steps"
    rows = f"{p.timed:,} of {p.steps:,} {of_phase} with a known end"
    said = f"p95 {span(p.p95_ns)}, longest {span(p.max_ns)}"
    found = [
        ms(f"{label}: step time, p50", p.p50_ns, "begin to next begin on the device, nearest rank", rows, said),
        Fact(f"{label}: kernels and replays in a step", p.kernels, "", "median", rows),
        Fact(f"{label}: launch calls in a step", p.launches, "", "median", rows),
        Fact(f"{label}: copied in a step", p.copied_bytes, "bytes", "median", rows),
        us(f"{label}: device idle in a step", p.idle_ns, "median of (step time − |∪ device activity| in it)", rows),
    ]
    return tuple(found)


def _slow_finding(steps: Steps, slow: Slow, pct: float, context: Context) -> Finding:
    label = "steps" if slow.phase == Phase.UNKNOWN else f"{PHASE_LABELS[slow.phase]} steps"
    told = slow.phase != Phase.UNKNOWN
    parts = [("idle time", slow.idle_ns), *slow.families_ns]
    parts = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])
    more = listed(f"{name} +{span(ns)}" for name, ns in parts)
    cause = f"beside the usual ones they have on average: {more}"
    if slow.only:
        cause += f"; kernels that only they run: {listed(slow.only)}"
    return Finding(
        id="slow-steps",
        weight=Weight.FINDING if told else Weight.NOTE,
        headline=f"The slowest 10 % of the {label} take {span(slow.slow_ns)} instead of {span(slow.usual_ns)}: "
        f"{share(pct)} of the window" + (f", mostly {parts[0][0]}" if parts else ""),
        facts=(
            ms("slow steps, mean", slow.slow_ns, "mean step time of the slowest 10 %", f"{slow.steps:,} steps"),
            ms("usual steps, mean", slow.usual_ns, "mean step time from p40 to p60"),
            *(ms(f"more {name} in a slow step", ns, "mean of slow − mean of usual") for name, ns in parts[:5]),
            Fact("more device rows in a slow step", slow.kernels, "", "mean of slow − mean of usual"),
        ),
        cause=cause,
        advice=(Advice("look at the slowest steps in the picture: what stands before them on the host, and in them"),),
        recoverable_pct=pct if told else None,
        recoverable_formula="Σ over the slowest 10 % (step time − median) ÷ window"
        if told
        else "can't be told: nothing says which steps are prefill, so the slow ones may be other work",
        confidence="medium: steps are inferred" if steps.inferred else "high",
        refuted_by="slow steps that serve more tokens: then they are no slower for each",
        next_capture="Kineto window with CPU operators: what the host does in them"
        if parts and parts[0][0] == "idle time"
        else None,
        subject=context.subject(steps.device),
    )
