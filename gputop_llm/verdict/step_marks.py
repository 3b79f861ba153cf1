"""Where the steps of an engine begin on a device: by annotation, by graph replays, or inferred from what repeats.

Annotations are projected on the device through launches: a step begins with the first device row that was launched
inside of its range. Without them a kernel that runs once per step is the anchor (sampling, or what an engine prepares
for each step), else a graph replay, else a kernel that comes once in each period of the sequence of kernel names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from gputop_llm.printable import printable
from gputop_llm.timeline.model import I64, U8, Kind, Timeline
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.grouped import FAMILIES
from gputop_llm.verdict.kernel_names import Family, short_name


class Phase(IntEnum):
    """What a step does. MIXED: prefill and decode in one batch."""

    UNKNOWN = 0
    DECODE = 1
    PREFILL = 2
    MIXED = 3


PHASE_LABELS = {Phase.UNKNOWN: "step", Phase.DECODE: "decode", Phase.PREFILL: "prefill", Phase.MIXED: "mixed"}
ANNOTATION = "annotation"
REPLAYS = "graph replays"
INFERRED = "inferred"

# The first pattern with a range in the capture marks its steps.
_VLLM = re.compile(r"^execute_(?:\d+_)?context_(\d{1,9})\([^()]*\)_generation_(\d{1,9})\(")
_SGLANG = re.compile(r"^step\[(\w+)")
# TensorRT-LLM's ranges stand in an NVTX domain of its name.
_TRTLLM = re.compile(r"^(?:TensorRT-LLM:)?\[Executor\] _forward_step \d+: (\d{1,9}) ctx reqs[^:]*? (\d{1,9}) gen reqs")
_PLAIN = re.compile(r"^(decode|prefill)(?:[ _.:#\-]?(?:step|phase|iter|batch)?[ _.:#=\-]?\d*)?$", re.IGNORECASE)
_PROFILER = re.compile(r"^ProfilerStep#?\s*\d+")
_PATTERNS = (_VLLM, _SGLANG, _TRTLLM, _PLAIN, _PROFILER)
#: A step that checks drafted tokens is one of decoding.
_SGLANG_PHASES = {
    "DECODE": Phase.DECODE,
    "TARGET_VERIFY": Phase.DECODE,
    "EXTEND": Phase.PREFILL,
    "MIXED": Phase.MIXED,
}

#: An anchor must come this often.
_FEWEST = 3
#: Names that come equally often, within this share, belong to one cycle.
_SAME_COUNT = 0.02
#: A sequence of kernels repeats if so many of them are what was there one period before.
_REPEATS = 0.8
_AS_GOOD = 0.01
_CANDIDATES = 64


@dataclass(frozen=True)
class Marks:
    """The steps on one device. Step n lies in [at[n], at[n + 1]); `at` has one moment more than there are steps.

    `source` is "annotation", "graph replays" or "inferred", `anchor` the range or kernel that marks them, `phase` what
    each step does (by the annotation only). `rows` are the device's rows in the window and `owner` the step of each:
    by launch where annotations tell, else by time; -1 is none. `open_end` is true where the last step has no next one.
    """

    source: str
    anchor: str
    at: I64
    phase: U8
    rows: I64
    owner: I64
    open_end: bool

    def __len__(self) -> int:
        return len(self.phase)


def phase_of(name: str) -> Phase | None:
    """The phase that a range's name tells; None if it marks no step."""
    if match := _VLLM.match(name) or _TRTLLM.match(name):
        context, generation = int(match[1]), int(match[2])
        if context:
            return Phase.MIXED if generation else Phase.PREFILL
        return Phase.DECODE if generation else Phase.UNKNOWN
    if match := _SGLANG.match(name):
        return _SGLANG_PHASES.get(match[1].upper(), Phase.UNKNOWN)
    if match := _PLAIN.match(name):
        return Phase.DECODE if match[1].lower() == "decode" else Phase.PREFILL
    return Phase.UNKNOWN if _PROFILER.match(name) else None


