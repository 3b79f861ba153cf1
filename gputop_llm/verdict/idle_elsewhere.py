"""Idle time that this device's host can't help: it waits for another rank, or no request is in flight."""

from __future__ import annotations

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Finding, Weight
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import by_cause, ms, over_devices, share, span
from gputop_llm.verdict.idle import Began

_WORTH_PCT = 3.0
_SEVERE_PCT = 25.0
_ELSEWHERE = (Began.RANK, Began.NO_REQUEST)


def pct_of(context: Context, covered: DeviceCoverage, way: Began) -> float:
    """The gaps of a device that are of such a wait, as a share of the window."""
    return 100.0 * context.idle[covered.device].began_ns[way] / covered.window_ns if covered.window_ns else 0.0


def findings(context: Context) -> list[Finding]:
    """One finding for each kind of wait, about the device that it takes most of."""
    if context.blind or not context.coverage:
        return []
    found = []
    for way in _ELSEWHERE:
        worst = max(context.coverage, key=lambda covered: pct_of(context, covered, way))
        if pct_of(context, worst, way) >= _WORTH_PCT:
            found.append(_rank(context, worst) if way is Began.RANK else _no_request(context, worst))
    return found


def _rank(context: Context, covered: DeviceCoverage) -> Finding:
    pct = pct_of(context, covered, Began.RANK)
    gaps = context.idle[covered.device].gaps
    chosen = gaps.began == Began.RANK
    lengths, rows = gaps.length[chosen], f"{int(chosen.sum()):,} gaps"
    label = context.device_label(covered.device)
    error_pct = context.idle_error_pct(covered.device)
    return Finding(
        id="rank-wait",
        weight=Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
        headline=f"{label} idle for {share(pct)} of the window because another rank isn't there yet "
        f"({rows}, median {span(float(np.median(lengths)))})",
        facts=(
            ms("idle, waiting for another rank", int(lengths.sum()), "Σ gaps of which most is that wait", rows),
            *by_cause(gaps.by_cause.total(chosen), covered.window_ns, "these gaps", rows, error_pct),
            *over_devices(
                "waiting for another rank",
                {context.device_label(c.device): pct_of(context, c, Began.RANK) for c in context.coverage},
                "%",
                "Σ gaps of which most is that wait ÷ window",
            ),
        ),
        cause="its host is inside a collective that blocks it, waits for input while another rank works, or has "
        "submitted a collective that does not begin although the device is free",
        advice=(
            Advice(
                "look at the rank that comes last: its idle causes, its clocks and throttling, the load of its host"
            ),
        ),
        recoverable_pct=pct,
        recoverable_formula="Σ gaps of which most is waiting for another rank ÷ window: if no rank came late",
        confidence="medium: which rank is waited for shows only where all were captured",
        refuted_by="the other ranks, captured at the same time, are as idle in these gaps",
        next_capture="a window of all ranks at once",
        subject=context.subject(covered.device),
    )


def _no_request(context: Context, covered: DeviceCoverage) -> Finding:
    pct = pct_of(context, covered, Began.NO_REQUEST)
    gaps = context.idle[covered.device].gaps
    chosen = gaps.began == Began.NO_REQUEST
    lengths, rows = gaps.length[chosen], f"{int(chosen.sum()):,} gaps"
    error_pct = context.idle_error_pct(covered.device)
    return Finding(
        id="no-request-in-flight",
        weight=Weight.NOTE,
        headline=f"{context.device_label(covered.device)} has nothing to do for {share(pct)} of the window: no request "
        f"was in flight (longest {span(int(lengths.max()))})",
        facts=(
            ms("idle, no request in flight", int(lengths.sum()), "Σ gaps of which most is that time", rows),
            *by_cause(gaps.by_cause.total(chosen), covered.window_ns, "these gaps", rows, error_pct),
        ),
        cause="the engine waits for requests: the load is the limit, or what brings the requests to the engine is",
        advice=(),
        recoverable_pct=None,
        recoverable_formula="none: no tuning of the engine fills it, only load does",
        confidence="high" if context.no_request_known else "medium: nothing that was recorded moves in these gaps",
        refuted_by="requests that waited in the engine's queue in these gaps",
        next_capture="the same window under load",
        subject=context.subject(covered.device),
    )
