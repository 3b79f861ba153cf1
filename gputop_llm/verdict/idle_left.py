"""Idle time that no other finding speaks of: said with its gaps and what the host did, so that it is never silent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gputop_llm.model.finding import Finding, Weight
from gputop_llm.verdict import host_lines
from gputop_llm.verdict.causes import CAUSE_LABELS, Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import by_cause, over_devices, share, span
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.idle_elsewhere import pct_of
from gputop_llm.verdict.launch import launch_facts
from gputop_llm.verdict.launches import Launches

#: Idle time without a finding is worth one from this share of the window on.
WORTH_PCT = 10.0
#: Findings whose `recoverable_pct` is idle time of a device.
_OF_IDLE = frozenset(("launch-bound", "host-bound", "sync-bound", "allocator-in-hot-path"))
#: Findings that say that idle time is not what it looks like.
_NOT_IDLE = frozenset(("idle-though-submitted",))
#: A queue delay below this is no waiting: the launch came when the device was already dry.
_JUST_IN_TIME_NS = 20_000


def findings(context: Context, launches: Sequence[Launches], found: Sequence[Finding]) -> list[Finding]:
    """The idle time of the idlest device that the findings in `found` leave unexplained; nothing if that is little."""
    if not context.coverage or context.blind or any(f.id in _NOT_IDLE for f in found):
        return []
    covered = min(context.coverage, key=lambda c: c.busy_pct)
    idle_pct = 100.0 - covered.busy_pct
    explained = sum(f.recoverable_pct or 0.0 for f in found if f.id in _OF_IDLE)
    left_pct = idle_pct - explained - sum(pct_of(context, covered, way) for way in (Began.RANK, Began.NO_REQUEST))
    if left_pct < WORTH_PCT:
        return []
    return [_finding(context, covered, left_pct, next((one for one in launches if one.device == covered.device), None))]


def _finding(context: Context, covered: DeviceCoverage, left_pct: float, launched: Launches | None) -> Finding:
    idle = context.idle[covered.device]
    gaps = idle.gaps.length
    main = max(idle.total_ns, key=lambda cause: idle.total_ns[cause])
    rows = f"{len(gaps):,} gap{'' if len(gaps) == 1 else 's'}"
    each = f"median {span(float(np.median(gaps)))}, longest {span(float(gaps.max()))}"
    unknown = idle.began_ns[Began.UNKNOWN] > 0.5 * idle.idle_ns
    lines = host_lines.lines_of(context, covered.device)
    return Finding(
        id="gpu-idle",
        weight=Weight.FINDING,
        headline=f"{context.device_label(covered.device)} idle {share(100.0 - covered.busy_pct)} of the window "
        f"in {rows} ({each}): {_why(main, unknown, launched)}",
        facts=(
            *context.busy_facts(covered),
            *by_cause(idle.total_ns, covered.window_ns, "all gaps", rows, context.idle_error_pct(covered.device)),
            *host_lines.facts(lines, context),
            *(launch_facts(launched) if launched is not None and launched.calls else ()),
            *over_devices(
                "GPU busy",
                {context.device_label(c.device): c.busy_pct for c in context.coverage},
                "%",
                "|∪ device activity| ÷ window",
            ),
        ),
        cause="the record doesn't tell which host call issued the work after these gaps"
        if unknown
        else f"most of it: {CAUSE_LABELS[main]}{host_lines.cause(lines)}",
        advice=(),
        recoverable_pct=left_pct,
        recoverable_formula="(window − |∪ device activity|) ÷ window, less what other findings explain",
        confidence="medium: the gaps are sure, their cause is only partly recorded",
        refuted_by="no work was there to do in these gaps: then the load is the limit",
        next_capture="a window with CUDA API calls and OS waits (nsys: --trace=cuda,nvtx,osrt)",
        subject=context.subject(covered.device),
    )


def _why(main: Cause, unknown: bool, launched: Launches | None) -> str:
    if unknown:
        return "launches are not in the record, so the cause can't be told"
    if launched is not None and launched.delay_ns is not None and launched.delay_ns[1] < _JUST_IN_TIME_NS:
        return f"each launch comes just in time (queue delay {span(launched.delay_ns[1])}, median), the host is late"
    return CAUSE_LABELS[main]
