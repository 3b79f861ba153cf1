"""The operator table: what each framework operator took on the host and, through what it launched, on the device.

"Self" leaves out what ran inside of it, "total" holds it in; an operator inside of one of the same name counts once in
the total. Device time is the summed duration of what was launched (work, not latency).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import clip, length, subtract, union
from gputop_llm.timeline.model import I32, I64
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import Mask
from gputop_llm.verdict.facts import ms, share, span, us
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.nesting import nest

#: An operator with more of the device's work than this is named.
_DOMINATES_PCT = 50.0
#: A table that explains less of the device's work than this can't say what dominates it.
_LINKED_ENOUGH_PCT = 50.0
_DRY_WORTH_PCT = 5.0


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator by name, or by name and input shapes (`shapes` None: all). `device_pct` is its self device time
    as a share of all work on devices."""

    name: str
    shapes: str | None
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int
    total_device_ns: int
    device_pct: float

    @property
    def mean_cpu_ns(self) -> float:
        """Mean total host time of a call."""
        return self.total_cpu_ns / self.calls


@dataclass(frozen=True)
class Operators:
    """All operators, the costliest on the device first (then on the host).

    `device_ns` is all work on devices, `linked_pct` the share of it that some operator launched, `shaped_pct` the share
    launched by one with recorded shapes. `cpu_ns` is the host time of the submitting threads within operators, waiting
    in synchronising calls left out; `dry_pct` the share of the window in which the main device waited for the host.
    """

    by_name: tuple[Operator, ...]
    by_shapes: tuple[Operator, ...]
    device_ns: int
    linked_pct: float
    shaped_pct: float
    cpu_ns: int
    dry_pct: float


def analyse(context: Context) -> Operators | None:
    """The table; None if no operators were recorded."""
    timeline = context.timeline
    table = timeline.cpu_ops
    if not len(table):
        return None
    duration = table.end - table.start
    self_cpu = duration.copy()
    self_device = np.zeros(len(table), dtype=np.int64)
    total_device = np.zeros(len(table), dtype=np.int64)
    launched, device_ns = _device_time_by_call(context)
    calls = np.flatnonzero(launched)
    thread_of_call = timeline.calls.thread[calls]
    for thread in np.unique(table.thread):
        nested = nest(table, int(thread))
        inner = nested.parent >= 0
        of_children = _summed(nested.parent[inner], duration[nested.rows[inner]], len(nested.rows))
        self_cpu[nested.rows] = np.maximum(duration[nested.rows] - of_children, 0)
        own = calls[thread_of_call == thread]
        around = nested.innermost(timeline.calls.start[own])
        self_device += _summed(around[around >= 0], launched[own][around >= 0], len(table))
        # Inner rows follow their outer one, so a total is a difference of running sums.
        running = np.concatenate(([0], np.cumsum(self_device[nested.rows])))
        total_device[nested.rows] = running[nested.last_inside()] - running[:-1]
    shaped = table.shapes_id >= 0
    columns = (duration, self_cpu, self_device, total_device)
    names = table.name_id.astype(np.int64)
    with_shapes = (names << 32) | (table.shapes_id.astype(np.int64) + 1)
    main = context.main
    return Operators(
        by_name=_grouped(context, names << 32, columns, device_ns),
        by_shapes=_grouped(context, with_shapes[shaped], tuple(c[shaped] for c in columns), device_ns, shaped),
        device_ns=device_ns,
        linked_pct=_pct(int(self_device.sum()), device_ns),
        shaped_pct=_pct(int(self_device[shaped].sum()), device_ns),
        cpu_ns=_cpu_time(context),
        dry_pct=_pct(context.idle[main.device].began_ns[Began.DRY], main.window_ns) if main else 0.0,
    )


def _device_time_by_call(context: Context) -> tuple[I64, int]:
    """The device work of each call (ns), and of all device rows."""
    timeline = context.timeline
    ops = timeline.ops
    start, end = np.maximum(ops.start, timeline.start), np.minimum(ops.end, timeline.end)
    duration = np.maximum(end - start, 0)
    known = ops.launch >= 0
    return _summed(ops.launch[known], duration[known], len(timeline.calls)), int(duration.sum())


def _cpu_time(context: Context) -> int:
    """Host time in operators of the threads that submit work, without waiting (ns, added over threads)."""
    timeline, use = context.timeline, context.uses
    table, calls = timeline.cpu_ops, timeline.calls
    waits = (use == Api.SYNC) | (use == Api.BLOCKING_COPY)
    total = 0
    for thread in {int(t) for threads in context.submitters.values() for t in threads}:
        rows, waiting = table.thread == thread, waits & (calls.thread == thread)
        inside = union(*clip(table.start[rows], table.end[rows], timeline.start, timeline.end))
        total += length(*subtract(inside, union(calls.start[waiting], calls.end[waiting])))
    return total


