"""The verdict on a window that has only sampled counters of the GPUs: SM active, DRAM, gaps.

No kernel is known from it, so it tells how much a GPU works and where it pauses, never why.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline.model import GpuMetrics, Timeline

#: A sample below this is idle: counters of a GPU at rest read 0, and what is rounded up 1.
IDLE_BELOW_PCT = 1.0
#: A pause is at least so many samples long; one alone may be the edge between two.
_GAP_SAMPLES = 2
_FEWEST_SAMPLES = 200
_WORTH_PCT = 10.0
#: Of DRAM's peak; decode that streams weights reaches it and can't go faster on this GPU.
_MEMORY_BOUND_PCT = 60.0
_LOW_SM_PCT = 30.0
_SCOPE = "counters say how much a GPU works, not which kernel or why it pauses: that needs a native or nsys window"


@dataclass(frozen=True, slots=True)
class _Sampled:
    """One GPU's figures; means are over time, `working` over samples that are not idle. None: not sampled."""

    gpu: int
    samples: int
    step_us: float
    sm_pct: float
    sm_working_pct: float | None
    idle_pct: float
    gaps: int
    longest_ms: float
    dram_pct: float | None
    dram_working_pct: float | None
    tensor_pct: float | None


def judge_metrics(timeline: Timeline) -> Verdict:
    """The verdict on `timeline.gpu_metrics`, of which there is at least one."""
    capture = {
        "format": timeline.origin.format,
        "files": [printable(name) for name in timeline.origin.files],
        "tool": printable(timeline.origin.tool) if timeline.origin.tool else None,
        "window_from": timeline.origin.window_from,
        "window_ms": timeline.window_ns / 1e6,
    }
    found = [_sampled(one) for one in timeline.gpu_metrics]
    notes = (_SCOPE, *map(printable, timeline.origin.warnings))
    few = max(one.samples for one in found)
    if few < _FEWEST_SAMPLES:
        headline = f"can't judge: only {few} samples of the GPU's counters; take a longer window"
        return Verdict(False, headline, notes=notes, capture=capture)
    findings = tuple(sorted((_idle(one) for one in found if one.idle_pct >= _WORTH_PCT), key=_by_share))
    return Verdict(
        judged=True,
        headline=findings[0].headline if findings else _healthy(found),
        findings=findings,
        tables={"gpu_metrics": tuple(_row(one) for one in found)},
        facts=tuple(fact for one in found for fact in _facts(one)),
        notes=notes,
        healthy=not findings,
        capture=capture,
    )


def _sampled(metrics: GpuMetrics) -> _Sampled:
    at, sm = metrics.series["sm_active"]
    step = float(np.median(np.diff(at))) if len(at) > 1 else 0.0
    idle = sm < IDLE_BELOW_PCT
    edges = np.flatnonzero(np.diff(np.concatenate(([0], idle.astype(np.int8), [0]))))
    runs = edges[1::2] - edges[::2]
    runs = runs[runs >= _GAP_SAMPLES]
    dram = _dram(metrics, at)
    tensor = metrics.series.get("tensor_active")
    return _Sampled(
        metrics.gpu,
        len(sm),
        step / 1e3,
        _mean(sm) or 0.0,
        _mean(sm[~idle]),
        100.0 * float(runs.sum()) / max(1, len(sm)),
        len(runs),
        float(runs.max(initial=0)) * step / 1e6,
        None if dram is None else _mean(dram),
        None if dram is None else _mean(dram[~idle]),
        None if tensor is None else _mean(tensor[1]),
    )


def _dram(metrics: GpuMetrics, at: np.ndarray) -> np.ndarray | None:
    """Read and written together at each sample, % of the peak; None where both weren't sampled at the same moments."""
    total = np.zeros(len(at))
    for name in ("dram_read", "dram_write"):
        series = metrics.series.get(name)
        if series is None or not np.array_equal(series[0], at):
            return None
        total += series[1]
    return total


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if len(values) else None


def _idle(one: _Sampled) -> Finding:
    return Finding(
        id="gpu-pauses",
        weight=Weight.FINDING,
        headline=f"GPU {one.gpu} pauses for {one.idle_pct:.0f} % of the window, in {one.gaps:,} gaps of up to "
        f"{one.longest_ms:.1f} ms",
        facts=_facts(one),
        cause="no SM has work in these samples: the host launches too late, requests are missing, or another GPU is "
        "waited for",
        advice=(Advice("take a native or nsys window: its idle gaps name the host call before each"),),
        recoverable_pct=one.idle_pct,
        recoverable_formula="samples in gaps ÷ all samples",
        confidence=f"high: {one.samples:,} samples, one every {one.step_us:.0f} µs; shorter gaps are not seen",
        refuted_by="another process on this GPU, or a load without enough requests to keep it busy",
        next_capture="native",
        subject=f"GPU {one.gpu}",
    )


def _healthy(found: list[_Sampled]) -> str:
    worst = max(found, key=lambda one: one.idle_pct)
    dram = max((one.dram_working_pct for one in found if one.dram_working_pct is not None), default=None)
    if dram is not None and dram >= _MEMORY_BOUND_PCT:
        return (
            f"healthy, bound by memory: DRAM at {dram:.0f} % of its peak, pauses {worst.idle_pct:.0f} % of the window"
        )
    low = [one for one in found if one.sm_working_pct is not None and one.sm_working_pct < _LOW_SM_PCT]
    if low:
        return (
            f"no pauses, and GPU {low[0].gpu} uses {low[0].sm_working_pct:.0f} % of its SMs while it works: the "
            "batch is small for this GPU, or kernels are short"
        )
    return f"healthy: pauses {worst.idle_pct:.0f} % of the window"


def _facts(one: _Sampled) -> tuple[Fact, ...]:
    rows = f"{one.samples:,} samples"
    formula = "mean over samples"
    facts = [
        Fact(f"GPU {one.gpu} SM active", one.sm_pct, "%", formula, rows),
        Fact(f"GPU {one.gpu} in pauses", one.idle_pct, "%", f"SM active < {IDLE_BELOW_PCT:.0f} % twice or more", rows),
        Fact(f"GPU {one.gpu} longest pause", one.longest_ms, "ms", "", rows, plus_minus=2 * one.step_us / 1e3),
    ]
    if one.dram_pct is not None:
        facts.append(Fact(f"GPU {one.gpu} DRAM", one.dram_pct, "%", "mean of read + write, of peak", rows))
    return tuple(facts)


def _row(one: _Sampled) -> dict[str, object]:
    return {
        "gpu": one.gpu,
        "samples": one.samples,
        "step_us": one.step_us,
        "sm_active_pct": one.sm_pct,
        "sm_active_working_pct": one.sm_working_pct,
        "paused_pct": one.idle_pct,
        "pauses": one.gaps,
        "longest_pause_ms": one.longest_ms,
        "dram_pct": one.dram_pct,
        "dram_working_pct": one.dram_working_pct,
        "tensor_active_pct": one.tensor_pct,
    }


def _by_share(finding: Finding) -> float:
    return -(finding.recoverable_pct or 0.0)
