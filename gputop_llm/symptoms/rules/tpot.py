"""tpot-high: the tokens after the first one come too slowly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean

from gputop_llm.model import EngineLive, Latency
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import CUDA_GRAPHS, SMALLER_CHUNKS, SMALLER_KV, SMALLER_WEIGHTS
from gputop_llm.symptoms.checks import Check, State, judged
from gputop_llm.symptoms.clocks import low_clocks
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, gpu_number, latency_evidence, limit, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.slo import Verdict, judge
from gputop_llm.symptoms.threads import computing, hottest
from gputop_llm.symptoms.view import MEAN_S, EngineView, GpuView, NodeView
from gputop_llm.units import number, pct, seconds, uptime

RULE = "tpot-high"
_LONGEST_S = 120.0


def tpot_high(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The windowed p95 of inter-token latency over its limit, for each model."""
    for engine in view.engines:
        if lacking := unreadable(engine, limits):
            yield Check(RULE, engine.subject, State.UNKNOWN, lacking)
            continue
        for live in engine.models:
            verdict = judge(engine, live, RULE, "itl", limits)
            make = partial(_symptom, engine, live, verdict, limits)
            yield judged(RULE, engine.model_subject(live), verdict.state, verdict.needs, make)


def _symptom(engine: EngineView, live: EngineLive, verdict: Verdict, limits: Limits) -> Symptom:
    latency = verdict.latency
    assert latency is not None
    spread = spread_x(latency)
    causes = _causes(engine, live, spread, limits)
    headline = f"ITL p95 {verdict.p95} ({verdict.against})"
    if spread is not None:
        headline += f", p99 is {spread:.1f}× p50"
    if live.running is not None:
        headline += f", {live.running:.0f} running"
    median = latency.p50
    signals = (
        True,
        # More than a tail of it.
        median is not None and (median.low if median.value is None else median.value) > verdict.limit_s,
        bool(causes[0].speaks_for),
    )
    critical = (verdict.p95_s or 0.0) > verdict.limit_s * limits.value(f"{RULE}.critical_x")
    one_model = len(engine.models) == 1
    speculating = live.spec is not None and bool(live.spec.drafts_per_s)
    return Symptom(
        id=RULE,
        subject=engine.model_subject(live),
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        headline=headline,
        evidence=(
            *latency_evidence(
                engine,
                live,
                "itl",
                "time per step of a request" if speculating else "ITL",
                verdict.limit_s,
                verdict.origin,
            ),
            Evidence(
                "p99 ÷ p50",
                spread,
                "",
                "from the two above",
                live.window_s,
                missing=None if spread is not None else "the buckets are too coarse",
                **limit(limits, f"{RULE}.spread_x"),
            ),
            engine_number(engine, live, "running", "running", ""),
            engine_number(engine, live, "prompt_computed_tokens_per_s", "prefill alongside", "tok/s"),
            *_extreme(engine, "gpm.dram_bw_pct", "DRAM bandwidth", "%", "GPM", max),
            *_extreme(engine, "sm_clock_mhz", "SM clock", "MHz", "NVML", min),
        ),
        causes=causes,
        advice=(
            SMALLER_CHUNKS,
            Advice(
                "run fewer sequences at once, on more copies of the engine",
                {
                    "vllm": "--max-num-seqs (down)",
                    "sglang": "--max-running-requests (down)",
                    "trtllm": "max_batch_size (down)",
                },
            ),
            SMALLER_KV,
            SMALLER_WEIGHTS,
            CUDA_GRAPHS,
        ),
        refuted_by=f"clients measure under {seconds(verdict.limit_s)} between tokens in the same minute",
        next_capture="kineto",
        agreeing=sum(signals),
        signals=len(signals),
        chart=engine.series("itl_p95_s") if one_model else None,
        chart_threshold=verdict.limit_s if one_model else None,
    )


def spread_x(latency: Latency) -> float | None:
    """p99 ÷ p50; where they are known by their buckets, the least that it can be; None if that is under 1."""
    if latency.p50 is None or latency.p99 is None:
        return None
    top = latency.p99.low if latency.p99.value is None else latency.p99.value
    middle = latency.p50.high if latency.p50.value is None else latency.p50.value
    return top / middle if middle and top >= middle else None


