"""prefix-cache-cold and spec-decode-weak: work that was to be saved and isn't."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model import EngineLive, SpecDecode
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import SMALLER_KV
from gputop_llm.symptoms.checks import Check, State, any_of, judged, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, limit, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView, NodeView
from gputop_llm.units import number, pct

COLD, WEAK = "prefix-cache-cold", "spec-decode-weak"


# -- prefix-cache-cold ----------------------------------------------------------


def prefix_cache_cold(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The windowed hit rate under its limit, or under half of the usual one, with enough prompts to judge by."""
    for engine in view.engines:
        if lacking := unreadable(engine, limits):
            yield Check(COLD, engine.subject, State.UNKNOWN, lacking)
            continue
        for live in engine.models:
            subject = engine.model_subject(live)
            hit, prompts = _spared_pct(live), _prompts(live)
            if hit is None:
                yield Check(COLD, subject, State.UNKNOWN, f"the hit rate ({_no_hit_rate(engine, live)})")
                continue
            if prompts is None or prompts < limits.value(f"{COLD}.prompts"):
                wanted = f"{limits.value(f'{COLD}.prompts'):.0f} prompts in the window"
                why = "" if prompts is not None else f" ({live.missing.get('requests_per_s', 'they are not counted')})"
                yield Check(COLD, subject, State.UNKNOWN, wanted + why)
                continue
            usual, _ = usual_hit_pct(engine, live)
            of_usual = None
            if usual is not None and usual >= limits.value(f"{COLD}.usual_pct"):
                of_usual = 100.0 * hit / usual
            parts = [under(hit, limits, f"{COLD}.hit_pct")]
            if of_usual is not None:
                parts.append(under(of_usual, limits, f"{COLD}.of_usual_pct"))
            make = partial(_cold, engine, live, hit, of_usual, limits)
            yield judged(COLD, subject, any_of(*parts), "", make)


def usual_hit_pct(engine: EngineView, live: EngineLive) -> tuple[float | None, str]:
    """The hit rate to compare with: the baseline, else the engine's lifetime; and which of the two it is."""
    usual = engine.baseline(engine, live, "prefix_hit_pct")
    return (live.prefix_hit_lifetime_pct, "lifetime") if usual is None else (usual, "baseline")


def _spared_pct(live: EngineLive) -> float | None:
    """The hit rate; or the share of prompt tokens that came without being computed, where that is more.

    A KV connector (disaggregated prefill, offloading) brings what is not in the engine's own cache.
    """
    hit, cached, prompt = live.prefix_hit_pct, live.prompt_cached_tokens_per_s, live.prompt_tokens_per_s
    return max(hit, 100.0 * cached / prompt) if hit is not None and cached is not None and prompt else hit


def caching_is_off(engine: EngineView) -> bool:
    """Whether the engine says that it caches no prefixes."""
    reading = engine.frame.scrape.value
    return reading is not None and reading.cache_config.get("enable_prefix_caching") == "False"


def _no_hit_rate(engine: EngineView, live: EngineLive) -> str:
    if caching_is_off(engine):
        return "prefix caching is off on this engine"
    return live.missing.get("prefix_hit_pct", "not on the page")


def _prompts(live: EngineLive) -> float | None:
    """How many prompts were answered first in the window; by finished requests where that isn't counted."""
    first = live.latency.get("ttft")
    if first is not None:
        return first.count
    if live.requests_per_s is None or live.window_s is None:
        return None
    return live.requests_per_s * live.window_s


