"""The names under which vLLM 0.6 to 0.33 tells each figure, and why an older one lacks it.

Names moved between releases: each of our names lists vLLM's, newest first, and the first one that
has a value counts. Counters are written with and without "_total" (OpenMetrics gateways strip it).
"""

from __future__ import annotations

from gputop_llm.sources.engines.gather import Names, counter


def _metric(*names: str) -> tuple[str, ...]:
    return tuple(f"vllm:{name}" for name in names)


def _counter(*names: str) -> tuple[str, ...]:
    return counter(*_metric(*names))


# One value per series.
VALUES = {
    "running": _metric("num_requests_running"),
    "waiting": _metric("num_requests_waiting"),
    # V0 only: preempted to host memory, so neither running nor waiting.
    "swapped": _metric("num_requests_swapped"),
    # A share of 1 in spite of "perc".
    "kv_usage": _metric("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "prompt_tokens": _counter("prompt_tokens"),
    "prompt_tokens_cached": _counter("prompt_tokens_cached"),
    "generation_tokens": _counter("generation_tokens"),
    "preemptions": _counter("num_preemptions"),
    "prefix_queries": _counter("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_hits": _counter("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "spec_drafts": _counter("spec_decode_num_drafts"),
    "spec_draft_tokens": _counter("spec_decode_num_draft_tokens"),
    "spec_accepted_tokens": _counter("spec_decode_num_accepted_tokens"),
}

# Values that come apart by one more label, whose value is appended to our name.
LABELLED = (
    ("finished:", _counter("request_success"), "finished_reason"),
    ("spec_accepted_at:", _counter("spec_decode_num_accepted_tokens_per_pos"), "position"),
    ("source:", _counter("prompt_tokens_by_source"), "source"),
    ("waiting:", _metric("num_requests_waiting_by_reason"), "reason"),
)

HISTOGRAMS = {
    "ttft": _metric("time_to_first_token_seconds"),
    # One observation per request and step; per token only without speculative decoding.
    "itl": _metric("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot": _metric("request_time_per_output_token_seconds"),
    "queue": _metric("request_queue_time_seconds", "time_in_queue_requests"),
    "prefill": _metric("request_prefill_time_seconds"),
    "decode": _metric("request_decode_time_seconds"),
    "e2e": _metric("e2e_request_latency_seconds"),
    "request_prompt_tokens": _metric("request_prompt_tokens"),
    "request_generation_tokens": _metric("request_generation_tokens"),
    # A histogram in spite of "_total": one observation per engine step.
    "iteration": _metric("iteration_tokens_total"),
}

# Counted with every step. (A step that only prefills a part of a prompt counts in neither.)
PROGRESS = ("steps", "generation_tokens")

LORA = "vllm:lora_requests_info"
CACHE_CONFIG = "vllm:cache_config_info"
SLEEP = "vllm:engine_sleep_state"
CREATED = _metric(
    "generation_tokens_created",
    "prompt_tokens_created",
    "request_success_created",
    "time_to_first_token_seconds_created",
)
PROCESS_START = "process_start_time_seconds"
# By the front end itself, whatever becomes of a request inside; without /metrics, /health and the like.
HTTP = ("http_requests_total", "http_requests")

# What is doubtful when two values are given for one series, where that is not the name itself.
DOUBTS = {
    "swapped": "waiting",
    "kv_usage": "kv_usage_pct",
    "waiting:": "waiting_by_reason",
    "source:": "prompt_tokens_computed",
    "iteration": "steps",
    **{name: name for name in HISTOGRAMS if name != "iteration"},
}

NAMES = Names(VALUES, LABELLED, HISTOGRAMS, DOUBTS)
NEEDED = NAMES.needed | {*CREATED, LORA, CACHE_CONFIG, SLEEP, PROCESS_START, *HTTP}

# vLLM 0.6.4 wrote prefill time under decode's name and the reverse (vllm-project/vllm pull 10853).
SWAPPED_PHASES = frozenset({"0.6.4", "0.6.4.post1"})

_APART = "vLLM before 0.16 does not count computed and cached prompt tokens apart"
_NO_QUERIES = "this vLLM does not count prefix-cache queries"
WHY_ABSENT = {
    "waiting_by_reason": "needs vLLM 0.20 or newer",
    "prompt_computed_tokens_per_s": _APART,
    "prompt_cached_tokens_per_s": _APART,
    "tokens_per_step": _APART,
    "prefix_hit_pct": _NO_QUERIES,
    "prefix_hit_lifetime_pct": _NO_QUERIES,
    "tpot": "needs vLLM 0.11 or newer",
    "spec": "speculative decoding is off",
    "lora": "LoRA is off (--enable-lora)",
}
NOT_THERE = "this vLLM's page does not have it"
NOT_YET = "not on the page yet: this server shows a series only after its first observation"
SEVERAL_SERVERS = "several API servers share this page and each counts the same engine step"
