"""The picture of a timeline: each cell is the share of its slice of time that is covered, as a union.

Per device: its steps with their phases, how busy it was, what it waited for where it was idle (a letter for each cause,
coloured beside), and a line for each stream, with the names of work that is long enough. Only array look-ups: a view
of a million rows takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import covered_until
from gputop_llm.timeline.model import I64
from gputop_llm.tui.draw import GAP, Line, Run, cells, fit, joined, pad, rule
from gputop_llm.tui.panels.timeline_scene import DeviceScene, Lane, Scene
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.coverage import Intervals
from gputop_llm.verdict.facts import span
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.step_marks import Phase

LABEL_WIDTH = 9
#: Work is named where it covers so many cells.
_NAMED_CELLS = 6
_MOST_NAMES = 200
#: A cell tells its cause when so much of it is idle.
_IDLE_SHARE = 0.25

_LEVELS = " ▁▂▃▄▅▆▇█"

CAUSES: Mapping[Cause, tuple[str, str, str]] = {
    Cause.SYNC: ("S", "cause-sync", "synchronising call"),
    Cause.ALLOC: ("A", "cause-alloc", "allocator call"),
    Cause.LAUNCH: ("L", "cause-launch", "launch or copy call"),
    Cause.RANK: ("R", "cause-rank", "another rank"),
    Cause.NO_REQUEST: ("N", "cause-none", "no request in flight"),
    Cause.OS_BLOCKED: ("O", "cause-os", "blocked by the OS"),
    Cause.FRAMEWORK: ("F", "cause-framework", "framework operator"),
    Cause.HOST_CODE: ("H", "cause-host", "Python or other host code"),
    Cause.UNATTRIBUTED: ("U", "dim", "host, unattributed"),
    Cause.SUBMITTED: ("Q", "cause-queued", "submitted, not begun"),
}
_PHASES: Mapping[int, tuple[str, str]] = {
    Phase.UNKNOWN: ("-", "dim"),
    Phase.DECODE: ("D", "phase-decode"),
    Phase.PREFILL: ("P", "phase-prefill"),
    Phase.MIXED: ("M", "phase-mixed"),
}
_PHASE_NAMES = {Phase.DECODE: "decode", Phase.PREFILL: "prefill", Phase.MIXED: "mixed", Phase.UNKNOWN: "step"}


def picture(scene: Scene, low: int, high: int, width: int) -> list[Line]:
    """The lanes of all devices over [low, high) ns, each line `width` cells; without scale and legend."""
    edges = _edges(low, high, width - LABEL_WIDTH)
    lines: list[Line] = []
    for device in scene.devices:
        lines += _device(scene, device, edges, width)
    return lines


def scale(scene: Scene, low: int, high: int, width: int) -> Line:
    """Times since the window's begin, each at the left of its tick."""
    room = width - LABEL_WIDTH
    step = _tick_ns((high - low) * 12 / max(room, 1))
    base = scene.timeline.start
    text = [" "] * room
    at = math.ceil((low - base) / step) * step
    used = 0
    while at <= high - base:
        cell = int((at + base - low) * room // max(high - low, 1))
        label = f"│{_moment(at, step)}"
        if cell >= used and cell + len(label) <= room:
            text[cell : cell + len(label)] = label
            used = cell + len(label) + 1
        at += step
    return [(pad("since 0", LABEL_WIDTH), "dim"), ("".join(text), "dim")]


def legend(scene: Scene, width: int) -> list[Line]:
    """What the letters mean: those of idle causes that there are, and of phases."""
    causes = {cause for device in scene.devices for cause in device.idle}
    phases = {int(p) for device in scene.devices if device.phase is not None for p in np.unique(device.phase)}
    parts: list[list[Run]] = [
        [(letter, role), (f" {text}", "dim")] for cause, (letter, role, text) in CAUSES.items() if cause in causes
    ]
    parts += [[(_PHASES[p][0], _PHASES[p][1]), (f" {_PHASE_NAMES[Phase(p)]}", "dim")] for p in sorted(phases)]
    lines: list[Line] = []
    while parts:
        line = joined(parts[:1], width)
        taken = 1
        while (
            taken < len(parts) and sum(cells(t) for t, _ in line) + 3 + sum(cells(t) for t, _ in parts[taken]) <= width
        ):
            line += [(GAP, "dim"), *parts[taken]]
            taken += 1
        lines.append(line)
        parts = parts[taken:]
    return lines


def shares(intervals: Intervals, edges: I64) -> np.ndarray:
    """The share of each cell that disjoint, sorted intervals cover, 0 to 1."""
    starts, ends = intervals
    # Only what reaches into the view.
    first, last = int(np.searchsorted(ends, edges[0], "right")), int(np.searchsorted(starts, edges[-1], "left"))
    covered = np.diff(covered_until(edges, (starts[first:last], ends[first:last])))
    return covered / np.maximum(np.diff(edges), 1)


def _edges(low: int, high: int, count: int) -> I64:
    """The bounds of so many cells of equal length, to the nanosecond."""
    count = max(count, 1)
    found: I64 = low + np.arange(count + 1, dtype=np.int64) * (high - low) // count
    return found


def _device(scene: Scene, device: DeviceScene, edges: I64, width: int) -> list[Line]:
    low, high = int(edges[0]), int(edges[-1])
    busy = shares(device.busy, edges)
    view = float(busy @ np.diff(edges)) / max(high - low, 1)
    names = {d.number: d.name for d in scene.timeline.devices}
    name = names.get(device.number)
    title: list[Run] = [(f"GPU {device.number}", "title")]
    if name:
        title.append((f" {printable(name, 60)}", ""))
    lines = [rule(title, width, [(f"busy {100 * view:.1f} % of the view", "")])]
    if device.at is not None and device.phase is not None:
        lines.append(_labelled("steps", _steps(device.at, device.phase, edges)))
    lines.append(_labelled("busy", _levels(busy, "work")))
    lines.append(_labelled("waits on", _idle(device, edges)))
    lines += [_labelled(_stream_label(lane), _lane(scene, lane, edges)) for lane in device.lanes]
    return [fit(line, width) for line in lines]


def _stream_label(lane: Lane) -> str:
    return f"str {lane.stream}" if lane.stream >= 0 else "no str"


def _labelled(label: str, runs: Sequence[Run]) -> Line:
    return [(pad(label, LABEL_WIDTH - 1) + " ", "dim"), *runs]


def _levels(share: np.ndarray, role: str) -> Line:
    """Blocks; a little is not nothing, and not quite all is not all."""
    level = np.ceil(share * 8 - 1e-9).astype(int).clip(0, 8)
    level[(share < 1 - 1e-9) & (level == 8)] = 7
    return [("".join(_LEVELS[n] for n in level.tolist()), role)]


def _idle(device: DeviceScene, edges: I64) -> Line:
    causes = list(device.idle)
    if not causes:
        return [(" " * (len(edges) - 1), "")]
    by_cause = np.stack([shares(device.idle[cause], edges) for cause in causes])
    most = np.argmax(by_cause, axis=0)
    shown = by_cause.sum(axis=0) >= _IDLE_SHARE
    return _runs(
        [CAUSES[causes[c]][:2] if there else ("·" if some else " ", "track")
         for c, there, some in zip(most.tolist(), shown.tolist(), (by_cause.sum(axis=0) > 0).tolist(), strict=True)]
    )  # fmt: skip


def _steps(at: I64, phase: np.ndarray, edges: I64) -> Line:
    """The phase in the middle of each cell; "|" where one step begins and each is wide enough to be seen."""
    middle = (edges[:-1] + edges[1:]) // 2
    step = np.searchsorted(at, middle, side="right") - 1
    inside = (step >= 0) & (step < len(phase))
    first = np.searchsorted(at, edges, side="left")
    begins = (np.diff(first) == 1).tolist()
    wide = np.diff(first).mean() <= 0.34
    found: list[Run] = []
    for n, there, begun in zip(step.tolist(), inside.tolist(), begins, strict=True):
        if begun and wide:
            found.append(("│", "rule"))
        elif there:
            found.append(_PHASES[int(phase[n])])
        else:
            found.append((" ", ""))
    return _runs(found)


def _lane(scene: Scene, lane: Lane, edges: I64) -> Line:
    """Blocks, and over those of long work its name."""
    busy, copies = shares(lane.busy, edges), shares(lane.copies, edges)
    text = list(_levels(busy, "")[0][0])
    roles = ["mem" if copy > 0 and copy >= 0.5 * some else "work" for copy, some in zip(copies, busy, strict=True)]
    ops = scene.timeline.ops
    low, high = int(edges[0]), int(edges[-1])
    count = len(edges) - 1
    rows = lane.rows
    starts = ops.start[rows] if len(rows) < len(ops) else ops.start
    first = int(np.searchsorted(lane.reach, low, side="right"))
    last = int(np.searchsorted(starts, high, side="left"))
    seen = rows[first:last]
    start, end = np.maximum(ops.start[seen], low), np.minimum(ops.end[seen], high)
    long = np.flatnonzero((end - start) * count >= _NAMED_CELLS * (high - low))
    long = long[np.argsort(start[long] - end[long], kind="stable")][:_MOST_NAMES]
    taken = [False] * count
    for one in long.tolist():
        begin = -(-(int(start[one]) - low) * count // (high - low))
        stop = (int(end[one]) - low) * count // (high - low)
        # Streams hold one at a time; inside of replayed graphs two may overlap: the longer one has its name.
        if stop - begin < _NAMED_CELLS - 1 or any(taken[begin:stop]):
            continue
        name = _short(scene.timeline.name(int(ops.name_id[seen[one]])))
        shown = pad(name, stop - begin - 2) if cells(name) > stop - begin - 2 else name
        if cells(shown) != len(shown):
            continue
        for at, char in enumerate(shown, begin + 1):
            text[at], roles[at] = char, "named"
        taken[begin:stop] = [True] * (stop - begin)
    return _runs(list(zip(text, roles, strict=True)))


@lru_cache(maxsize=1024)
def _short(name: str) -> str:
    return printable(short_name(name) or name, 80)


def _runs(found: Sequence[Run]) -> Line:
    """Single cells joined to runs of one role."""
    line: Line = []
    for text, role in found:
        if line and line[-1][1] == role:
            line[-1] = (line[-1][0] + text, role)
        else:
            line.append((text, role))
    return line


def _tick_ns(least: float) -> int:
    """1, 2 or 5 times a power of ten that is at least so long (ns)."""
    power = 10 ** max(0, math.floor(math.log10(max(least, 1))))
    return next(int(power * n) for n in (1, 2, 5, 10) if power * n >= least)


def _moment(ns: int, step: int) -> str:
    """A time since the window's begin, with as many digits as the distance of ticks needs."""
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size or (ns == 0 and step >= size):
            digits = max(0, math.ceil(math.log10(size / step)))
            return f"{ns / size:.{digits}f} {unit}"
    return f"{ns} ns"


def view_text(low: int, high: int, base: int) -> str:
    """What the view shows: its length, and where it begins."""
    return f"{span(high - low)} from {_moment(low - base, max((high - low) // 100, 1))}"