def _grouped(
    context: Context, key: I64, columns: tuple[I64, ...], device_ns: int, rows: Mask | None = None
) -> tuple[Operator, ...]:
    """One operator for each distinct key (name id in the upper half, shapes id + 1 in the lower, 0 for all)."""
    timeline = context.timeline
    if not len(key):
        return ()
    table = timeline.cpu_ops
    if rows is not None:
        table = table.take(rows)
    distinct, group = np.unique(key, return_inverse=True)
    duration, self_cpu, self_device, total_device = columns
    outer = _outermost(group, table.thread, table.start, table.end)
    size = len(distinct)
    calls = np.bincount(group, minlength=size)
    sums = [
        _summed(group[outer], duration[outer], size),
        _summed(group, self_cpu, size),
        _summed(group, self_device, size),
        _summed(group[outer], total_device[outer], size),
    ]
    found = [
        Operator(
            name=printable(timeline.name(int(k >> 32)), 120),
            shapes=printable(timeline.name(int(k & 0xFFFFFFFF) - 1), 400) if k & 0xFFFFFFFF else None,
            calls=int(calls[i]),
            self_cpu_ns=int(sums[1][i]),
            total_cpu_ns=int(sums[0][i]),
            self_device_ns=int(sums[2][i]),
            total_device_ns=int(sums[3][i]),
            device_pct=_pct(int(sums[2][i]), device_ns),
        )
        for i, k in enumerate(distinct.tolist())
    ]
    return tuple(sorted(found, key=lambda op: (-op.self_device_ns, -op.self_cpu_ns, op.name)))


def _outermost(group: I64, thread: I32, start: I64, end: I64) -> Mask:
    """Which rows do not lie inside of another row of their own group and thread."""
    order = np.lexsort((-end, start, thread, group))
    low = int(start.min())
    # Each (group, thread) is moved to a stretch of time of its own, so that one running maximum serves all.
    fresh = np.concatenate(
        ([False], (group[order][1:] != group[order][:-1]) | (thread[order][1:] != thread[order][:-1]))
    )
    shift = np.cumsum(fresh) * (int(end.max()) - low + 1)
    begins, reach = start[order] - low + shift, np.maximum.accumulate(end[order] - low + shift)
    outer = np.ones(len(order), dtype=np.bool_)
    outer[order[1:]] = begins[1:] >= reach[:-1]
    return outer


def _summed(group: I64, values: I64, size: int) -> I64:
    """Sums of whole ns by group. Doubles hold them exactly up to 104 days."""
    return np.bincount(group, weights=values, minlength=size).astype(np.int64)


def _pct(part: float, whole: float) -> float:
    return 100.0 * part / whole if whole else 0.0


def findings(result: Operators | None, context: Context) -> list[Finding]:
    """Notes: one operator that makes most of the device's work; operators that take the host longer than the device."""
    found: list[Finding] = []
    if result is None or not result.by_name or not result.device_ns:
        return found
    top = result.by_name[0]
    linked = (
        Fact("device work launched by operators", result.linked_pct, "%", "their Σ duration ÷ Σ duration of all"),
        Fact("device work launched by operators with shapes", result.shaped_pct, "%", "their Σ duration ÷ Σ of all"),
    )
    if top.device_pct > _DOMINATES_PCT and result.linked_pct >= _LINKED_ENOUGH_PCT:
        found.append(
            Finding(
                id="one-operator-dominates",
                weight=Weight.NOTE,
                headline=f"{top.name} makes {share(top.device_pct)} of the device's work "
                f"({top.calls:,} calls, {span(top.self_device_ns)} self)",
                facts=(
                    Fact(
                        f"{top.name}, self device time",
                        top.device_pct,
                        "%",
                        "Σ duration of what it launched itself ÷ Σ duration of all device rows (work, not latency)",
                        f"{top.calls:,} calls",
                    ),
                    *linked,
                ),
                cause="this operator's kernels are what the device mostly runs",
                advice=(),
                recoverable_pct=None,
                recoverable_formula="a share of work is no saving: see the hot kernels",
                confidence="high",
                refuted_by="device work without a known operator, of another kind",
                next_capture=None,
            )
        )
    main = context.main
    if main and result.cpu_ns > main.busy_ns and result.dry_pct >= _DRY_WORTH_PCT:
        found.append(
            Finding(
                id="operators-slower-on-host",
                weight=Weight.NOTE,
                headline=f"Operators take {span(result.cpu_ns)} of the host and {span(main.busy_ns)} of the GPU: "
                "the host sets the pace (launch-bound)",
                facts=(
                    ms(
                        "host time in operators", result.cpu_ns, "∪ on each submitting thread, without waiting in syncs"
                    ),
                    ms("GPU busy", main.busy_ns, "|∪ device activity|"),
                    Fact("GPU waits for the host", result.dry_pct, "%", "Σ gaps of a dry device ÷ window"),
                    *(
                        us(
                            f"{op.name}, self host time, mean",
                            op.self_cpu_ns / op.calls,
                            "Σ self ÷ calls",
                            f"{op.calls:,} calls",
                        )
                        for op in sorted(result.by_name, key=lambda op: -op.self_cpu_ns)[:3]
                    ),
                    *linked,
                ),
                cause="the framework's own time for an operator is longer than what it starts on the device",
                advice=(),
                recoverable_pct=None,
                recoverable_formula="counted by the launch-bound finding",
                confidence="high",
                refuted_by="the recorder's own cost for each operator: the same step without it is much shorter",
                next_capture=None,
            )
        )
    return found
