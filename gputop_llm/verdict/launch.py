"""Launch-bound or GPU-bound: does the device wait for launches, or do launches wait for the device?"""

from __future__ import annotations

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.verdict import host_lines
from gputop_llm.verdict.advice import (
    CUDA_GRAPHS,
    CUDA_GRAPHS_IN_TORCH,
    EAGER_FLAGS,
    FEWER_LAUNCHES,
    LARGER_BATCHES,
    OVERLAP,
)
from gputop_llm.verdict.blind import Blind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.distortion import WHOLE_REPLAYS
from gputop_llm.verdict.engine import ENGINE_LABELS
from gputop_llm.verdict.facts import by_cause, no_more_than, over_devices, share, span, us
from gputop_llm.verdict.launches import Launches, analyse

__all__ = ["Launches", "analyse", "findings"]

#: Idle in runs of launches is a finding from here on, and a severe one from there.
_WORTH_PCT = 5.0
_SEVERE_PCT = 25.0
_QUEUED_WORTH_PCT = 10.0
#: A queue delay that no submission takes: the work waited. Below so many launches a median says little.
_WAITS_NS = 50_000
_ENOUGH_LAUNCHES = 20
_BUSY_PCT = 90.0
#: Points by which node-level records may be wrong before a verdict on idle time is doubtful.
_DISTORTED_PCT = 5.0
#: Of idle time with work submitted, from here on "mostly".
_MOSTLY_PCT = 50.0


def findings(results: tuple[Launches, ...], context: Context) -> list[Finding]:
    """Launch-bound, or why not; idle time that the host had no part in. About the device that it costs most."""
    found = []
    if context.blind:
        return [_blind(context.blind)] if results else []
    if results:
        worst = max(results, key=lambda r: r.pct(r.run_ns))
        if worst.pct(worst.run_ns) >= _WORTH_PCT:
            found.append(_launch_bound(worst, results, context))
        elif note := _not_launch_bound(max(results, key=lambda r: r.delays), context):
            found.append(note)
        stuck = max(results, key=lambda r: r.pct(r.queued_ns))
        if stuck.pct(stuck.queued_ns) >= _QUEUED_WORTH_PCT:
            found.append(_queued(stuck, context))
    return found


def _launch_bound(result: Launches, results: tuple[Launches, ...], context: Context) -> Finding:
    idle_pct = result.pct(result.run_ns)
    covered = _coverage_of(result, context)
    error_pct = context.idle_error_pct(result.device)
    per_s = f"{result.calls_per_s:,.0f} launches/s" if result.calls_per_s else "launches"
    lines = host_lines.lines_of(context, result.device)
    headline = (
        f"Launch-bound: the GPU waits {share(idle_pct)} of the window for kernels launched one at a time "
        f"({per_s} of {span(result.call_mean_ns)}, {share(result.short_pct)} of kernels under 5 µs)"
    )
    return Finding(
        id="launch-bound",
        weight=Weight.SEVERE if idle_pct >= _SEVERE_PCT else Weight.FINDING,
        headline=headline,
        facts=(
            *context.busy_facts(covered),
            Fact(
                "idle in runs of launches",
                idle_pct,
                "%",
                "Σ gaps whose next launch returned after the gap began, "
                f"without a sync or allocation, up to {span(result.split_ns)} each ÷ window",
                f"{result.run_gaps:,} gaps",
                plus_minus=no_more_than(idle_pct, error_pct),
            ),
            *by_cause(result.run_causes, result.window_ns, "these gaps", f"{result.run_gaps:,} gaps", error_pct),
            *host_lines.facts(lines, context),
            *launch_facts(result),
            *over_devices(
                "idle in runs of launches",
                {context.device_label(r.device): r.pct(r.run_ns) for r in results},
                "%",
                "Σ such gaps ÷ window",
            ),
        ),
        cause=_cause(result, context) + host_lines.cause(lines),
        advice=_advice(result, context),
        recoverable_pct=idle_pct,
        recoverable_formula="idle ended by launches that came just in time and did not begin in a sync or allocation "
        "÷ window",
        confidence=_confidence(result, context),
        refuted_by="the same load without the profiler has much shorter steps: then the gaps are the profiler's; "
        "or CUDA graphs for these kernels leave the step time as it is",
        next_capture=_next_capture(result, context),
        subject=context.subject(result.device),
    )


