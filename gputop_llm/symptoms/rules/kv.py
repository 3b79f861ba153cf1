"""kv-pressure: the KV cache is full, or requests are preempted for want of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model import EngineLive
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import SMALLER_KV
from gputop_llm.symptoms.checks import Check, State, any_of, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, limit, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import MEAN_S, EngineView, NodeView
from gputop_llm.units import number, pct

RULE = "kv-pressure"


def kv_pressure(view: NodeView, limits: Limits) -> Iterator[Check]:
    """KV usage over its limit for the window, or any preemption. Of several ranks the fullest counts."""
    for engine in view.engines:
        live, lacking = engine.live, unreadable(engine, limits)
        if live is None or lacking:
            yield Check(RULE, engine.subject, State.UNKNOWN, lacking or "")
            continue
        usage = engine.mean("kv_usage_pct")
        parts = (
            over(usage, limits, f"{RULE}.kv_pct"),
            over(live.preemptions_per_s, limits, f"{RULE}.preemptions_per_s"),
        )
        # One of the two is enough to judge by.
        known = [part for part in parts if part is not State.UNKNOWN]
        needs = f"KV cache usage ({live.missing.get('kv_usage_pct', 'not on the page')})"
        make = partial(_symptom, engine, live, usage, limits)
        yield judged(RULE, engine.subject, any_of(*known) if known else State.UNKNOWN, needs, make)


def _symptom(engine: EngineView, live: EngineLive, usage: float | None, limits: Limits) -> Symptom:
    reading = engine.frame.scrape.value
    config = reading.cache_config if reading else {}
    blocks, block_size, tokens = (config.get(k) for k in ("num_gpu_blocks", "block_size", "kv_cache_size_tokens"))
    preemptions = live.preemptions_per_s
    fullest = _fullest_rank(engine)
    headline = f"KV cache {pct(usage)} full" if usage is not None else "the KV cache is too small"
    if fullest is not None:
        headline += f" on DP rank {fullest}"
    if preemptions:
        headline += f", {number(preemptions)} preemptions/s"
    if live.waiting:
        headline += f", {live.waiting:.0f} waiting"
    signals = [
        None if usage is None else usage > limits.value(f"{RULE}.kv_pct"),
        None if preemptions is None else preemptions > limits.value(f"{RULE}.preemptions_per_s"),
        None if live.waiting is None else live.waiting > 0,
    ]
    # Of a hybrid model the size of a block is only that of its smallest kind.
    pool = f"{blocks} blocks of {block_size} tokens" if blocks and block_size else None
    if tokens and tokens.isdecimal():
        pool = f"{tokens} tokens"
    return Symptom(
        id=RULE,
        subject=engine.subject,
        severity=Severity.CRITICAL if preemptions else Severity.WARNING,
        headline=headline,
        evidence=(
            Evidence(
                "KV cache usage",
                usage,
                "%",
                f"{engine.kind} /metrics",
                MEAN_S,
                missing=live.missing.get("kv_usage_pct", "not on the page") if usage is None else None,
                **limit(limits, f"{RULE}.kv_pct"),
            ),
            engine_number(
                engine, live, "preemptions_per_s", "preemptions", "/s", **limit(limits, f"{RULE}.preemptions_per_s")
            ),
            engine_number(engine, live, "waiting", "waiting", ""),
            engine_number(engine, live, "running", "running", ""),
            Evidence(
                "KV pool",
                None,
                "",
                f"{engine.kind} /metrics{', cache_config_info' if engine.kind == 'vllm' else ''}",
                text=pool,
                missing=None if pool else "the page does not tell its size",
            ),
            *_by_rank(engine),
        ),
        causes=_causes(engine, live, limits),
        advice=(
            Advice(
                "give the pool more memory",
                {
                    "vllm": "--gpu-memory-utilization (up)",
                    "sglang": "--mem-fraction-static (up)",
                    "trtllm": "kv_cache_config.free_gpu_memory_fraction (up)",
                },
            ),
            SMALLER_KV,
            Advice(
                "admit fewer or shorter requests, so that none is preempted",
                {
                    "vllm": "--max-num-seqs, --max-model-len (down)",
                    "sglang": "--max-running-requests, --context-length (down); --schedule-conservativeness (up)",
                    "trtllm": "max_batch_size, max_seq_len (down); "
                    "scheduler_config.capacity_scheduler_policy: GUARANTEED_NO_EVICT",
                },
            ),
        ),
        refuted_by=f"KV usage under {limits.clear(f'{RULE}.kv_pct'):.0f} % and no preemption under the same load",
        agreeing=sum(bool(s) for s in signals),
        signals=sum(s is not None for s in signals),
        chart=engine.series("kv_usage_pct"),
        chart_threshold=limits.value(f"{RULE}.kv_pct"),
    )


def _fullest_rank(engine: EngineView) -> str | None:
    known = [(live.kv_usage_pct, live.rank) for live in engine.ranks if live.kv_usage_pct is not None]
    return max(known, key=lambda pair: pair[0])[1] if len(known) > 1 else None


def _by_rank(engine: EngineView) -> Iterator[Evidence]:
    if len(engine.ranks) > 1:
        for live in engine.ranks:
            yield engine_number(engine, live, "kv_usage_pct", f"DP rank {live.rank} KV cache usage", "%")


def _causes(engine: EngineView, live: EngineLive, limits: Limits) -> tuple[Cause, ...]:
    tokens = None
    if live.mean_prompt_tokens is not None and live.mean_generation_tokens is not None:
        tokens = live.mean_prompt_tokens + live.mean_generation_tokens
    long_s = limits.value(f"{RULE}.context_tokens")
    told = f"a request has {number(tokens)} tokens on average, prompt and output"
    running, finished = live.running or 0.0, live.requests_per_s
    return ranked(
        Cause(
            "the KV pool is too small for this load",
            when(bool(live.waiting), f"{live.waiting or 0:.0f} requests wait beside {running:.0f} that run"),
            when(live.waiting == 0, "nothing waits"),
        ),
        Cause(
            "contexts are longer than the pool was planned for",
            when(tokens is not None and tokens > long_s, told),
            when(tokens is not None and tokens <= long_s, told),
        ),
        Cause(
            "leaked requests: they never end and hold their blocks",
            when(finished == 0 and running > 0, f"{running:.0f} run and none finished in the window"),
            when(bool(finished), f"{number(finished)} requests finish per second"),
        ),
    )


RULES = (Rule(RULE, "the KV cache is full", kv_pressure),)