def _cold(engine: EngineView, live: EngineLive, hit: float, of_usual: float | None, limits: Limits) -> Symptom:
    usual, which = usual_hit_pct(engine, live)
    fell = of_usual is not None and of_usual < limits.clear(f"{COLD}.of_usual_pct")
    usage, preemptions = live.kv_usage_pct, live.preemptions_per_s
    full = usage is not None and usage > limits.value(f"{COLD}.kv_pct")
    if fell:
        headline = f"prefix-cache hit rate fell to {pct(hit)} from {pct(usual)} ({which})"
    else:
        headline = f"prefix-cache hit rate {pct(hit, 1)}: prompts share next to nothing"
    if live.prompt_computed_tokens_per_s is not None:
        headline += f", {number(live.prompt_computed_tokens_per_s)} prompt tok/s are computed"
    source = f"{engine.kind} /metrics, tokens"
    return Symptom(
        id=COLD,
        subject=engine.model_subject(live),
        # Prompts that never shared anything are the clients' nature and no fault.
        severity=Severity.WARNING if fell or full else Severity.NOTE,
        headline=headline,
        evidence=(
            Evidence("hit rate", hit, "%", source, live.window_s, **limit(limits, f"{COLD}.hit_pct")),
            Evidence("hit rate, lifetime", live.prefix_hit_lifetime_pct, "%", source),
            Evidence(
                "of the usual hit rate",
                of_usual,
                "%",
                f"against the {which}",
                live.window_s,
                missing=None if of_usual is not None else "the usual rate is too low to fall, or unknown",
                **limit(limits, f"{COLD}.of_usual_pct"),
            ),
            Evidence("prompts in the window", _prompts(live), "", f"{engine.kind} /metrics", live.window_s),
            engine_number(engine, live, "prompt_computed_tokens_per_s", "prompt tokens computed", "tok/s"),
            engine_number(engine, live, "kv_usage_pct", "KV cache usage", "%"),
        ),
        causes=ranked(
            Cause(
                "prompts do not share a prefix, or something that changes stands at their beginning",
                when(not fell, f"the lifetime's hit rate is {pct(live.prefix_hit_lifetime_pct)} too"),
                when(fell, f"the {which}'s hit rate is {pct(usual)}"),
            ),
            Cause(
                "cache thrash: prefixes are evicted before they are used again",
                when(full, f"KV cache {pct(usage)} full of running requests: little is left for prefixes")
                + when(bool(preemptions), f"{preemptions or 0:.2g} preemptions/s"),
                when(usage is not None and not full, f"KV cache {pct(usage)} full: the rest can hold prefixes"),
            ),
            Cause(
                "the cache was emptied, or requests go to another copy than before",
                when(fell and live.restarted, "the engine was restarted a moment ago"),
                when(not fell, "the hit rate did not fall"),
            ),
            Cause(
                "prefix caching is off",
                when(caching_is_off(engine), "enable_prefix_caching is False"),
                when(not caching_is_off(engine), "the engine looks prefixes up"),
            ),
        ),
        advice=(
            Advice(
                "put what is common (system prompt, documents, tools) first, and what changes (time, user, ids) last"
            ),
            Advice("send requests that share a prefix to the same copy: a router that knows prefixes or sessions"),
            Advice(
                "make sure that prefixes are cached",
                {
                    "vllm": "--enable-prefix-caching",
                    "sglang": "no --disable-radix-cache; --schedule-policy lpm",
                    "trtllm": "kv_cache_config.enable_block_reuse: true",
                },
            ),
            Advice(
                "give the cache more room",
                {
                    "vllm": "--gpu-memory-utilization (up), --kv-offloading-size",
                    "sglang": "--mem-fraction-static (up), --enable-hierarchical-cache",
                    "trtllm": "kv_cache_config.free_gpu_memory_fraction (up), kv_cache_config.host_cache_size",
                },
            ),
            SMALLER_KV,
        ),
        refuted_by="the same prompts, sent again, hit: then they are new to this engine, and the cache works",
        agreeing=1 + (fell or not usual) + full,
        signals=3,
        chart=engine.series("prefix_hit_pct"),
        chart_threshold=limits.value(f"{COLD}.hit_pct"),
    )


# -- spec-decode-weak -----------------------------------------------------------