def _cause(result: Launches, context: Context) -> str:
    kernels = f"kernels run {span(result.kernel_mean_ns)} on average"
    if result.cadence_ns is not None:
        kernels += f", the host launches one every {span(result.cadence_ns)} (median)"
    if result.mode == "eager":
        flag = f": {ENGINE_LABELS[context.engine]} runs so with {EAGER_FLAGS[context.engine]}" if context.engine else ""
        return f"no kernel came from a CUDA graph (eager mode{flag}); {kernels}"
    if result.mode is None:
        return f"how kernels are launched is not in the record; {kernels}"
    graphs = f"{share(result.graph_time_pct)} of the kernel time comes from {_graph_launches(result)}"
    alone = (result.calls - result.graph_calls) / max(1, result.graph_calls)
    return (
        f"{graphs}; between them kernels are launched one by one ({alone:.1f} for each replay), "
        "and the GPU is done with each before the next comes"
    )


def _advice(result: Launches, context: Context) -> tuple[Advice, ...]:
    if result.mode in ("graphs", "partly in graphs"):
        return (OVERLAP, LARGER_BATCHES, FEWER_LAUNCHES)
    return (CUDA_GRAPHS, LARGER_BATCHES) if context.engine else (CUDA_GRAPHS, CUDA_GRAPHS_IN_TORCH, LARGER_BATCHES)


def _confidence(result: Launches, context: Context) -> str:
    low_by = context.distortion.low_by_pct(_coverage_of(result, context).busy_pct) if context.distortion else 0.0
    if context.distortion and low_by >= _DISTORTED_PCT:
        return f"low: {context.distortion.text}"
    return _known(result)


def _known(result: Launches) -> str:
    if result.known_pct < 90:
        return f"medium: the launch of {share(100 - result.known_pct)} of the kernels is not in the record"
    return "high: the launch of each kernel is known" if result.known_pct > 99 else "high"


def _next_capture(result: Launches, context: Context) -> str:
    if context.distortion:
        return WHOLE_REPLAYS
    if result.mode == "eager":
        return "the same window with CUDA graphs on (nsys: --cuda-graph-trace=graph)"
    return "Kineto window with CPU operators, or py-spy on the submitting thread: what the host does between launches"


def kernel_facts(result: Launches) -> tuple[Fact, ...]:
    """How long a device's kernels are; nothing where there are none."""
    rows = f"{result.kernels:,} kernel rows"
    found = (
        us("kernel duration, mean", result.kernel_mean_ns, "mean of end − start", rows),
        Fact("kernels under 5 µs", result.short_pct, "%", "kernels with end − start < 5 µs ÷ kernels", rows),
    )
    return tuple(one for one in found if one.value is not None)


def launch_facts(result: Launches) -> tuple[Fact, ...]:
    """The figures of how a device's kernels were launched."""
    rows = f"{result.calls:,} launch calls"
    found = [
        Fact("launches", result.calls_per_s, "/s", "launch calls ÷ window", rows),
        us("host time for a launch, mean", result.call_mean_ns, "mean of end − start", rows),
        *kernel_facts(result),
        Fact(
            "kernel time from CUDA graphs",
            result.graph_time_pct,
            "%",
            "Σ duration of replays and their nodes ÷ Σ duration of kernels and replays (work, not latency)",
            f"{_graph_launches(result)}, {result.rows_by_graph:,} of their device rows",
        ),
    ]
    if result.cadence_ns is not None:
        found.insert(2, us("distance of launches, median", result.cadence_ns, "median of start-to-start", rows))
    if result.delay_ns is not None:
        low, middle, high = result.delay_ns
        text = f"p10 {span(low)}, p90 {span(high)}"
        delay = "median of (start of a launch's first device row − return of its call)"
        found.append(us("queue delay, median", middle, delay, f"{result.delays:,} launches with a known row", text))
    return tuple(one for one in found if one.value is not None)


