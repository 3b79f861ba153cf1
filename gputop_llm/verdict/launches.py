"""How the kernels of each device were launched, and the idle time that launching cost.

The queue delay of a launch is the start of its first device row minus the moment its call returned. Around 0 the device
had run dry and took the work at once; far above 0 the work waited for the device. For a graph replay only the first row
of a launch counts, and a row whose launch is not in the record claims nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline.intervals import overlap_with, union
from gputop_llm.timeline.model import I32, I64, Kind
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals, Mask
from gputop_llm.verdict.grouped import from_graphs
from gputop_llm.verdict.idle import Began

#: Kernels below it are shorter than a launch costs on any host.
SHORT_KERNEL_NS = 5_000
#: A gap within a run of launches is at most this many times the usual distance of two launches; in a longer one the
#: host did something else than launching.
_RUN = 10
_RUN_BOUNDS_NS = (100_000, 1_000_000)
_MOSTLY = 0.5
#: From this share of compute rows with a known launch on it can be told how kernels are launched.
_KNOWN_ENOUGH = 0.1


@dataclass(frozen=True)
class Launches:
    """How one device's kernels were launched, and what that cost it.

    `calls` are launch calls of this device in the window (`graph_calls` of graphs), `call_mean_ns` their mean time on
    the host, `cadence_ns` the median distance of two of them on a thread. `known_pct` is the share of compute rows
    with a known launch. `graph_time_pct` is the share of the compute work that came from graph replays,
    `rows_by_graph` the rows of `by_graph_launches` launches (`replays` recorded whole, the rest node by node);
    `mode` "eager", "graphs", "partly in graphs" or None where it can't be told. `delay_ns` holds the queue delay's
    p10, p50, p90 over `delays` launches.

    Idle time that the host caused by being late, without a sync or allocation before: `run_ns` in gaps of a run of
    launches, `break_ns` in longer ones (above `split_ns`), each by cause. `queued_ns` is idle time with the next work
    already submitted: `queued_graph_ns` of it before or inside of graph replays, `queued_waited_ns` with the host
    waiting in a synchronising call meanwhile.
    """

    device: int
    window_ns: int
    calls: int
    graph_calls: int
    call_mean_ns: float | None
    cadence_ns: float | None
    kernels: int
    kernel_mean_ns: float | None
    short_pct: float | None
    known_pct: float
    rows_by_graph: int
    by_graph_launches: int
    replays: int
    graph_time_pct: float | None
    mode: str | None
    delays: int
    delay_ns: tuple[float, float, float] | None
    waited_for: int
    split_ns: int
    run_ns: int
    run_gaps: int
    run_causes: dict[Cause, int]
    break_ns: int
    break_gaps: int
    break_causes: dict[Cause, int]
    queued_ns: int
    queued_graph_ns: int
    queued_waited_ns: int

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0

    @property
    def calls_per_s(self) -> float | None:
        """Launch calls for each second of the window; None where no launch is known."""
        return self.calls * 1e9 / self.window_ns if self.calls and self.window_ns else None


def analyse(context: Context) -> tuple[Launches, ...]:
    """One entry for each device with activity."""
    return tuple(_of_device(context, covered) for covered in context.coverage)


def _of_device(context: Context, covered: DeviceCoverage) -> Launches:
    timeline, use = context.timeline, context.uses
    ops, calls = timeline.ops, timeline.calls
    own = (ops.device == covered.device) & (ops.end > timeline.start) & (ops.start < timeline.end)
    kernels = own & (ops.kind == Kind.KERNEL)
    duration = (ops.end - ops.start)[kernels]
    first, launch = _launch_calls(context, covered.device)
    delay = ops.start[first] - calls.end[launch]
    in_window = launch[(calls.start[launch] >= timeline.start) & (calls.start[launch] < timeline.end)]
    call_time = calls.end[in_window] - calls.start[in_window]
    cadence = _cadence(calls.start[in_window], calls.thread[in_window])
    by_graph = own & (ops.kind == Kind.GRAPH)
    replays = int(by_graph.sum())
    compute = kernels | by_graph
    from_graph = own & from_graphs(ops, use)
    known = compute & ((ops.launch >= 0) | from_graph)
    known_share = float(known.sum() / compute.sum()) if compute.any() else 0.0
    graph_share = _share(ops.end - ops.start, compute & from_graph, compute)
    low, high = _RUN_BOUNDS_NS
    split = int(min(high, max(low, _RUN * cadence))) if cadence is not None else high
    idle = context.idle[covered.device]
    gaps = idle.gaps
    dry = gaps.began == Began.DRY
    run, breaks = dry & (gaps.length <= split), dry & (gaps.length > split)
    queued = gaps.began == Began.QUEUED
    queued_graph = queued & from_graph[np.maximum(gaps.next_op, 0)]
    return Launches(
        device=covered.device,
        window_ns=covered.window_ns,
        calls=len(in_window),
        graph_calls=int((use[in_window] == Api.GRAPH_LAUNCH).sum()),
        call_mean_ns=float(call_time.mean()) if len(call_time) else None,
        cadence_ns=cadence,
        kernels=len(duration),
        kernel_mean_ns=float(duration.mean()) if len(duration) else None,
        short_pct=100.0 * float((duration < SHORT_KERNEL_NS).mean()) if len(duration) else None,
        known_pct=100.0 * known_share,
        rows_by_graph=int(from_graph.sum()),
        by_graph_launches=int((use[launch] == Api.GRAPH_LAUNCH).sum()),
        replays=replays,
        graph_time_pct=None if known_share < _KNOWN_ENOUGH else 100.0 * graph_share,
        mode=_mode(known_share, graph_share, context),
        delays=len(delay),
        delay_ns=_quantiles(delay),
        waited_for=int(dry.sum()),
        split_ns=split,
        run_ns=int(gaps.length[run].sum()),
        run_gaps=int(run.sum()),
        run_causes=gaps.by_cause.total(run),
        break_ns=int(gaps.length[breaks].sum()),
        break_gaps=int(breaks.sum()),
        break_causes=gaps.by_cause.total(breaks),
        queued_ns=idle.began_ns[Began.QUEUED],
        queued_graph_ns=int(gaps.length[queued_graph].sum()),
        queued_waited_ns=_waited_in(context, covered.device, (gaps.start[queued], gaps.end[queued])),
    )


def _waited_in(context: Context, device: int, times: Intervals) -> int:
    """How long a thread that launches onto the device was blocked in a synchronising call during some time."""
    calls, use = context.timeline.calls, context.uses
    waits = (use == Api.SYNC) | (use == Api.BLOCKING_COPY)
    waits &= np.isin(calls.thread, context.submitters[device])
    return int(overlap_with(*union(calls.start[waits], calls.end[waits]), times).sum())


def _launch_calls(context: Context, device: int) -> tuple[I64, I64]:
    """The first device row of each launch of a kernel or graph onto this device, and the row of that launch."""
    use, first = context.uses, context.first_op
    launch = np.flatnonzero(((use == Api.LAUNCH) | (use == Api.GRAPH_LAUNCH)) & (first >= 0))
    rows = first[launch]
    here = context.timeline.ops.device[rows] == device
    return rows[here], launch[here]


def _cadence(start: I64, thread: I32) -> float | None:
    """The median distance between launches of one thread (ns)."""
    same = thread[1:] == thread[:-1]
    distance = (start[1:] - start[:-1])[same]
    return float(np.median(distance)) if len(distance) else None


def _share(duration: I64, part: Mask, whole: Mask) -> float:
    total = int(duration[whole].sum())
    return int(duration[part].sum()) / total if total else 0.0


def _mode(known_share: float, graph_share: float, context: Context) -> str | None:
    if context.unseen_replays:
        return "graphs"
    if known_share < _KNOWN_ENOUGH:
        return None
    if graph_share >= _MOSTLY:
        return "graphs"
    return "partly in graphs" if graph_share > 0 else "eager"


def _quantiles(values: I64) -> tuple[float, float, float] | None:
    if not len(values):
        return None
    low, middle, high = np.percentile(values, (10, 50, 90))
    return float(low), float(middle), float(high)
