"""kv-pressure: the KV cache is full, or requests are preempted for want of it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, any_of, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView, NodeView


def kv_pressure(view: NodeView, limits: Limits) -> Iterator[Check]:
    """KV usage over its limit for the window, or any preemption."""
    for engine in view.engines:
        live = engine.live
        if live is None:
            yield Check("kv-pressure", engine.subject, State.UNKNOWN, "the engine's metrics")
            continue
        usage = engine.mean("kv_usage_pct")
        full = over(usage, limits, "kv-pressure.kv_pct")
        preempting = over(live.preemptions_per_s, limits, "kv-pressure.preemptions_per_s")
        state = any_of(full, preempting)
        if State.UNKNOWN in (full, preempting) and {full, preempting} != {State.UNKNOWN}:
            # One of the two is enough to judge by.
            state = full if preempting is State.UNKNOWN else preempting
        yield Check(
            "kv-pressure",
            engine.subject,
            state,
            live.missing.get("kv_usage_pct", "KV cache usage on the metrics page"),
            partial(_symptom, engine, usage, limits),
        )


def _symptom(engine: EngineView, usage: float | None, limits: Limits) -> Symptom:
    live = engine.live
    assert live is not None
    reading = engine.frame.scrape.value
    config = reading.cache_config if reading else {}
    blocks, block_size = config.get("num_gpu_blocks"), config.get("block_size")
    preemptions = live.preemptions_per_s
    waiting = live.waiting
    evidence = [
        Evidence(
            "KV cache usage",
            usage,
            "%",
            f"{engine.kind} /metrics",
            10.0,
            threshold=limits.value("kv-pressure.kv_pct"),
            threshold_origin=limits.origin("kv-pressure.kv_pct"),
        ),
        engine_number(engine, live, "preemptions_per_s", "preemptions", "/s"),
        engine_number(engine, live, "waiting", "waiting", ""),
        engine_number(engine, live, "running", "running", ""),
    ]
    if blocks and block_size:
        evidence.append(
            Evidence("KV pool", None, "", "cache_config_info", text=f"{blocks} blocks of {block_size} tokens")
        )
    growing = (live.waiting or 0) > 0
    headline = f"KV cache {usage:.0f} % full" if usage is not None else "KV cache under pressure"
    if preemptions:
        headline += f", {preemptions:.2g} preemptions/s"
    if waiting:
        headline += f", {waiting:.0f} waiting"
    agreeing = sum([(usage or 0) > limits.value("kv-pressure.kv_pct"), bool(preemptions), growing])
    return Symptom(
        id="kv-pressure",
        subject=engine.subject,
        severity=Severity.CRITICAL if preemptions else Severity.WARNING,
        headline=headline,
        evidence=tuple(evidence),
        causes=(
            Cause("the KV pool is too small for this load", when(growing, "requests wait for blocks")),
            Cause("contexts are longer than the pool was planned for", _mean_context(engine)),
            Cause(
                "requests that never end hold their blocks",
                speaks_against=when(bool(live.requests_per_s), "requests are finishing"),
            ),
        ),
        advice=(
            Advice(
                "give the pool more memory",
                {
                    "vllm": "--gpu-memory-utilization (up)",
                    "sglang": "--mem-fraction-static (up)",
                    "trtllm": "kv_cache_config.free_gpu_memory_fraction (up)",
                },
            ),
            Advice(
                "store the KV cache in 8 bits: about twice the tokens",
                {
                    "vllm": "--kv-cache-dtype fp8",
                    "sglang": "--kv-cache-dtype fp8_e5m2",
                    "trtllm": "kv_cache_config.dtype: fp8",
                },
            ),
            Advice(
                "admit fewer or shorter requests, so that none is preempted",
                {
                    "vllm": "--max-num-seqs, --max-model-len (down)",
                    "sglang": "--max-running-requests (down)",
                    "trtllm": "max_batch_size (down)",
                },
            ),
        ),
        refuted_by="KV usage under 90 % and no preemption for 10 s while the same requests run",
        agreeing=agreeing,
        signals=3,
        chart=engine.series("kv_usage_pct"),
        chart_threshold=limits.value("kv-pressure.kv_pct"),
    )


def _mean_context(engine: EngineView) -> tuple[str, ...]:
    live = engine.live
    if live is None or live.mean_prompt_tokens is None:
        return ()
    return (f"mean prompt {live.mean_prompt_tokens:.0f} tokens",)


RULES = (Rule("kv-pressure", "the KV cache is full", kv_pressure),)