def _not_launch_bound(result: Launches, context: Context) -> Finding | None:
    """The note that work waits for the device, where the record shows it."""
    covered = _coverage_of(result, context)
    if result.delay_ns is None:
        return None
    waits = result.delay_ns[1] >= _WAITS_NS and result.delays >= _ENOUGH_LAUNCHES
    if not waits and covered.busy_pct < _BUSY_PCT:
        return None
    if not waits and not result.rows_by_graph:
        return None
    said = f"launched work waits {span(result.delay_ns[1])} (median) for the device"
    if not waits:
        rows = sum(covered.counts.values())
        said = f"{result.rows_by_graph:,} of {rows:,} device rows come from {_graph_launches(result)}"
    return Finding(
        id="not-launch-bound",
        weight=Weight.NOTE,
        headline=f"Not launch-bound: {said}; the GPU is busy {share(covered.busy_pct)} of the window",
        facts=(*context.busy_facts(covered), *launch_facts(result)),
        cause="the host is ahead of the device: launches queue up behind the work that runs",
        advice=(),
        recoverable_pct=0.0,
        recoverable_formula="launching faster gives nothing while work waits for the device",
        confidence=_known(result),
        refuted_by="a queue delay near 0 with gaps before each kernel",
        subject=context.subject(result.device),
    )


def _queued(result: Launches, context: Context) -> Finding:
    idle_pct = result.pct(result.queued_ns)
    covered = _coverage_of(result, context)
    graph_pct = 100.0 * result.queued_graph_ns / result.queued_ns
    in_graphs = graph_pct >= _MOSTLY_PCT
    cause = "the work waits on something that is no host call: another stream, an event, another rank"
    if in_graphs:
        cause = (
            f"{share(graph_pct)} of it lies before or between the nodes of graph replays that were already launched: "
            "nodes that the recorder lost or stretched, more likely than an idle device"
        )
    return Finding(
        id="idle-though-submitted",
        weight=Weight.FINDING,
        headline=f"No recorded GPU work in {share(idle_pct)} of the window though the next work was already submitted"
        + (" (mostly inside graph replays)" if in_graphs else ""),
        facts=(
            *context.busy_facts(covered),
            Fact(
                "idle with work submitted", idle_pct, "%", "Σ gaps that began after the next launch returned ÷ window"
            ),
            Fact(
                "of it with the host waiting for the device",
                100.0 * result.queued_waited_ns / result.queued_ns,
                "%",
                "overlap of these gaps with synchronising calls ÷ Σ these gaps",
            ),
            Fact("of it at graph replays", graph_pct, "%", "such gaps whose next row is a graph's ÷ all such gaps"),
            *launch_facts(result),
        ),
        cause=cause,
        advice=(),
        recoverable_pct=None,
        recoverable_formula="can't be told: the record doesn't show what the device waited for, or whether it did",
        confidence="low: the host is ruled out, the device's own reason is not recorded",
        refuted_by="a record of whole replays in which the device is busy during these gaps",
        next_capture=WHOLE_REPLAYS,
        subject=context.subject(result.device),
        concerns_pct=idle_pct,
    )


def _blind(blind: Blind) -> Finding:
    return Finding(
        id=blind.id,
        weight=Weight.SEVERE,
        headline=f"Idle time can't be judged: {blind.reason}",
        facts=(),
        cause=blind.cause,
        advice=(Advice(blind.remedy),),
        recoverable_pct=None,
        recoverable_formula="can't be told from this record",
        confidence="high: these are counts of rows",
        refuted_by="a record that is free of this in which the GPU is as idle as here",
        next_capture=f"the same window: {blind.remedy}",
    )


def _graph_launches(result: Launches) -> str:
    return f"{result.by_graph_launches:,} graph launch{'' if result.by_graph_launches == 1 else 'es'}"


def _coverage_of(result: Launches, context: Context) -> DeviceCoverage:
    return next(c for c in context.coverage if c.device == result.device)
