"""Several streams of one device: how much of their work really runs at the same time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.timeline.intervals import union
from gputop_llm.timeline.model import I64
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import ms, share, span
from gputop_llm.verdict.grouped import union_lengths

#: A stream that is busy for a smaller share of the window is not worth counting.
_COUNTS_PCT = 1.0


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of a device (numbers repeat between devices): its rows and the union of their time."""

    number: int
    process: int
    rows: int
    busy_ns: int

    @property
    def label(self) -> str:
        """Its name beside that of its device."""
        return f"stream {self.number}" if self.number >= 0 else "stream unknown"


@dataclass(frozen=True)
class Overlap:
    """One device: its streams, the busiest first, and the time in which two or more of them worked (`overlap_ns`)."""

    device: int
    window_ns: int
    busy_ns: int
    streams: tuple[Stream, ...]
    overlap_ns: int

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0

    @property
    def counting(self) -> tuple[Stream, ...]:
        """The streams that are busy for at least 1 % of the window."""
        return tuple(s for s in self.streams if self.pct(s.busy_ns) >= _COUNTS_PCT)


def analyse(context: Context) -> tuple[Overlap, ...]:
    """One entry for each device with activity."""
    return tuple(_of_device(context, covered) for covered in context.coverage)


def _of_device(context: Context, covered: DeviceCoverage) -> Overlap:
    timeline = context.timeline
    ops = timeline.ops
    rows = np.flatnonzero((ops.device == covered.device) & (ops.end > timeline.start) & (ops.start < timeline.end))
    start = np.maximum(ops.start[rows], timeline.start)
    end = np.minimum(ops.end[rows], timeline.end)
    # Two processes on one device may use the same stream number.
    processes, process = np.unique(ops.process[rows], return_inverse=True)
    numbers, number = np.unique(ops.stream[rows], return_inverse=True)
    known, group = np.unique(process * len(numbers) + number, return_inverse=True)
    busy = union_lengths(group, len(known), start, end)
    counts = np.bincount(group, minlength=len(known))
    streams = tuple(
        Stream(int(numbers[pair % len(numbers)]), int(processes[pair // len(numbers)]), int(counts[i]), int(busy[i]))
        for i in np.argsort(-busy, kind="stable")
        for pair in (int(known[i]),)
    )
    overlap = covered.busy_ns - _alone(group, len(known), start, end) if len(streams) > 1 else 0
    return Overlap(covered.device, covered.window_ns, covered.busy_ns, streams, overlap)


def _alone(group: I64, groups: int, start: I64, end: I64) -> int:
    """Time in which exactly one stream works: sweeps over the beginnings and ends of each stream's unions."""
    unions = [union(start[group == g], end[group == g]) for g in range(groups)]
    starts, ends = (np.concatenate([u[side] for u in unions]) for side in (0, 1))
    at = np.concatenate((starts, ends))
    step = np.concatenate((np.ones(len(starts), dtype=np.int64), -np.ones(len(ends), dtype=np.int64)))
    order = np.argsort(at, kind="stable")
    running = np.cumsum(step[order])[:-1]
    return int(np.diff(at[order])[running == 1].sum())


def findings(results: tuple[Overlap, ...], context: Context) -> list[Finding]:
    """How much several streams of a device gain; nothing where one stream does all. About the device with the most."""
    several = [r for r in results if len(r.counting) > 1]
    if not several:
        return []
    result = max(several, key=lambda r: r.overlap_ns)
    pct = 100.0 * result.overlap_ns / result.busy_ns
    label = context.device_label(result.device)
    together = f"work at the same time for {share(pct)} of its busy time ({span(result.overlap_ns)})"
    names = ", ".join(f"{label} {s.label}: {share(result.pct(s.busy_ns))}" for s in result.counting[:4])
    return [
        Finding(
            id="stream-overlap",
            weight=Weight.NOTE,
            headline=f"{len(result.counting)} streams on {label} "
            + (together if result.overlap_ns else "never work at the same time"),
            facts=(
                ms("two or more streams at work", result.overlap_ns, "time covered by the unions of ≥ 2 streams"),
                *(
                    Fact(
                        f"{label} {s.label}",
                        result.pct(s.busy_ns),
                        "%",
                        "|∪ its device rows| ÷ window",
                        f"{s.rows:,} rows",
                    )
                    for s in result.counting[:8]
                ),
            ),
            cause=f"busy, of the window: {names}",
            advice=(),
            recoverable_pct=None,
            recoverable_formula="can't be told: kernels that run side by side also slow each other down",
            confidence="high",
            refuted_by="a record of the same work on one stream takes as long",
            subject=context.subject(result.device),
        )
    ]
