"""The metric families on a vLLM 0.32 page, in its order: one table, taken from a recorded page.

`samples` are (labels beside engine and model_name, key into `Observations.values`); a key
that is not there reads 0, as on a real page of an engine without that feature.
"""

from __future__ import annotations

from typing import NamedTuple

_NO_LABELS: dict[str, str] = {}


class Family(NamedTuple):
    """One family as exposed. `engine` is False for the one family that has no engine label."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[dict[str, str], str], ...] = ()
    engine: bool = True


def _one(name: str, kind: str, text: str) -> Family:
    return Family(name, kind, text, ((_NO_LABELS, name),))


def _by(name: str, kind: str, text: str, label: str, values: str, engine: bool = True) -> Family:
    return Family(name, kind, text, tuple(({label: v}, f"{name}:{v}") for v in values.split()), engine)


def _histogram(name: str, text: str) -> Family:
    return Family(name, "histogram", text)


_FOR_MFU = "per GPU (for Model Flops Utilization calculations)."
_CACHED_BY_SOURCE = (
    "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
    "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
    "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits."
)
_WAITING_BY_REASON = (
    "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
    "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
    "Sum of all reasons equals vllm:num_requests_waiting."
)
_SLEEP_STATE = (
    "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
    "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2."
)
_EXTERNAL = "from KV connector cross-instance cache sharing, in terms of number of"

VLLM_FAMILIES: tuple[Family, ...] = (
    _one("estimated_flops_per_gpu", "counter", f"Estimated number of floating point operations {_FOR_MFU}"),
    _one("estimated_read_bytes_per_gpu", "counter", f"Estimated number of bytes read from memory {_FOR_MFU}"),
    _one("estimated_write_bytes_per_gpu", "counter", f"Estimated number of bytes written to memory {_FOR_MFU}"),
    _one("num_requests_running", "gauge", "Number of requests in model execution batches."),
    _one("num_requests_waiting", "gauge", "Number of requests waiting to be processed."),
    _by("num_requests_waiting_by_reason", "gauge", _WAITING_BY_REASON, "reason", "capacity deferred"),
    _by("engine_sleep_state", "gauge", _SLEEP_STATE, "sleep_state", "awake weights_offloaded discard_all"),
    _one("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage."),
    _one("prefix_cache_queries", "counter", "Prefix cache queries, in terms of number of queried tokens."),
    _one("prefix_cache_hits", "counter", "Prefix cache hits, in terms of number of cached tokens."),
    _one("external_prefix_cache_queries", "counter", f"External prefix cache queries {_EXTERNAL} queried tokens."),
    _one("external_prefix_cache_hits", "counter", f"External prefix cache hits {_EXTERNAL} cached tokens."),
    _one("mm_cache_queries", "counter", "Multi-modal cache queries, in terms of number of queried items."),
    _one("mm_cache_hits", "counter", "Multi-modal cache hits, in terms of number of cached items."),
    _one("num_preemptions", "counter", "Cumulative number of preemption from the engine."),
    _one("prompt_tokens", "counter", "Number of prefill tokens processed."),
    _by(
        "prompt_tokens_by_source",
        "counter",
        "Number of prompt tokens by source.",
        "source",
        "local_compute local_cache_hit external_kv_transfer",
    ),
    _one("prompt_tokens_cached", "counter", "Number of cached prompt tokens (local + external)."),
    _by(
        "prompt_tokens_cached_by_source",
        "counter",
        _CACHED_BY_SOURCE,
        "source",
        "device host p2p disk external_unspecified",
    ),
    _one("generation_tokens", "counter", "Number of generation tokens processed."),
    _by(
        "request_success",
        "counter",
        "Count of successfully processed requests.",
        "finished_reason",
        "stop length abort error repetition",
    ),
    _by(
        "admission_rejections",
        "counter",
        "Number of admission attempts rejected by a queue limit, by reason.",
        "reason",
        "max_num_queued_reqs max_num_queued_tokens",
        engine=False,
    ),
    _histogram("request_prompt_tokens", "Number of prefill tokens processed."),
    _histogram("request_generation_tokens", "Number of generation tokens processed."),
    _histogram("iteration_tokens_total", "Histogram of number of tokens per engine_step."),
    _histogram("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens."),
    _histogram("request_params_n", "Histogram of the n request parameter."),
    _histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter."),
    _histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds."),
    _histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds."),
    _histogram("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request."),
    _histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds."),
    _histogram("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request."),
    _histogram("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request."),
    _histogram("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request."),
    _histogram("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request."),
    _histogram("request_num_preemptions", "Histogram of the number of times a request was preempted."),
    _histogram(
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
    ),
)


def speculative(spec_tokens: int) -> tuple[Family, ...]:
    """The families that come first on the page of an engine that drafts `spec_tokens` tokens; none for 0."""
    if not spec_tokens:
        return ()
    positions = " ".join(str(position) for position in range(spec_tokens))
    return (
        _one("spec_decode_num_drafts", "counter", "Number of spec decoding drafts."),
        _one("spec_decode_num_draft_tokens", "counter", "Number of draft tokens."),
        _one("spec_decode_num_accepted_tokens", "counter", "Number of accepted tokens."),
        _by(
            "spec_decode_num_accepted_tokens_per_pos",
            "counter",
            "Accepted tokens per draft position.",
            "position",
            positions,
        ),
    )


HTTP_TOTAL = "Total number of requests by method, status and handler."
HTTP_FINE = "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. "
HTTP_COARSE = "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. "

CACHE_CONFIG: dict[str, str] = {
    "_block_size_resolved": "True",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "gpu_memory_utilization": "0.92",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks_override": "None",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "False",
}
