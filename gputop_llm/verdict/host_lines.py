"""Which Python line the submitting thread was at while the device idled, from stacks that were sampled beside a record.

A sample says where the thread was at one random moment. Those that fall into gaps which the record itself can't explain
(most of such a gap is "host, unattributed") are counted by line. A gap that is shorter than what the moments may be
wrong by says nothing: where most idle time lies in such gaps, lines are counted over the whole window instead, and
that is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from gputop_llm.model.finding import Fact
from gputop_llm.timeline.model import I32, I64, StackSamples
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.facts import share, span
from gputop_llm.verdict.idle import contains

#: A gap must be this many times longer than a sample's moment may be wrong by.
_LONGER = 4
#: Fewer samples than this name no line.
_ENOUGH = 8
_LINES = 5
#: Two-sided 95 %.
_Z = 1.96
#: Frames of a line's stack that are told: itself and who called it.
_TOLD = 2


@dataclass(frozen=True, slots=True)
class Line:
    """One line at which the thread was found: it and its caller; how many of the samples, by their number or weight."""

    call: str
    caller: str | None
    samples: float


@dataclass(frozen=True)
class Lines:
    """Where the thread that submits a device's work was.

    Args:
        thread: position in the timeline.
        in_gaps: whether only samples within unexplained gaps count; else those of the whole window.
        samples: how many there are; `lines` the most frequent first.
        gaps_ns: length of all gaps that were long enough; `unexplained_ns` of all unexplained ones.
        shortest_ns: what was long enough.
        error_ns: by how much a moment may be wrong.
    """

    thread: int
    in_gaps: bool
    samples: float
    lines: tuple[Line, ...]
    gaps_ns: int
    unexplained_ns: int
    shortest_ns: int
    error_ns: int

    @property
    def top(self) -> Line:
        """The most frequent one."""
        return self.lines[0]

    def pct(self, line: Line) -> float:
        """Its share of the samples."""
        return 100.0 * line.samples / self.samples

    def error_pct(self, line: Line) -> float:
        """Half of the 95 % interval of that share (Wilson), in points."""
        n, part = self.samples, line.samples / self.samples
        return 100.0 * _Z / (1 + _Z * _Z / n) * sqrt(part * (1 - part) / n + _Z * _Z / (4 * n * n))


def lines_of(context: Context, device: int) -> Lines | None:
    """The lines of the thread that submits most of a device's work; None where none were sampled, or too few."""
    submitters = context.submitters[device]
    if not len(submitters):
        return None
    thread = int(submitters[0])
    sampled = next((one for one in context.timeline.samples if thread in one.threads.tolist()), None)
    if sampled is None or not len(sampled.time):
        return None
    gaps = context.idle[device].gaps
    unexplained = (gaps.by_cause.dominant() == Cause.UNATTRIBUTED) & (gaps.thread == thread)
    shortest = max(_LONGER * sampled.error_ns, 1)
    long = unexplained & (gaps.length >= shortest)
    column = int(np.flatnonzero(sampled.threads == thread)[0])
    all_ns, long_ns = int(gaps.length[unexplained].sum()), int(gaps.length[long].sum())
    inside = _counted(sampled, column, gaps.start[long], gaps.end[long])
    if 2 * long_ns >= all_ns and sum(inside.values()) >= _ENOUGH:
        return _lines(thread, True, inside, sampled, (long_ns, all_ns, shortest))
    start, end = (np.asarray([at], dtype=np.int64) for at in (context.timeline.start, context.timeline.end))
    whole = _counted(sampled, column, start, end)
    if not all_ns or sum(whole.values()) < _ENOUGH:
        return None
    return _lines(thread, False, whole, sampled, (long_ns, all_ns, shortest))


def _lines(
    thread: int,
    in_gaps: bool,
    counted: dict[tuple[str, str | None], float],
    sampled: StackSamples,
    lengths: tuple[int, int, int],
) -> Lines:
    ordered = sorted(counted.items(), key=lambda item: (-item[1], item[0][0]))
    found = tuple(Line(call, caller, count) for (call, caller), count in ordered[:_LINES])
    return Lines(thread, in_gaps, sum(counted.values()), found, *lengths, sampled.error_ns)


def _counted(sampled: StackSamples, column: int, start: I64, end: I64) -> dict[tuple[str, str | None], float]:
    """Samples of one thread within some intervals by line and caller.

    Samples without a moment saw every thread as it was before: they are spread evenly over the time between those
    that have one.
    """
    time, at = sampled.time, sampled.at[:, column]
    counted: dict[tuple[str, str | None], float] = {}
    weight = contains((start, end), time).astype(np.float64)
    lasted = np.diff(time, append=time[-1])
    unseen = max(0.0, sampled.taken - len(time)) if sampled.taken is not None else 0.0
    total = int(lasted.sum())
    if unseen and total:
        weight += unseen / total * _within(time, time + lasted, start, end)
    seen = (at >= 0) & (weight > 0)
    by_stack: I32 = at[seen]
    totals = np.bincount(by_stack, weights=weight[seen], minlength=len(sampled.stacks))
    for stack in np.flatnonzero(totals > 0).tolist():
        calls = [sampled.calls[call] for call in sampled.stacks[stack][:_TOLD]]
        if calls:
            key = calls[0], calls[1] if len(calls) > 1 else None
            counted[key] = counted.get(key, 0.0) + float(totals[stack])
    return counted


def _within(low: I64, high: I64, start: I64, end: I64) -> I64:
    """How much of each [low, high) lies in the disjoint, sorted intervals [start, end)."""
    if not len(start):
        return np.zeros(len(low), dtype=np.int64)
    before = np.concatenate(([0], np.cumsum(end - start)))

    def upto(at: I64) -> I64:
        position = np.searchsorted(start, at, side="right")
        last = np.maximum(position - 1, 0)
        partly = np.where(position > 0, np.minimum(at, end[last]) - start[last], 0)
        found: I64 = before[last] + partly
        return found

    inside: I64 = upto(high) - upto(low)
    return inside


def facts(lines: Lines | None, context: Context) -> tuple[Fact, ...]:
    """The lines as evidence, each with its sampling error."""
    if lines is None:
        return ()
    where = "unexplained gaps" if lines.in_gaps else "the whole window"
    rows = f"{lines.samples:,.0f} samples of {context.thread_label(lines.thread)} in {where}"
    formula = f"its samples ÷ samples in {where}; 95 % interval; moments known to {span(lines.error_ns)}"
    return tuple(
        Fact(
            f"at {line.call}",
            lines.pct(line),
            "%",
            formula,
            rows,
            f"called by {line.caller}" if line.caller else None,
            lines.error_pct(line),
        )
        for line in lines.lines
        if line.samples >= 1.0
    )


def cause(lines: Lines | None) -> str:
    """What the most frequent line says, as a clause to add to a cause; "" where there is none."""
    if lines is None:
        return ""
    top = lines.top
    found = f"{share(lines.pct(top))} ± {lines.error_pct(top):.0f} of {lines.samples:,.0f} samples"
    if lines.in_gaps:
        return f"; in these gaps it was at {top.call} in {found}"
    return (
        f"; over the whole window it was at {top.call} in {found} (the gaps are too short to tell which samples fall "
        f"into them: moments are known to {span(lines.error_ns)})"
    )
