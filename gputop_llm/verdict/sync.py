"""Sync-bound: idle time that a synchronising call causes. Waiting for a busy GPU costs nothing, and is said so.

A gap that begins while the thread that issues the next work sits in a synchronising call exists because that thread
could not run ahead. Without the sync it would, but no further than the time it spent waiting: the bound is the smaller
of the two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import clip, length, overlap_with, union
from gputop_llm.timeline.model import I64, CopyKind, CpuOps, Kind, Ranges
from gputop_llm.verdict.advice import OVERLAP
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import by_cause, listed, ms, no_more_than, over_devices, share, span, us
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.nesting import enclosing

_WORTH_PCT = 3.0
_SEVERE_PCT = 25.0
#: Waiting that costs nothing is worth a word from this share of the window on.
_WAIT_WORTH_PCT = 10.0
#: ... provided that the device worked for this share of it.
_BUSY_SHARE = 0.8
#: Copies to the host of up to this size carry tokens, flags or scalars.
READBACK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SyncCall:
    """One synchronising API: its calls, their time, and the idle time that began in them."""

    name: str
    calls: int
    total_ns: int
    caused_ns: int
    caused_gaps: int


@dataclass(frozen=True, slots=True)
class Around:
    """A framework operator or range around the calls that caused idle time, and how much."""

    name: str
    what: str
    caused_ns: int
    gaps: int


@dataclass(frozen=True)
class Syncs:
    """One device and the threads that launch onto it.

    `waited_ns` is their time in synchronising calls and blocking copies, `waited_busy_ns` the part with the device at
    work. `caused_ns` is the idle time of gaps that began in such a call, by cause in `causes`; `bound_ns` the most that
    a world without these calls could give back. `readbacks` are copies to the host that a sync directly follows (or
    that block by themselves), `small_readbacks` those of up to 64 KiB, `readback_bytes` their median size.
    """

    device: int
    window_ns: int
    calls: int
    waited_ns: int
    waited_busy_ns: int
    caused_ns: int
    caused_gaps: int
    bound_ns: int
    causes: dict[Cause, int]
    by_api: tuple[SyncCall, ...]
    around: tuple[Around, ...]
    readbacks: int
    small_readbacks: int
    readback_bytes: float | None

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0


def analyse(context: Context) -> tuple[Syncs, ...]:
    """One entry for each device with activity."""
    return tuple(_of_device(context, covered) for covered in context.coverage)


def _of_device(context: Context, covered: DeviceCoverage) -> Syncs:
    timeline, use = context.timeline, context.uses
    calls = timeline.calls
    gaps = context.idle[covered.device].gaps
    waiting = (use == Api.SYNC) | (use == Api.BLOCKING_COPY)
    begun = gaps.began == Began.SYNC
    waited = waited_busy = bound = count = 0
    owner = np.full(len(begun), -1, dtype=np.int64)
    rows_of_threads = []
    for thread in context.submitters[covered.device]:
        rows = np.flatnonzero(waiting & (calls.thread == thread))
        start, end = union(*clip(calls.start[rows], calls.end[rows], timeline.start, timeline.end))
        own = begun & (gaps.thread == thread)
        if len(rows):
            owner[own] = rows[np.maximum(np.searchsorted(calls.start[rows], gaps.start[own], side="right") - 1, 0)]
        time = length(start, end)
        waited += time
        waited_busy += int(overlap_with(start, end, covered.busy).sum())
        bound += min(time, int(gaps.length[own].sum()))
        in_window = rows[(calls.end[rows] > timeline.start) & (calls.start[rows] < timeline.end)]
        count += len(in_window)
        rows_of_threads.append(in_window)
    caused = np.flatnonzero(owner >= 0)
    read, sizes = _readbacks(context, covered.device)
    return Syncs(
        device=covered.device,
        window_ns=covered.window_ns,
        calls=count,
        waited_ns=waited,
        waited_busy_ns=waited_busy,
        caused_ns=int(gaps.length[begun].sum()),
        caused_gaps=int(begun.sum()),
        bound_ns=bound,
        causes=gaps.by_cause.total(begun),
        by_api=_by_api(context, rows_of_threads, owner[caused], gaps.length[caused]),
        around=_around(context, owner[caused], gaps.length[caused]),
        readbacks=read,
        small_readbacks=int((sizes <= READBACK_BYTES).sum()),
        readback_bytes=float(np.median(sizes)) if len(sizes) else None,
    )


def _by_api(context: Context, rows_of_threads: list[I64], owner: I64, caused: I64) -> tuple[SyncCall, ...]:
    calls = context.timeline.calls
    rows = np.concatenate(rows_of_threads) if rows_of_threads else np.empty(0, dtype=np.int64)
    found = []
    for name_id in np.unique(calls.name_id[rows]):
        own = rows[calls.name_id[rows] == name_id]
        begun = calls.name_id[owner] == name_id
        found.append(
            SyncCall(
                name=printable(context.timeline.name(int(name_id)), 80),
                calls=len(own),
                total_ns=int((calls.end[own] - calls.start[own]).sum()),
                caused_ns=int(caused[begun].sum()),
                caused_gaps=int(begun.sum()),
            )
        )
    return tuple(sorted(found, key=lambda call: (-call.caused_ns, -call.total_ns)))


def _around(context: Context, owner: I64, caused: I64) -> tuple[Around, ...]:
    """The innermost operators and ranges around the calls in which gaps began, the costliest first."""
    timeline = context.timeline
    thread, at = timeline.calls.thread[owner], timeline.calls.start[owner]
    found = []
    tables: tuple[tuple[str, CpuOps | Ranges], ...] = (("operator", timeline.cpu_ops), ("range", timeline.ranges))
    for what, table in tables:
        if not len(table) or not len(owner):
            continue
        rows = enclosing(table, thread, at)
        names = np.where(rows >= 0, table.name_id[np.maximum(rows, 0)], -1)
        for name_id in np.unique(names[names >= 0]):
            own = names == name_id
            name = printable(timeline.name(int(name_id)), 80)
            found.append(Around(name, what, int(caused[own].sum()), int(own.sum())))
    return tuple(sorted(found, key=lambda around: -around.caused_ns))


def _readbacks(context: Context, device: int) -> tuple[int, I64]:
    """Copies to the host that the submitting thread waits for before it launches anything else, and their sizes."""
    timeline, use = context.timeline, context.uses
    ops, calls = timeline.ops, timeline.calls
    copies = (ops.device == device) & (ops.kind == Kind.COPY) & (ops.copy_kind == CopyKind.DTOH) & (ops.launch >= 0)
    launch, size = ops.launch[copies], ops.bytes[copies]
    awaited = use[launch] == Api.BLOCKING_COPY
    launching = (use == Api.LAUNCH) | (use == Api.GRAPH_LAUNCH)
    for thread in np.unique(calls.thread[launch]):
        of_thread = calls.thread == thread
        syncs = np.append(np.flatnonzero(of_thread & (use == Api.SYNC)), len(calls))
        launches = np.append(np.flatnonzero(of_thread & launching), len(calls))
        own = calls.thread[launch] == thread
        next_sync = syncs[np.searchsorted(syncs, launch[own], side="right").clip(max=len(syncs) - 1)]
        next_launch = launches[np.searchsorted(launches, launch[own], side="right").clip(max=len(launches) - 1)]
        awaited[own] |= next_sync < next_launch
    return int(awaited.sum()), size[awaited]


def findings(results: tuple[Syncs, ...], context: Context) -> list[Finding]:
    """Sync-bound, or the note that long waits cost nothing. About the device that it costs most."""
    if not results or context.blind:
        return []
    worst = max(results, key=lambda r: r.pct(r.bound_ns))
    if worst.pct(worst.bound_ns) >= _WORTH_PCT:
        return [_sync_bound(worst, results, context)]
    longest = max(results, key=lambda r: r.waited_ns)
    if longest.pct(longest.waited_ns) >= _WAIT_WORTH_PCT and longest.waited_busy_ns >= _BUSY_SHARE * longest.waited_ns:
        return [_harmless(longest, context)]
    return []


def _sync_bound(result: Syncs, results: tuple[Syncs, ...], context: Context) -> Finding:
    pct = result.pct(result.bound_ns)
    api = result.by_api[0]
    each = result.caused_ns / max(1, result.caused_gaps)
    error_pct = context.idle_error_pct(result.device)
    where = f", in {result.around[0].name}" if result.around else ""
    return Finding(
        id="sync-bound",
        weight=Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
        headline=f"Sync-bound: {share(pct)} of the window could go: after {api.name}{where} the GPU waits {span(each)} "
        f"for new work ({api.caused_gaps:,} times)",
        facts=(
            Fact(
                "idle that began in a sync",
                result.pct(result.caused_ns),
                "%",
                "Σ gaps that began while the thread that issues the next work was in a synchronising call ÷ window",
                f"{result.caused_gaps:,} gaps",
                plus_minus=no_more_than(result.pct(result.caused_ns), error_pct),
            ),
            *by_cause(result.causes, result.window_ns, "these gaps", f"{result.caused_gaps:,} gaps", error_pct),
            *sync_facts(result),
            *over_devices(
                "idle that began in a sync",
                {context.device_label(r.device): r.pct(r.caused_ns) for r in results},
                "%",
                "Σ such gaps ÷ window",
            ),
        ),
        cause=_cause(result),
        advice=_advice(result, context),
        recoverable_pct=pct,
        recoverable_formula="min(idle that began in a sync, time waited in syncs) ÷ window: "
        "without the sync the host can run ahead by no more than it waited",
        confidence="high" if result.caused_gaps >= 20 else f"medium: only {result.caused_gaps} such gaps",
        refuted_by="with the sync gone, the step takes as long: then the host's own work is what takes the time",
        next_capture=None if result.around else "Kineto window with CPU operators and stacks: who calls it",
        subject=context.subject(result.device),
    )


def _cause(result: Syncs) -> str:
    said = [f"{call.name}: {call.calls:,} calls" for call in result.by_api if call.caused_ns][:3]
    text = "the host can't launch ahead past " + ", ".join(said)
    if result.small_readbacks:
        text += (
            f"; {result.small_readbacks:,} small copies to the host (median {result.readback_bytes:.0f} bytes) "
            "are waited for at once, as .item() or a token readback in each step does"
        )
    if result.around:
        text += f"; called within {listed(a.name for a in result.around)}"
    return text


def _advice(result: Syncs, context: Context) -> tuple[Advice, ...]:
    found = []
    if result.small_readbacks:
        found.append(
            Advice(
                "keep what is read back (.item(), .tolist(), .cpu()) on the device, or copy it into pinned memory "
                "without blocking and look at it a step later"
            )
        )
    if any(call.caused_ns and "DeviceSync" in call.name for call in result.by_api):
        found.append(Advice("take torch.cuda.synchronize() out of the step"))
    if not found:
        found.append(Advice("replace the sync by an event that is queried when the result is needed"))
    return (*found, OVERLAP) if context.engine else tuple(found)


def sync_facts(result: Syncs) -> tuple[Fact, ...]:
    """What the synchronising calls of a device's threads took, and how much of it was free."""
    rows = f"{result.calls:,} calls"
    busy = 100.0 * result.waited_busy_ns / result.waited_ns if result.waited_ns else None
    return (
        ms("time in synchronising calls", result.waited_ns, "∪ of each submitting thread's calls, added", rows),
        Fact("of it while the GPU worked", busy, "%", "overlap with |∪ device activity| ÷ that time", rows),
        *(
            us(
                f"{call.name}, mean",
                call.total_ns / call.calls,
                "mean of end − start",
                f"{call.calls:,} calls",
                f"{span(call.caused_ns)} idle began in {call.caused_gaps:,} of them",
            )
            for call in result.by_api[:4]
        ),
        Fact(
            "copies to the host waited for at once",
            float(result.readbacks),
            "",
            "DtoH copies that block, or whose thread syncs before it launches again",
            f"{result.small_readbacks:,} of up to 64 KiB",
        ),
    )


def _harmless(result: Syncs, context: Context) -> Finding:
    busy_pct = 100.0 * result.waited_busy_ns / result.waited_ns
    name = max(result.by_api, key=lambda call: call.total_ns).name
    return Finding(
        id="sync-waits-for-busy-gpu",
        weight=Weight.NOTE,
        headline=f"The host waits {span(result.waited_ns)} in {name} and it costs nothing: the GPU works during "
        f"{share(busy_pct)} of it",
        facts=(
            *sync_facts(result),
            Fact("idle that began in a sync", result.pct(result.caused_ns), "%", "Σ such gaps ÷ window"),
        ),
        cause="the host is done early and waits for the device, as it should",
        advice=(),
        recoverable_pct=0.0,
        recoverable_formula="waiting for a busy GPU costs nothing; "
        f"the idle time after it is {share(result.pct(result.caused_ns))} of the window",
        confidence="high",
        refuted_by="gaps on the device that begin when these calls return",
        subject=context.subject(result.device),
    )
