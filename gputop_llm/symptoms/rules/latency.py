"""ttft-high: requests wait too long for their first token. (tpot-high: tpot.py.)"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model import EngineLive, Latency
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import LARGER_BATCHES
from gputop_llm.symptoms.checks import Check, State, judged
from gputop_llm.symptoms.clocks import low_clocks
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, latency_evidence, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.slo import Verdict, judge
from gputop_llm.symptoms.view import EngineView, NodeView
from gputop_llm.units import pct, seconds

RULE = "ttft-high"


def ttft_high(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The windowed p95 of TTFT over its limit, for each model."""
    for engine in view.engines:
        if lacking := unreadable(engine, limits):
            yield Check(RULE, engine.subject, State.UNKNOWN, lacking)
            continue
        for live in engine.models:
            verdict = judge(engine, live, RULE, "ttft", limits)
            make = partial(_symptom, engine, live, verdict, limits)
            yield judged(RULE, engine.model_subject(live), verdict.state, verdict.needs, make)


def _symptom(engine: EngineView, live: EngineLive, verdict: Verdict, limits: Limits) -> Symptom:
    queue_pct, prefill_pct = _share_pct(live, "queue"), _share_pct(live, "prefill")
    causes = _causes(engine, live, queue_pct, limits)
    headline = f"TTFT p95 {verdict.p95} ({verdict.against})"
    if queue_pct is not None:
        headline += f", {pct(queue_pct)} of it queueing"
    if live.waiting:
        headline += f", {live.waiting:.0f} waiting"
    median = verdict.latency.p50 if verdict.latency else None
    signals = (
        True,
        # More than a tail of it.
        median is not None and (median.low if median.value is None else median.value) > verdict.limit_s,
        bool(causes[0].speaks_for),
    )
    p95_s = verdict.p95_s or 0.0
    critical = p95_s > verdict.limit_s * limits.value(f"{RULE}.critical_x")
    one_model = len(engine.models) == 1
    return Symptom(
        id=RULE,
        subject=engine.model_subject(live),
        severity=Severity.CRITICAL if critical else Severity.WARNING,
        headline=headline,
        evidence=(
            *latency_evidence(engine, live, "ttft", "TTFT", verdict.limit_s, verdict.origin),
            _share(engine, live, "queue", "queue time's share", queue_pct),
            _share(engine, live, "prefill", "prefill time's share", prefill_pct),
            engine_number(engine, live, "mean_prompt_tokens", "mean prompt tokens", ""),
            engine_number(engine, live, "prefix_hit_pct", "prefix-cache hit rate", "%"),
            engine_number(engine, live, "waiting", "waiting", ""),
        ),
        causes=causes,
        advice=(
            LARGER_BATCHES,
            Advice(
                "prefill more tokens in a step (TPOT pays for it), and let short prompts pass long ones",
                {
                    "vllm": "--max-num-batched-tokens (up), --long-prefill-token-threshold",
                    "sglang": "--chunked-prefill-size, --max-prefill-tokens (up)",
                    "trtllm": "max_num_tokens (up)",
                },
            ),
            Advice(
                "compute a shared prefix once",
                {
                    "vllm": "--enable-prefix-caching",
                    "sglang": "no --disable-radix-cache; --schedule-policy lpm",
                    "trtllm": "kv_cache_config.enable_block_reuse: true",
                },
            ),
            Advice("serve fewer requests with this engine: add a copy, or refuse what can't be served in time"),
        ),
        refuted_by=f"clients measure a TTFT p95 under {seconds(verdict.limit_s)} in the same minute",
        next_capture="nsys",
        agreeing=sum(signals),
        signals=len(signals),
        chart=engine.series("ttft_p95_s") if one_model else None,
        chart_threshold=verdict.limit_s if one_model else None,
    )