def _extreme(
    engine: EngineView,
    name: str,
    label: str,
    unit: str,
    source: str,
    pick: Callable[[Sequence[float]], float],
) -> tuple[Evidence, ...]:
    """The figure of that GPU of the engine that has the most (or least) of it; of the first one where none is known."""
    known = [(value, gpu) for gpu in engine.gpus if (value := gpu.mean(name)) is not None]
    if not known:
        return tuple(gpu_number(gpu, name, label, unit, source) for gpu in engine.gpus[:1])
    wanted = pick([value for value, _ in known])
    which: GpuView = next(gpu for value, gpu in known if value == wanted)
    return (gpu_number(which, name, label, unit, source),)


def _causes(engine: EngineView, live: EngineLive, spread: float | None, limits: Limits) -> tuple[Cause, ...]:
    return ranked(
        _interference(live, spread, limits),
        _batch(engine, live, limits),
        Cause("low clocks: a power or heat limit", *low_clocks(engine, limits.value(f"{RULE}.clock_pct"))),
        _host(engine, limits),
        _acceptance(live, limits),
    )


def _interference(live: EngineLive, spread: float | None, limits: Limits) -> Cause:
    prefill = live.prompt_computed_tokens_per_s
    if prefill is None:
        prefill = live.prompt_tokens_per_s
    wide = spread is not None and spread > limits.value(f"{RULE}.spread_x")
    return Cause(
        "prefill interference: chunks of prompts make some steps long",
        when(
            wide and bool(prefill),
            f"p99 is {spread or 0:.1f}× p50 while {number(prefill)} prompt tokens/s are computed",
        ),
        when(spread is not None and not wide, f"p99 is {spread or 0:.1f}× p50: all steps are about as long")
        + when(prefill == 0, "no prompt is being computed"),
    )


def _batch(engine: EngineView, live: EngineLive, limits: Limits) -> Cause:
    points = engine.values("running", _LONGEST_S)
    ago_s = points[-1][0] - points[0][0] if points else 0.0
    before = fmean(value for at, value in points if at - points[0][0] <= MEAN_S) if ago_s > 2 * MEAN_S else None
    grown = before is not None and live.running is not None and live.running > before * limits.value(f"{RULE}.batch_x")
    bandwidth = [value for gpu in engine.gpus if (value := gpu.mean("gpm.dram_bw_pct")) is not None]
    most = max(bandwidth, default=None)
    near = most is not None and most >= limits.value(f"{RULE}.dram_pct")
    return Cause(
        "the batch grew: each step reads more KV cache, and memory bandwidth is the limit",
        when(grown, f"{live.running or 0:.0f} running, {before or 0:.0f} {uptime(ago_s)} ago")
        + when(near, f"DRAM bandwidth at {pct(most)}"),
        when(
            before is not None and live.running is not None and not grown,
            f"{live.running or 0:.0f} running, {before or 0:.0f} {uptime(ago_s)} ago",
        )
        + when(most is not None and not near, f"DRAM bandwidth at {pct(most)}"),
    )


def _host(engine: EngineView, limits: Limits) -> Cause:
    hot = hottest(computing(engine))
    active = [value for gpu in engine.gpus if (value := gpu.mean("gpm.sm_active_pct")) is not None]
    least = min(active, default=None)
    busy = hot is not None and hot.cpu_pct >= limits.value("host-bound.thread_pct")
    idle = least is not None and least < limits.value("host-bound.sm_active_pct")
    return Cause(
        "host-bound: the GPU waits for Python between steps",
        when(busy and hot is not None, f"{hot.label} takes {pct(hot.cpu_pct)} of a core" if hot else "")
        + when(busy and idle, f"SM active only {pct(least)}"),
        when(hot is not None and not busy, f"{hot.label} takes {pct(hot.cpu_pct)} of a core" if hot else "")
        + when(least is not None and not idle, f"SM active {pct(least)}"),
    )


def _acceptance(live: EngineLive, limits: Limits) -> Cause:
    accepted = live.spec.acceptance_pct if live.spec else None
    weak = accepted is not None and accepted < limits.value("spec-decode-weak.acceptance_pct")
    return Cause(
        "drafted tokens are rejected: steps verify in vain",
        when(weak, f"acceptance {pct(accepted)}"),
        when(accepted is not None and not weak, f"acceptance {pct(accepted)}")
        + when(live.spec is None and "spec" in live.missing, live.missing.get("spec", "")),
    )


RULES = (Rule(RULE, "tokens come slowly", tpot_high),)