def marks(context: Context, device: int) -> Marks | None:
    """The steps of a device; None if nothing repeats and nothing is annotated."""
    timeline = context.timeline
    ops = timeline.ops
    rows = np.flatnonzero((ops.device == device) & (ops.end > timeline.start) & (ops.start < timeline.end))
    if not len(rows):
        return None
    return (
        _annotated(timeline, rows) or _anchored(context, rows) or _replayed(context, rows) or _periodic(timeline, rows)
    )


def _annotated(timeline: Timeline, rows: I64) -> Marks | None:
    ops, ranges, calls = timeline.ops, timeline.ranges, timeline.calls
    known = {int(i): timeline.name(int(i)) for i in np.unique(ranges.name_id) if i >= 0}
    for pattern in _PATTERNS:
        ids = [i for i, name in known.items() if pattern.match(name)]
        if not ids:
            continue
        chosen = np.flatnonzero(np.isin(ranges.name_id, ids))
        owner = np.full(len(rows), -1, dtype=np.int64)
        launch = ops.launch[rows]
        launched = np.flatnonzero(launch >= 0)
        thread, at = calls.thread[launch[launched]], calls.start[launch[launched]]
        for number in np.unique(ranges.thread[chosen]):
            own = chosen[ranges.thread[chosen] == number]
            own = own[_outermost(ranges.start[own], ranges.end[own])]
            here = np.flatnonzero(thread == number)
            position = np.searchsorted(ranges.start[own], at[here], side="right") - 1
            inside = (position >= 0) & (at[here] < ranges.end[own[np.maximum(position, 0)]])
            owner[launched[here[inside]]] = own[position[inside]]
        if not (owner >= 0).any():
            continue
        return _by_range(timeline, rows, owner, known)
    return None


