"""From a timeline to its verdict: ranks what the analyses found, and says whether anything is worth fixing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.model.pace import EnginePace
from gputop_llm.printable import printable
from gputop_llm.timeline.model import Timeline
from gputop_llm.verdict import capture_cost
from gputop_llm.verdict.analyses import Analysed, analysed
from gputop_llm.verdict.blind import CLOCKS_DISAGREE
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.engine import ENGINE_LABELS
from gputop_llm.verdict.facts import over_devices, share
from gputop_llm.verdict.gpu_metrics import judge_metrics
from gputop_llm.verdict.kernel_names import Family
from gputop_llm.verdict.launch import kernel_facts
from gputop_llm.verdict.refusal import BUSY_PCT, SHORTEST_NS, refusal

#: A capture is healthy when no finding could give back this share of the window.
HEALTHY_BELOW_PCT = 10.0
#: What no analysis can see from one capture.
SCOPE = (
    "holds for the load, shapes, versions and GPU of this capture only: after a change of any of them, capture again"
)
_MISSING_LABELS = {
    "cpu_ops": "framework operators",
    "ranges": "annotated ranges",
    "os_waits": "OS waits",
    "launches": "launches",
    "calls": "API calls",
    "device_names": "names of the GPUs",
    "streams": "streams",
    "graph_replays": "graph replays",
    "graph_nodes": "which kernels belong to a graph's replay",
}
#: Fewer steps are judged by the time that they took, but say nothing of how steps vary.
_ENOUGH_STEPS = 10
#: Families with this part of the longest one's time are named beside it.
_ABOUT_EQUAL = 0.9
#: The findings that hold of a capture that can't be judged.
_HOLD = frozenset(("replays-not-recorded", "kernels-not-recorded", CLOCKS_DISAGREE, capture_cost.NOT_RECOVERED))
_TOLD_DIAGNOSTICS = ("error", "warning")
_MOST_DIAGNOSTICS = 5


def judge(
    timeline: Timeline,
    context: Context | None = None,
    pace: EnginePace | None = None,
    progress: Callable[[float], None] | None = None,
) -> Verdict:
    """The verdict on a capture: findings by what fixing them could give, or that it is healthy, or can't be judged.

    A `context` of the timeline keeps what was worked out for whoever draws it afterwards. `pace` is what the engine
    said while it was captured: it tells what that cost, and whether requests ran throughout. `progress` gets the share
    of the analyses that is done, 0 to 1; what it raises ends them.
    """
    if timeline.gpu_metrics and not len(timeline.ops):
        return judge_metrics(timeline)
    context = context or Context(timeline)
    done = analysed(context, progress, pace)
    ranked = tuple(sorted((*done.findings, *capture_cost.findings(context, pace)), key=_rank))
    refused = refusal(context)
    worth = [finding for finding in ranked if _worth(finding)]
    if refused:
        # What the record lacks is known; a cause read from it would be a guess.
        ranked = tuple(finding for finding in ranked if finding.id in _HOLD)
    healthy = None if refused else not worth
    return Verdict(
        judged=refused is None,
        headline=refused or (worth[0].headline if worth else _healthy(context, done)),
        findings=ranked,
        tables=done.tables,
        facts=_facts(context, done, refused is not None),
        notes=_notes(context, done, refused is not None),
        healthy=healthy,
        capture=_capture(context),
    )


def _worth(finding: Finding) -> bool:
    """Whether a capture with this finding is not healthy: it could give enough, or how much can't be told."""
    # Clocks that disagree cost nothing: where they matter the capture is refused.
    if finding.weight is Weight.NOTE or finding.of != "window" or finding.id == CLOCKS_DISAGREE:
        return False
    return finding.recoverable_pct is None or finding.recoverable_pct >= HEALTHY_BELOW_PCT


def _rank(finding: Finding) -> tuple[int, float]:
    """What could give most of the window comes first; then parts of kernels; notes last."""
    pct = finding.recoverable_pct
    if finding.weight is Weight.NOTE:
        return 2, -(pct or 0.0)
    if finding.of != "window":
        return 1, -(pct or 0.0)
    # What nothing is known of may be all.
    largest = 100.0 if finding.concerns_pct is None else finding.concerns_pct
    return 0, -(largest if pct is None else pct)