def _share_pct(live: EngineLive, part: str) -> float | None:
    """Mean queue or prefill time as a share of both, over the requests that finished in the window."""
    queue, prefill = (_mean_s(live.latency.get(name)) for name in ("queue", "prefill"))
    if queue is None or prefill is None or queue + prefill <= 0:
        return None
    return 100.0 * (queue if part == "queue" else prefill) / (queue + prefill)


def _mean_s(latency: Latency | None) -> float | None:
    return latency.mean_s if latency else None


def _share(engine: EngineView, live: EngineLive, part: str, label: str, value: float | None) -> Evidence:
    source = f"{engine.kind} /metrics, of queue + prefill time of the requests that finished"
    missing = None if value is not None else live.missing.get(part, "no request finished in the window")
    return Evidence(label, value, "%", source, live.window_s, missing=missing)


def _causes(engine: EngineView, live: EngineLive, queue_pct: float | None, limits: Limits) -> tuple[Cause, ...]:
    long_prompt = limits.value(f"{RULE}.prompt_tokens")
    half = limits.value(f"{RULE}.queue_share_pct")
    prompt, hit, usage = live.mean_prompt_tokens, live.prefix_hit_pct, live.kv_usage_pct
    usual_hit = engine.baseline(engine, live, "prefix_hit_pct")
    usual_hit = live.prefix_hit_lifetime_pct if usual_hit is None else usual_hit
    cold, off = _cold(engine, hit, usual_hit, limits)
    full = usage is not None and usage > limits.value("kv-pressure.kv_pct")
    slow, fast = low_clocks(engine, limits.value(f"{RULE}.clock_pct"))
    return ranked(
        Cause(
            "queueing: requests wait before they are scheduled",
            when(queue_pct is not None and queue_pct > half, f"queue time is {pct(queue_pct)} of queue + prefill time")
            + when(bool(live.waiting), f"{live.waiting or 0:.0f} requests wait now"),
            when(queue_pct is not None and queue_pct <= half, f"queue time is {pct(queue_pct)} of queue + prefill time")
            + when(live.waiting == 0, "nothing waits now"),
        ),
        Cause(
            "long prompts",
            when(prompt is not None and prompt > long_prompt, f"the mean prompt has {prompt or 0:.0f} tokens"),
            when(prompt is not None and prompt <= long_prompt, f"the mean prompt has {prompt or 0:.0f} tokens"),
        ),
        Cause(
            "a cold prefix cache: prompts are computed that were cached before",
            when(cold, f"hit rate {pct(hit)}, usually {pct(usual_hit)}")
            + when(off, "prefix caching is off on this engine"),
            when(hit is not None and not cold, f"hit rate {pct(hit)}, usually {pct(usual_hit)}"),
        ),
        Cause(
            "KV pressure: prompts wait for free blocks, or are computed again after a preemption",
            when(full, f"KV cache {pct(usage)} full")
            + when(bool(live.preemptions_per_s), f"{live.preemptions_per_s or 0:.2g} preemptions/s"),
            when(usage is not None and not full and not live.preemptions_per_s, f"KV cache {pct(usage)} full"),
        ),
        Cause("slow prefill: low clocks", slow, fast),
        Cause(
            "slow prefill: chunks share their steps with a large batch",
            when(
                queue_pct is not None and queue_pct <= half and not slow,
                f"prefill time is {pct(100.0 - (queue_pct or 0.0))} of queue + prefill time",
            ),
            when(queue_pct is not None and queue_pct > half, "most of the time is spent before the prefill"),
        ),
    )


def _cold(engine: EngineView, hit: float | None, usual: float | None, limits: Limits) -> tuple[bool, bool]:
    """(the hit rate is far below the usual one, prefix caching is off)."""
    reading = engine.frame.scrape.value
    off = reading is not None and reading.cache_config.get("enable_prefix_caching") == "False"
    if hit is None or usual is None or usual < limits.value("prefix-cache-cold.usual_pct"):
        return False, off
    return hit < usual * limits.value("prefix-cache-cold.of_usual_pct") / 100.0, off


RULES = (Rule(RULE, "the first token comes late", ttft_high),)