def _by_range(timeline: Timeline, rows: I64, owner: I64, known: dict[int, str]) -> Marks:
    """Steps by the range that owns each row, in the order in which the device began them."""
    ops = timeline.ops
    owned = np.flatnonzero(owner >= 0)
    numbers, first, step = np.unique(owner[owned], return_index=True, return_inverse=True)
    # Rows are sorted by start: the first of a range is its earliest.
    begin = ops.start[rows[owned[first]]]
    order = np.argsort(begin, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    found = np.full(len(rows), -1, dtype=np.int64)
    found[owned] = place[step]
    last = int(ops.end[rows[found == len(order) - 1]].max())
    begin = np.maximum(begin[order], timeline.start)
    name_ids = timeline.ranges.name_id[numbers[order]]
    by_name = {int(i): phase_of(known[int(i)]) or Phase.UNKNOWN for i in np.unique(name_ids)}
    phase = np.array([by_name[int(i)] for i in name_ids], dtype=np.uint8)
    return Marks(
        source=ANNOTATION,
        anchor=printable(known[int(name_ids[0])], 80),
        at=np.append(begin, max(int(begin[-1]), min(last, timeline.end))),
        phase=phase,
        rows=rows,
        owner=found,
        open_end=True,
    )


def _outermost(start: I64, end: I64) -> I64:
    """The positions of intervals, sorted by start, that lie in no earlier one."""
    reach = np.maximum.accumulate(end)
    return np.flatnonzero(np.concatenate(([True], start[1:] >= reach[:-1])))


def _anchored(context: Context, rows: I64) -> Marks | None:
    """Steps end with a kernel that every step runs once, by what it is for: sampling, or an engine's own inputs."""
    timeline = context.timeline
    ops = timeline.ops
    family = context.families[rows]
    sampling = family == FAMILIES.index(Family.SAMPLING)
    own = np.flatnonzero(sampling | (family == FAMILIES.index(Family.INPUTS)))
    if not len(own):
        return None
    names, which, counts = np.unique(ops.name_id[rows[own]], return_inverse=True, return_counts=True)
    support = np.array([int((np.abs(counts - c) <= max(1, _SAME_COUNT * c)).sum()) for c in counts])
    # Of kernels that come equally often the sampling ones end a step, and the longest of them is told best.
    samples = np.bincount(which, weights=sampling[own]) > 0
    work = np.bincount(which, weights=(ops.end - ops.start)[rows[own]])
    best = max(range(len(names)), key=lambda i: (support[i], samples[i], work[i]))
    if counts[best] < _FEWEST:
        return None
    anchor = rows[own[which == best]]
    return _between(timeline, rows, ops.end[anchor], INFERRED, short_name(timeline.name(int(names[best]))))


def _replayed(context: Context, rows: I64) -> Marks | None:
    """One replay is one step, or one round of replays where several graphs take turns."""
    timeline = context.timeline
    ops = timeline.ops
    first = np.zeros(len(ops), dtype=bool)
    launches = np.flatnonzero((context.uses == Api.GRAPH_LAUNCH) & (context.first_op >= 0))
    first[context.first_op[launches]] = True
    first |= ops.kind == Kind.GRAPH
    replays = rows[first[rows]]
    if len(replays) < _FEWEST:
        return None
    graphs, sequence = np.unique(ops.graph[replays], return_inverse=True)
    period = _period(sequence) if len(graphs) > 1 else 1
    if period is None:
        period = 1
    return _between(timeline, rows, ops.start[replays[::period]], REPLAYS, "CUDA graph replay")


def _periodic(timeline: Timeline, rows: I64) -> Marks | None:
    """The kernel that comes once in each period of the sequence of names on the busiest stream."""
    ops = timeline.ops
    kernels = rows[(ops.kind[rows] == Kind.KERNEL) | (ops.kind[rows] == Kind.GRAPH)]
    if len(kernels) < 2 * _FEWEST:
        return None
    streams, which = np.unique(ops.stream[kernels], return_inverse=True)
    busiest = int(np.argmax(np.bincount(which, weights=(ops.end - ops.start)[kernels], minlength=len(streams))))
    kernels = kernels[which == busiest]
    names, sequence = np.unique(ops.name_id[kernels], return_inverse=True)
    period = _period(sequence)
    # One kernel again and again says nothing about where a step begins.
    if period is None or period < 2 or len(kernels) // period < _FEWEST:
        return None
    counts = np.bincount(sequence)
    work = np.bincount(sequence, weights=(ops.end - ops.start)[kernels])
    once = np.abs(counts - len(kernels) / period) <= max(1.0, 0.1 * len(kernels) / period)
    if not once.any():
        return None
    anchor = int(np.argmax(np.where(once, work, -1)))
    own = kernels[sequence == anchor]
    launch = ops.launch[own]
    launched = launch[launch >= 0]
    # What one graph replay runs again and again is a layer, not a step.
    if len(np.unique(launched)) < len(launched):
        return None
    return _between(timeline, rows, ops.start[own], INFERRED, short_name(timeline.name(int(names[anchor]))))


def _period(sequence: I64) -> int | None:
    """The distance at which a sequence repeats best, the shortest of equally good ones; None if it doesn't."""
    counts = np.bincount(sequence)
    often = np.argsort(counts, kind="stable")
    often = often[counts[often] >= _FEWEST][:_CANDIDATES]
    candidates = {int(np.median(np.diff(np.flatnonzero(sequence == symbol)))) for symbol in often}
    matches = {p: float((sequence[p:] == sequence[:-p]).mean()) for p in candidates if 0 < p <= len(sequence) // 2}
    best = max(matches.values(), default=0.0)
    if best < _REPEATS:
        return None
    return min(p for p, match in matches.items() if match >= best - _AS_GOOD)


def _between(timeline: Timeline, rows: I64, at: I64, source: str, anchor: str) -> Marks | None:
    """Steps between successive moments on the device."""
    at = np.unique(at[(at >= timeline.start) & (at <= timeline.end)])
    if len(at) < _FEWEST:
        return None
    owner = np.searchsorted(at, timeline.ops.start[rows], side="right") - 1
    owner[owner >= len(at) - 1] = -1
    return Marks(source, printable(anchor, 80), at, np.zeros(len(at) - 1, dtype=np.uint8), rows, owner, open_end=False)
