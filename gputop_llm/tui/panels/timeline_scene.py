"""What the picture of a timeline is drawn from: worked out once, so that each drawing only looks things up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline.intervals import union
from gputop_llm.timeline.model import I64, U8, Kind, Timeline
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import Intervals
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.kernels import hottest


@dataclass(frozen=True)
class Lane:
    """The work on one stream. `rows` are its rows in `ops`, in time order; `reach` is the latest end so far."""

    stream: int
    busy: Intervals
    copies: Intervals
    rows: I64
    reach: I64


@dataclass(frozen=True)
class DeviceScene:
    """One device: when it was busy, its idle time by the cause that holds most of each gap, its steps, its streams.

    `at` and `phase` as in `step_marks.Marks`; None where there are no steps.
    """

    number: int
    busy: Intervals
    idle: dict[Cause, Intervals]
    at: I64 | None
    phase: U8 | None
    lanes: tuple[Lane, ...]


@dataclass(frozen=True)
class Scene:
    """All that can be drawn of a timeline."""

    timeline: Timeline
    devices: tuple[DeviceScene, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Something worth looking at: when (ns), and what it is."""

    start: int
    end: int
    text: str


def scene(context: Context) -> Scene:
    """The scene of a capture; devices by number, streams by their busy time, the busiest first."""
    return Scene(context.timeline, tuple(_device(context, position) for position in range(len(context.coverage))))


def _device(context: Context, position: int) -> DeviceScene:
    timeline = context.timeline
    covered = context.coverage[position]
    gaps = context.idle[covered.device].gaps
    dominant = gaps.by_cause.dominant()
    own = np.flatnonzero(
        (timeline.ops.device == covered.device)
        & (timeline.ops.end > timeline.start)
        & (timeline.ops.start < timeline.end)
    )
    streams = timeline.ops.stream[own]
    lanes = [_lane(timeline, int(stream), own[streams == stream]) for stream in np.unique(streams)]
    marks = context.marks.get(covered.device)
    return DeviceScene(
        number=covered.device,
        busy=covered.busy,
        idle={Cause(c): (gaps.start[dominant == c], gaps.end[dominant == c]) for c in np.unique(dominant).tolist()},
        at=marks.at if marks else None,
        phase=marks.phase if marks else None,
        lanes=tuple(sorted(lanes, key=lambda lane: -int((lane.busy[1] - lane.busy[0]).sum()))),
    )


def _lane(timeline: Timeline, stream: int, rows: I64) -> Lane:
    start, end, kind = timeline.ops.start[rows], timeline.ops.end[rows], timeline.ops.kind[rows]
    copies = (kind == Kind.COPY) | (kind == Kind.MEMSET)
    return Lane(stream, union(start, end), union(start[copies], end[copies]), rows, np.maximum.accumulate(end))


def longest_gaps(context: Context, labels: dict[Cause, str], most: int = 50) -> list[Place]:
    """The longest gaps of all devices, the longest first."""
    found = []
    timeline = context.timeline
    for number, idle in context.idle.items():
        gaps, dominant = idle.gaps, idle.gaps.by_cause.dominant()
        for at in idle.longest(most).tolist():
            start, end, after = int(gaps.start[at]), int(gaps.end[at]), int(gaps.next_op[at])
            name = timeline.name(int(timeline.ops.name_id[after])) if after >= 0 else ""
            what = f"gap on {context.device_label(number)}: {labels[Cause(int(dominant[at]))]}"
            found.append(Place(start, end, what + (f", before {short_name(name) or name}" if name else "")))
    return sorted(found, key=lambda place: place.start - place.end)[:most]


def slowest_steps(context: Context, labels: dict[int, str], most: int = 50) -> list[Place]:
    """The slowest steps of all devices whose end is known, the slowest first."""
    found = []
    for number, marks in context.marks.items():
        time = np.diff(marks.at)
        if marks.open_end:
            time = time[:-1]
        for at in np.argsort(-time, kind="stable")[:most].tolist():
            what = f"{labels[int(marks.phase[at])]} {at + 1} of {len(marks)} on {context.device_label(number)}"
            found.append(Place(int(marks.at[at]), int(marks.at[at + 1]), what))
    return sorted(found, key=lambda place: place.start - place.end)[:most]


def hottest_kernel(context: Context, most: int = 50) -> list[Place]:
    """The runs of the kernel (or of whole graph replays) that the table of kernels puts first, the longest first."""
    found = hottest(context)
    if found is None:
        return []
    ops = context.timeline.ops
    kernel, rows = found
    text = f"hottest kernel ({len(rows):,} runs): {kernel.name}"
    longest = rows[np.argsort(ops.start[rows] - ops.end[rows], kind="stable")][:most]
    return [Place(int(ops.start[row]), int(ops.end[row]), text) for row in longest.tolist()]