def spec_decode_weak(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Acceptance or the mean accepted length under its limit, with enough drafts to judge by."""
    for engine in view.engines:
        if lacking := unreadable(engine, limits):
            yield Check(WEAK, engine.subject, State.UNKNOWN, lacking)
            continue
        for live in engine.models:
            subject, spec = engine.model_subject(live), live.spec
            drafts = _drafts(live)
            if spec is None or drafts is None:
                why = live.missing.get("spec", "no draft was counted")
                yield Check(WEAK, subject, State.UNKNOWN, f"drafts to judge by ({why})")
                continue
            if drafts < limits.value(f"{WEAK}.drafts"):
                yield Check(WEAK, subject, State.UNKNOWN, f"{limits.value(f'{WEAK}.drafts'):.0f} drafts in the window")
                continue
            parts = (
                under(spec.acceptance_pct, limits, f"{WEAK}.acceptance_pct"),
                under(spec.mean_length, limits, f"{WEAK}.mean_length"),
            )
            known = [part for part in parts if part is not State.UNKNOWN]
            state = any_of(*known) if known else State.UNKNOWN
            yield judged(WEAK, subject, state, "accepted tokens", partial(_weak, engine, live, spec, limits))


def _drafts(live: EngineLive) -> float | None:
    if live.spec is None or live.spec.drafts_per_s is None or live.window_s is None:
        return None
    return live.spec.drafts_per_s * live.window_s


def _weak(engine: EngineView, live: EngineLive, spec: SpecDecode, limits: Limits) -> Symptom:
    accepted, length, positions = spec.acceptance_pct, spec.mean_length, spec.by_position_pct
    half = limits.value(f"{WEAK}.acceptance_pct")
    by_position = " / ".join(f"{value:.0f}" for value in positions) + " %" if positions else None
    source = f"{engine.kind} /metrics"
    headline = f"{pct(accepted)} of drafted tokens are accepted"
    if length is not None:
        headline += f", {length:.2f} tokens per draft"
    if spec.drafts_per_s is not None:
        headline += f" at {number(spec.drafts_per_s)} drafts/s"
    first = positions[0] if positions else None
    last = positions[-1] if len(positions) > 1 else None
    told = f"at the first position {pct(first)} are accepted"
    signals = [
        None if accepted is None else accepted < half,
        None if length is None else length < limits.value(f"{WEAK}.mean_length"),
        None if first is None else first < half,
    ]
    return Symptom(
        id=WEAK,
        subject=engine.model_subject(live),
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            Evidence("acceptance", accepted, "%", source, live.window_s, **limit(limits, f"{WEAK}.acceptance_pct")),
            Evidence("mean length", length, "", source, live.window_s, **limit(limits, f"{WEAK}.mean_length")),
            Evidence(
                "accepted by position",
                None,
                "%",
                source,
                live.window_s,
                text=by_position,
                missing=None if by_position else "the page does not count by position",
            ),
            Evidence("drafts", spec.drafts_per_s, "/s", source, live.window_s),
            engine_number(engine, live, "running", "running", ""),
        ),
        causes=ranked(
            Cause(
                "the draft does not fit the model or its traffic",
                when(first is not None and first < half, told),
                when(first is not None and first >= half, told),
            ),
            Cause(
                "it drafts further than it can see: the later positions are wasted",
                when(
                    first is not None and last is not None and first >= half > last,
                    f"at the first position {pct(first)} are accepted, at the last {pct(last)}",
                ),
                when(last is not None and last >= half, f"at the last position {pct(last)} are accepted"),
            ),
            Cause("requests sample at a high temperature: no draft can guess well (the page does not tell it)"),
        ),
        advice=(
            Advice(
                "draft fewer tokens",
                {
                    "vllm": "--speculative-config '{\"num_speculative_tokens\": …}' (down)",
                    "sglang": "--speculative-num-steps, --speculative-num-draft-tokens (down)",
                    "trtllm": "speculative_config.max_draft_len (down)",
                },
            ),
            Advice(
                "use a draft that was trained for this model and its traffic, or none",
                {
                    "vllm": "--speculative-config '{\"model\": …}'",
                    "sglang": "--speculative-draft-model-path",
                    "trtllm": "speculative_config.speculative_model_dir",
                },
            ),
        ),
        refuted_by="a trace in which draft and rejected tokens cost less time than the accepted ones save",
        next_capture="kineto",
        agreeing=sum(bool(s) for s in signals),
        signals=sum(s is not None for s in signals),
        chart=engine.series("spec_acceptance_pct") if len(engine.models) == 1 else None,
        chart_threshold=half,
    )


RULES = (
    Rule(COLD, "cached prefixes are not used", prefix_cache_cold),
    Rule(WEAK, "drafted tokens are rejected", spec_decode_weak),
)