def _healthy(context: Context, done: Analysed) -> str:
    busy = [covered.busy_pct for covered in context.coverage]
    low, high = min(busy), max(busy)
    text = share(low) if high - low < 1.0 else f"{low:.0f} to {high:.0f} %"
    without = next((f for f in done.findings if f.id == "no-request-in-flight"), None)
    if low < BUSY_PCT and without is not None:
        return f"healthy for its load: {text} busy; {without.headline}"
    if low < BUSY_PCT:
        return f"healthy: {text} busy, and no single cause could give back {HEALTHY_BELOW_PCT:.0f} % of the window"
    hot = max(done.hot, key=lambda one: one.busy_ns)
    families = hot.families
    first = [
        # "other" would say nothing: its longest kernel does, where it is among the longest of all.
        next((printable(k.name, 60) for k in hot.kernels if k.family is f.family), "kernels of no known family")
        if f.family is Family.OTHER
        else f.family.value
        for f in families
        if f.union_ns >= _ABOUT_EQUAL * families[0].union_ns
    ]
    return f"healthy, GPU-bound in {' and '.join(first[:2])}: {text} busy"


def _facts(context: Context, done: Analysed, refused: bool) -> tuple[Fact, ...]:
    main = context.main
    timeline = context.timeline
    window = Fact(
        "window",
        _window_ms(timeline),
        "ms",
        "recorded by the file" if timeline.origin.window_from == "record" else "first to last activity",
    )
    if main is None:
        return (window,)
    return (
        window,
        *context.busy_facts(main),
        *over_devices("GPU busy", _busy(context, context.coverage), "%", "|∪ device activity| ÷ window"),
        # Of a capture that can be judged they stand in its findings.
        *(
            fact
            for launched in done.launches
            if refused and not context.blind and launched.device == main.device
            for fact in kernel_facts(launched)
        ),
    )


def _window_ms(timeline: Timeline) -> float | None:
    """None where there was no event to tell it by."""
    return timeline.window_ns / 1e6 if timeline.window_ns else None


def _busy(context: Context, covered: Sequence[DeviceCoverage]) -> dict[str, float]:
    return {context.device_label(one.device): one.busy_pct for one in covered}


def _notes(context: Context, done: Analysed, refused: bool) -> tuple[str, ...]:
    timeline = context.timeline
    origin = timeline.origin
    notes = []
    if context.coverage and not refused:
        notes.append(SCOPE)
        if timeline.window_ns < SHORTEST_NS:
            notes.append(
                f"the window is only {timeline.window_ns / 1e6:.1f} ms: how it varies from step to step can't be told"
            )
        most = max((sum(phase.steps for phase in one.by_phase) for one in done.steps), default=None)
        if most is not None and most < _ENOUGH_STEPS:
            notes.append(f"only {most} step{'' if most == 1 else 's'} in the window: how they vary can't be told")
    if context.distortion is not None:
        notes.append(context.distortion.text)
    if origin.window_from != "record" and context.coverage:
        notes.append(
            "the window is from first to last GPU activity (the file doesn't tell its own): idle time before and after "
            "is not seen"
        )
    notes += origin.warnings
    notes += [
        f"not known: {_MISSING_LABELS.get(key, key)} ({why})"
        for key, why in origin.missing.items()
        if key != "device_activity"
    ]
    # Of a process that has no CUDA the recorder always complains: it matters where nothing was recorded at all.
    said = [text for severity, text in origin.diagnostics if refused and severity in _TOLD_DIAGNOSTICS]
    notes += [f"the recorder says: {text}" for text in said[:_MOST_DIAGNOSTICS]]
    if len(said) > _MOST_DIAGNOSTICS:
        notes.append(f"and {len(said) - _MOST_DIAGNOSTICS} more messages of the recorder")
    return tuple(printable(note) for note in notes)


def _capture(context: Context) -> dict[str, object]:
    timeline = context.timeline
    origin = timeline.origin
    return {
        "format": origin.format,
        "files": [printable(name) for name in origin.files],
        "tool": printable(origin.tool) if origin.tool else None,
        "schema": printable(origin.schema) if origin.schema else None,
        "engine": context.engine,
        "engine_name": ENGINE_LABELS.get(context.engine) if context.engine else None,
        "window_from": origin.window_from,
        "window_ms": _window_ms(timeline),
    }
