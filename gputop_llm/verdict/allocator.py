"""Allocator calls in the hot path: memory taken from or given back to the driver in each step, after warm-up.

An engine allocates at start; a call now and then afterwards is no finding. It is one when the calls keep coming between
launches, and cost the device something.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.model import I64
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import ms, no_more_than, share, span, us
from gputop_llm.verdict.idle import Began

#: The first and last tenth of the launches are warm-up and shutdown.
_EDGE = 0.1
#: The rest is cut into so many parts with equally many launches; calls in at least so many of them keep coming.
_PARTS = 10
_RECURRING = 3
_ENOUGH_LAUNCHES = 20
_WORTH_PCT = 1.0
_SEVERE_PCT = 25.0


@dataclass(frozen=True, slots=True)
class AllocatorCall:
    """One allocator API: its calls in the hot path and their time on the host."""

    name: str
    calls: int
    total_ns: int


@dataclass(frozen=True)
class Allocations:
    """Allocator calls by the threads that launch onto one device.

    `calls` are those in the hot path (between its launches, warm-up left out), in `parts` of ten parts of it; `outside`
    are the others. `per_1000_launches` relates them to the launches there. `idle_ns` is what the device lost in the hot
    path (in the whole window, if they come in all parts): gaps that began in such a call or in its wake, and time in
    such calls within other gaps.
    """

    device: int
    window_ns: int
    calls: int
    outside: int
    parts: int
    per_1000_launches: float | None
    host_ns: int
    idle_ns: int
    by_api: tuple[AllocatorCall, ...]

    @property
    def recurring(self) -> bool:
        """Whether they keep coming."""
        return self.parts >= _RECURRING

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0


def analyse(context: Context) -> tuple[Allocations, ...]:
    """One entry for each device with activity."""
    return tuple(_of_device(context, covered) for covered in context.coverage)


def _of_device(context: Context, covered: DeviceCoverage) -> Allocations:
    calls, use = context.timeline.calls, context.uses
    of_threads = np.isin(calls.thread, context.submitters[covered.device])
    rows = np.flatnonzero(of_threads & ((use == Api.ALLOC) | (use == Api.ASYNC_ALLOC)))
    launches = np.flatnonzero(of_threads & ((use == Api.LAUNCH) | (use == Api.GRAPH_LAUNCH)))
    edge = int(_EDGE * len(launches))
    middle = launches[edge : len(launches) - edge]
    hot = np.empty(0, dtype=np.int64)
    place = np.empty(0, dtype=np.int64)
    idle_ns = 0
    if len(middle) >= _ENOUGH_LAUNCHES:
        hot = rows[(rows > middle[0]) & (rows < middle[-1])]
        place = np.searchsorted(middle, hot) * _PARTS // len(middle)
        everywhere = len(np.unique(place)) == _PARTS
        # Where they never stop, the edges are no warm-up.
        low, high = (launches[0], launches[-1]) if everywhere else (middle[0], middle[-1])
        idle_ns = _idle(context, covered, int(calls.start[low]), int(calls.start[high]))
    return Allocations(
        device=covered.device,
        window_ns=covered.window_ns,
        calls=len(hot),
        outside=len(rows) - len(hot),
        parts=len(np.unique(place)),
        per_1000_launches=1000.0 * len(hot) / len(middle) if len(hot) else None,
        host_ns=int((calls.end[hot] - calls.start[hot]).sum()),
        idle_ns=idle_ns,
        by_api=_by_api(context, hot),
    )


def _idle(context: Context, covered: DeviceCoverage, low: int, high: int) -> int:
    gaps = context.idle[covered.device].gaps
    within = (gaps.start >= low) & (gaps.start < high)
    begun = within & np.isin(gaps.began, (Began.ALLOC, Began.AFTER_ALLOC))
    return int(gaps.length[begun].sum() + gaps.by_cause.total(within & ~begun)[Cause.ALLOC])


def _by_api(context: Context, rows: I64) -> tuple[AllocatorCall, ...]:
    calls = context.timeline.calls
    found = []
    for name_id in np.unique(calls.name_id[rows]):
        own = rows[calls.name_id[rows] == name_id]
        name = printable(context.timeline.name(int(name_id)), 80)
        found.append(AllocatorCall(name, len(own), int((calls.end[own] - calls.start[own]).sum())))
    return tuple(sorted(found, key=lambda call: -call.total_ns))


def findings(results: tuple[Allocations, ...], context: Context) -> list[Finding]:
    """Allocator calls in the hot path, of the device that they cost most."""
    recurring = [r for r in results if r.recurring]
    if not recurring or context.blind:
        return []
    worst = max(recurring, key=lambda r: r.pct(r.idle_ns))
    pct = worst.pct(worst.idle_ns)
    if pct < _WORTH_PCT:
        return []
    names = [call.name for call in worst.by_api]
    rows = f"{worst.calls:,} calls"
    return [
        Finding(
            id="allocator-in-hot-path",
            weight=Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
            headline=f"Allocator in the hot path: {share(pct)} of the window the GPU waits because of {names[0]} "
            f"({worst.calls:,} calls, {worst.per_1000_launches:.0f} for 1,000 launches)",
            facts=(
                Fact(
                    "idle in or after allocator calls",
                    pct,
                    "%",
                    "(Σ gaps that began in one or in its wake + time in them within other gaps) ÷ window",
                    rows,
                    plus_minus=no_more_than(pct, context.idle_error_pct(worst.device)),
                ),
                ms("host time in allocator calls", worst.host_ns, "Σ (end − start)", rows),
                *(
                    us(f"{call.name}, mean", call.total_ns / call.calls, "mean of end − start", f"{call.calls:,} calls")
                    for call in worst.by_api[:4]
                ),
                Fact("allocator calls", worst.per_1000_launches, "/1000 launches", "calls ÷ launches · 1000", rows),
            ),
            cause=f"memory comes from the driver in each step ({span(worst.host_ns)} of host time): "
            + (
                "freeing waits for the device"
                if any("Free" in name for name in names)
                else "a cache that is too small, or memory that is taken outside of the framework's allocator"
            ),
            advice=_advice(names),
            recoverable_pct=pct,
            recoverable_formula="(idle that began in an allocator call, or after it until the host has caught up the "
            "time that it took, + time in them within other gaps) ÷ window",
            confidence="high" if worst.parts >= 2 * _RECURRING else f"medium: in {worst.parts} of {_PARTS} parts only",
            refuted_by="the calls stop after warm-up in a longer window",
            next_capture="a window some minutes later: do the calls go on?",
            subject=context.subject(worst.device),
        )
    ]


def _advice(names: list[str]) -> tuple[Advice, ...]:
    found = []
    if any("Host" in name for name in names):
        found.append(Advice("keep pinned buffers and use them again: pinning memory takes the driver's lock each time"))
    if any("Async" in name or "Pool" in name for name in names):
        found.append(Advice("raise the memory pool's release threshold, so that freed memory stays in it"))
    if any("Host" not in name and "Async" not in name for name in names):
        found.append(
            Advice(
                "let the framework's caching allocator keep the memory: less of the GPU's memory for the KV cache, "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments, no empty_cache() in a step",
                {
                    "vllm": "--gpu-memory-utilization (down)",
                    "sglang": "--mem-fraction-static (down)",
                    "trtllm": "kv_cache_config.free_gpu_memory_fraction (down)",
                },
            )
        )
    return tuple(found)
