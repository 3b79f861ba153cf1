"""The host's threads: who submits the device's work, what they spend their time on, and when the host itself is late.

Host-bound is idle time in long gaps: the device had run dry, the thread that submits its work was neither in a sync nor
in a run of launches, but did something else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import clip, length, overlap_with, union
from gputop_llm.timeline.model import I32, I64, CpuOps, HostCalls, OsWaits, Ranges
from gputop_llm.verdict import host_lines
from gputop_llm.verdict.advice import LARGER_BATCHES, OVERLAP
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.causes import CAUSE_LABELS, Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import Intervals, Mask
from gputop_llm.verdict.facts import by_cause, listed, no_more_than, over_devices, share, span
from gputop_llm.verdict.host_lines import Lines
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.launches import Launches
from gputop_llm.verdict.launches import analyse as launches_of
from gputop_llm.verdict.nesting import enclosing

_WORTH_PCT = 5.0
_SEVERE_PCT = 25.0
_ENOUGH_LAUNCHES = 20
_DISTORTED_PCT = 5.0
#: What lies around a smaller part of the long gaps is not named.
_NAMED_SHARE = 0.1
#: Calls in which a thread waits for others to bring it something to do.
_WAITS_FOR_INPUT = (
    "poll",
    "ppoll",
    "epoll_wait",
    "epoll_pwait",
    "select",
    "pselect",
    "recv",
    "recvfrom",
    "recvmsg",
    "read",
)


@dataclass(frozen=True, slots=True)
class HostThread:
    """One thread's time within the window (ns): in API calls, in synchronising ones of them, in operators, kept by the
    OS, and at work in calls or operators without waiting.

    `launches` are its launch calls, `devices` those it serves.
    """

    thread: int
    label: str
    process: int
    launches: int
    devices: tuple[int, ...]
    api_ns: int
    sync_ns: int
    operator_ns: int
    os_wait_ns: int
    work_ns: int
    window_ns: int

    @property
    def work_pct(self) -> float:
        """Share of the window at work in calls or operators."""
        return 100.0 * self.work_ns / self.window_ns if self.window_ns else 0.0


@dataclass(frozen=True, slots=True)
class Within:
    """An operator, range or OS wait around the middle of gaps, and how much idle time those hold."""

    what: str
    name: str
    idle_ns: int
    gaps: int


@dataclass(frozen=True)
class Host:
    """Threads, the busiest first; launches by device; what lay in the long gaps of the device that they cost most."""

    threads: tuple[HostThread, ...]
    launches: tuple[Launches, ...]
    longest_ns: int
    within: tuple[Within, ...]


def analyse(context: Context, launches: tuple[Launches, ...] | None = None) -> Host:
    """The threads and long gaps of a capture. `launches` as from `launches.analyse`, worked out here if not given."""
    launches = launches_of(context) if launches is None else launches
    worst = _worst(launches)
    longest, within = (0, ()) if worst is None else _long_gaps(context, worst)
    return Host(_threads(context), launches, longest, within)


def _worst(launches: tuple[Launches, ...]) -> Launches | None:
    return max(launches, key=lambda r: r.pct(r.break_ns), default=None)


def _threads(context: Context) -> tuple[HostThread, ...]:
    timeline, use = context.timeline, context.uses
    calls, ops, waits = timeline.calls, timeline.cpu_ops, timeline.os_waits
    found = []
    seen = np.unique(np.concatenate([np.unique(table.thread) for table in (calls, ops, waits)]))
    waiting = (use == Api.SYNC) | (use == Api.BLOCKING_COPY)
    launching = (use == Api.LAUNCH) | (use == Api.GRAPH_LAUNCH)
    in_window = (calls.start >= timeline.start) & (calls.start < timeline.end)
    for number in seen[seen >= 0].tolist():
        own = calls.thread == number
        api = _union(context, calls, own)
        sync = _union(context, calls, own & waiting)
        inside = _union(context, ops, ops.thread == number)
        kept = _union(context, waits, waits.thread == number)
        active, still = _either(api, inside), _either(sync, kept)
        found.append(
            HostThread(
                thread=number,
                label=context.thread_label(number),
                process=timeline.threads[number].process,
                launches=int((own & launching & in_window).sum()),
                devices=tuple(d for d, threads in context.submitters.items() if number in threads),
                api_ns=length(*api),
                sync_ns=length(*sync),
                operator_ns=length(*inside),
                os_wait_ns=length(*kept),
                work_ns=length(*active) - int(overlap_with(*still, active).sum()),
                window_ns=timeline.window_ns,
            )
        )
    return tuple(sorted(found, key=lambda t: (-t.launches, -t.work_ns)))


def _union(context: Context, table: HostCalls | CpuOps | OsWaits, rows: Mask) -> Intervals:
    # One thread often has all of a large table: no copy then.
    start, end = (table.start, table.end) if rows.all() else (table.start[rows], table.end[rows])
    return union(*clip(start, end, context.timeline.start, context.timeline.end))


def _either(one: Intervals, other: Intervals) -> Intervals:
    if not len(one[0]) or not len(other[0]):
        return one if len(one[0]) else other
    return union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))


def _breaks(context: Context, result: Launches) -> Mask:
    gaps = context.idle[result.device].gaps
    chosen: Mask = (gaps.began == Began.DRY) & (gaps.length > result.split_ns)
    return chosen


def _long_gaps(context: Context, result: Launches) -> tuple[int, tuple[Within, ...]]:
    """The longest gap (ns), and what the submitting thread was inside of in the middle of the long ones."""
    timeline, gaps = context.timeline, context.idle[result.device].gaps
    rows = _breaks(context, result)
    if not rows.any():
        return 0, ()
    sizes, thread = gaps.length[rows], gaps.thread[rows]
    middle = (gaps.start[rows] + gaps.end[rows]) // 2
    found: list[Within] = []
    tables: tuple[tuple[str, CpuOps | Ranges | OsWaits], ...] = (
        ("operator", timeline.cpu_ops),
        ("range", timeline.ranges),
        ("OS wait", timeline.os_waits),
    )
    for what, table in tables:
        if len(table):
            found += _named(context, what, table, thread, middle, sizes)
    return int(sizes.max()), tuple(sorted(found, key=lambda within: -within.idle_ns))


def _named(
    context: Context, what: str, table: CpuOps | Ranges | OsWaits, thread: I32, at: I64, sizes: I64
) -> list[Within]:
    rows = enclosing(table, thread, at)
    names = np.where(rows >= 0, table.name_id[np.maximum(rows, 0)], -1)
    return [
        Within(
            what, printable(context.timeline.name(int(n)), 80), int(sizes[names == n].sum()), int((names == n).sum())
        )
        for n in np.unique(names[names >= 0])
    ]


def findings(result: Host, context: Context) -> list[Finding]:
    """Host-bound, of the device that it costs most."""
    worst = _worst(result.launches)
    if worst is None or context.blind or worst.calls < _ENOUGH_LAUNCHES:
        return []
    pct = worst.pct(worst.break_ns)
    if pct < _WORTH_PCT:
        return []
    covered = next(c for c in context.coverage if c.device == worst.device)
    error_pct = context.idle_error_pct(worst.device)
    rows = f"{worst.break_gaps:,} gaps"
    mean = worst.break_ns / worst.break_gaps
    submitter = next((t for t in result.threads if worst.device in t.devices), None)
    lines = host_lines.lines_of(context, worst.device)
    facts = [
        *context.busy_facts(covered),
        Fact(
            "idle in long gaps",
            pct,
            "%",
            "Σ gaps whose next launch returned after the gap began, without a sync or allocation, "
            f"longer than {span(worst.split_ns)} each ÷ window",
            rows,
            f"mean {span(mean)}, longest {span(result.longest_ns)}",
            no_more_than(pct, error_pct),
        ),
        *by_cause(worst.break_causes, worst.window_ns, "these gaps", rows, error_pct),
        *host_lines.facts(lines, context),
        *(
            Fact(
                f"idle within {what.what} {what.name}",
                worst.pct(what.idle_ns),
                "%",
                f"Σ long gaps with this {what.what} around their middle ÷ window",
                f"{what.gaps:,} gaps",
            )
            for what in result.within[:5]
            if what.idle_ns >= _NAMED_SHARE * worst.break_ns
        ),
        *over_devices(
            "idle in long gaps",
            {context.device_label(r.device): r.pct(r.break_ns) for r in result.launches},
            "%",
            "Σ such gaps ÷ window",
        ),
    ]
    if submitter is not None:
        facts.append(
            Fact(
                f"{submitter.label} at work in calls and operators",
                submitter.work_pct,
                "%",
                "|∪ calls and operators − waiting| ÷ window",
                f"{submitter.launches:,} launches",
            )
        )
    return [
        Finding(
            id="host-bound",
            weight=Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
            headline=f"Host-bound: the GPU idles {share(pct)} of the window in {rows} of {span(mean)} "
            f"(longest {span(result.longest_ns)}) between runs of launches",
            facts=tuple(facts),
            cause=_cause(worst, result) + host_lines.cause(lines),
            advice=_advice(result, context),
            recoverable_pct=pct,
            recoverable_formula="idle in long gaps of a dry device that did not begin in a sync or allocation ÷ window",
            confidence=_confidence(worst, error_pct, lines),
            refuted_by="no request was waiting during these gaps: then the clients are the limit, not the host",
            next_capture=None
            if result.within or lines is not None
            else "Kineto window with CPU operators, or py-spy: what the host does there",
            subject=context.subject(worst.device),
        )
    ]


def _waiting_share(worst: Launches, result: Host) -> float:
    """The part of the long gaps that the thread spent waiting for input from the OS."""
    waiting = sum(w.idle_ns for w in result.within if w.what == "OS wait" and w.name in _WAITS_FOR_INPUT)
    return waiting / worst.break_ns if worst.break_ns else 0.0


def _cause(worst: Launches, result: Host) -> str:
    main = max(worst.break_causes, key=lambda cause: worst.break_causes[cause])
    part = 100.0 * worst.break_causes[main] / worst.break_ns
    text = f"the thread that submits the work was {_DOING.get(main, CAUSE_LABELS[main])} for {share(part)} of it"
    if _waiting_share(worst, result) >= 0.5:
        waits = listed(w.name for w in result.within if w.what == "OS wait")
        return f"{text} ({waits}): waiting for input, so perhaps no request was in flight"
    named = [w.name for w in result.within if w.what != "OS wait" and w.idle_ns >= _NAMED_SHARE * worst.break_ns]
    return f"{text}, within {listed(named)}" if named else text


_DOING = {
    Cause.HOST_CODE: "in Python or other host code",
    Cause.FRAMEWORK: "inside framework operators",
    Cause.UNATTRIBUTED: "outside of any recorded call",
}


def _advice(result: Host, context: Context) -> tuple[Advice, ...]:
    if context.engine:
        return (OVERLAP, LARGER_BATCHES)
    return (Advice("prepare the next step while the GPU works on this one; move work off the submitting thread"),)


def _confidence(worst: Launches, low_by: float | None, lines: Lines | None) -> str:
    if low_by is not None and low_by >= _DISTORTED_PCT:
        return "low: the recorder's own cost makes the host slower (graph replays were recorded node by node)"
    if worst.break_causes[Cause.UNATTRIBUTED] >= 0.5 * worst.break_ns:
        if lines is not None and lines.in_gaps:
            return f"medium: the gaps are sure, what the host did in them is sampled ({lines.samples:,.0f} times)"
        return "medium: the gaps are sure, what the host did in them is not recorded"
    return "high"
