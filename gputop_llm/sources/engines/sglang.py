"""SGLang's /metrics (0.3 to 0.5), and its processes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputop_llm.model import EngineReading, EngineSeries
from gputop_llm.sources.engines.gather import (
    ENDS,
    Draft,
    Key,
    Names,
    Rows,
    counter,
    doubts_note,
    gather,
    missing,
    order,
)
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, is_python, options_of, program_of, text_of
from gputop_llm.sources.promtext import Labels, Samples

NAME = "sglang"
DEFAULT_PORT = 30000

REALTIME = "sglang:realtime_tokens_total"
STAGES = "sglang:per_stage_req_latency_seconds"
_STAGE = {"prefill_forward": "sglang:stage_prefill", "decode_forward": "sglang:stage_decode"}
_MODES = {"prefill_compute": "prompt_tokens_computed", "prefill_cache": "prompt_tokens_cached"}

# Not read, each for a reason: `utilization` stands at 0 or -1; `gen_throughput` stays at its last value when idle;
# `cache_hit_rate` is overwritten by each prefill batch and reset by decoding; `fwd_occupancy` is NaN when idle.
NAMES = Names(
    values={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        # A share of 1; what could be evicted counts as free.
        "kv_usage": ("sglang:token_usage",),
        "prompt_tokens": counter("sglang:prompt_tokens"),
        "generation_tokens": counter("sglang:generation_tokens"),
        # It throws a running request back into the queue, as vLLM's preemption does.
        # 0.5.6 and 0.5.7 have only a histogram of them, by request, as it ends.
        "preemptions": (
            *counter("sglang:num_retracted_requests"),
            "sglang:total_retracted_reqs",
            "sglang:num_retractions_sum",
        ),
        "finished:done": counter("sglang:num_requests"),
        "finished:abort": counter("sglang:num_aborted_requests"),
        "cached_at_end": counter("sglang:cached_tokens"),
        "pool_tokens": ("sglang:max_total_num_tokens",),
    },
    labelled=(("mode:", (REALTIME,), "mode"),),
    histograms={
        "ttft": ("sglang:time_to_first_token_seconds",),
        # The interval divided by its new tokens: per token also with speculative decoding.
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "tpot": ("sglang:request_time_per_output_token_seconds",),
        "queue": ("sglang:queue_time_seconds", "sglang:queue_time_s"),
        "prefill": ("sglang:stage_prefill",),
        "decode": ("sglang:stage_decode",),
        "e2e": ("sglang:e2e_request_latency_seconds",),
    },
    doubts={"kv_usage": "kv_usage_pct", "mode:": "generation_tokens"},
    adds=("is_streaming", "cache_source"),
)

_AT_END = "SGLang counts {} when a request ends (0.5.8 and newer also while they run)"
_NO_STEPS = "SGLang does not count its steps"
_WHY = {
    "waiting_by_reason": "SGLang does not say why a request waits",
    "prompt_computed_tokens_per_s": "SGLang before 0.5.8 does not count computed prompt tokens apart",
    "prompt_cached_tokens_per_s": "SGLang before 0.5.8 does not count cached prompt tokens while it runs",
    "steps_per_s": _NO_STEPS,
    "tokens_per_step": _NO_STEPS,
    "preemptions_per_s": "this SGLang does not count retracted requests (its name for preemption)",
    "prefix_hit_pct": "this SGLang does not count cached prompt tokens, and its hit rate is that of one batch only",
    "prefix_hit_lifetime_pct": "this SGLang does not count cached prompt tokens",
    "mean_prompt_tokens": "SGLang has no histogram of prompt lengths by default",
    "mean_generation_tokens": "SGLang has no histogram of answer lengths by default",
    "tpot": "needs SGLang 0.5.23 or newer",
    "queue": "needs SGLang 0.5.2 or newer",
    "prefill": "needs SGLang 0.5.4 or newer",
    "decode": "needs SGLang 0.5.4 or newer",
    "requests_per_s": "this SGLang does not count requests",
    "finished_per_s": "this SGLang does not count requests",
    "spec": "SGLang tells speculative decoding as averages of its last batches only",
    "lora": "SGLang does not name adapters on its page",
    "cache_config": "needs SGLang 0.5.6 or newer",
}
# Once idle it writes its gauges every 30 s, and before that they tell of the last batch; newer ones write them at once
# (sgl-project/sglang pulls 26495, 31517).
_GAUGES_LAG_S = 30.0
_NOT_YET = "not on the page yet: SGLang shows a series only after its first observation"


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set."""
    rows = _leaders(samples.needed)
    drafts = gather(rows, NAMES, _key)
    live = bool(rows.get(REALTIME))
    ranks = {key for key in drafts if key[1] is not None}
    pools = {draft.values.pop("pool_tokens") for draft in drafts.values() if "pool_tokens" in draft.values}
    # Of each rank; where they differ there is none for all.
    config = {"kv_cache_size_tokens": f"{pools.pop():.0f}"} if len(pools) == 1 else {}
    series = []
    for key, draft in sorted(drafts.items(), key=order):
        shared = key[1] is None and any(rank[0] == key[0] for rank in ranks)
        series.append(_series(key, draft, live, shared))
    reasons = missing(series, _WHY, _NOT_YET, ["cache_config"] if config else [])
    if not live:
        reasons["prompt_tokens_per_s"] = _AT_END.format("prompt tokens")
        reasons["generation_tokens_per_s"] = _AT_END.format("generated tokens")
    if not any("finished:abort" in one.counters for one in series):
        reasons["failures"] = "this SGLang does not count requests that failed"
    return EngineReading(
        engine=NAME,
        series=tuple(series),
        version=version,
        cache_config=config,
        notes=doubts_note(series),
        missing=reasons,
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=("prompt_tokens_computed", "itl_observations", *(("generation_tokens",) if live else ())),
        gauges_lag_s=_GAUGES_LAG_S,
    )


def _key(labels: Labels) -> Key:
    return labels.get("model_name"), labels.get("dp_rank")


def _leaders(rows: Rows) -> Rows:
    """The rows of each rank's first scheduler, without those of single priorities; stages under names of their own.

    All schedulers of a rank tell the same (--enable-metrics-for-all-schedulers), and the row without a priority is
    the sum of those with one.
    """
    lead: dict[str | None, tuple[int, ...]] = {}
    for found in rows.values():
        for labels, _ in found:
            if "tp_rank" in labels:
                place = _place(labels)
                lead[labels.get("dp_rank")] = min(place, lead.get(labels.get("dp_rank"), place))
    kept: dict[str, list[tuple[Labels, float]]] = {}
    for name, found in rows.items():
        for labels, value in found:
            if labels.get("priority") or ("tp_rank" in labels and _place(labels) != lead[labels.get("dp_rank")]):
                continue
            if name.startswith(STAGES):
                if (stage := _STAGE.get(labels.get("stage", ""))) is not None:
                    kept.setdefault(stage + name.removeprefix(STAGES), []).append((labels, value))
            else:
                kept.setdefault(name, []).append((labels, value))
    return kept


def _place(labels: Labels) -> tuple[int, ...]:
    texts = [labels.get(name, "0") for name in ("pp_rank", "tp_rank", "moe_ep_rank")]
    return tuple(int(text) if text.isdecimal() else 0 for text in texts)


def _series(key: Key, draft: Draft, live: bool, shared: bool) -> EngineSeries:
    values = draft.values
    cached_at_end = values.pop("cached_at_end", None)
    if live:
        # What is counted at the end of a request would count the same tokens again.
        values.pop("prompt_tokens", None), values.pop("generation_tokens", None)
        _realtime(values)
    elif cached_at_end is not None and "prompt_tokens" in values:
        values["prefix_hits"], values["prefix_queries"] = cached_at_end, values["prompt_tokens"]
    if "itl" in draft.histograms:
        values["itl_observations"] = draft.histograms["itl"].counts[-1]
    return draft.series(key, shared=shared)


def _realtime(values: dict[str, float]) -> None:
    modes = {name: values.pop(name) for name in list(values) if name.startswith("mode:")}
    if "mode:decode" in modes:
        values["generation_tokens"] = modes["mode:decode"]
    for mode, name in _MODES.items():
        if f"mode:{mode}" in modes:
            values[name] = modes[f"mode:{mode}"]
    if "prompt_tokens_computed" in values:
        computed, cached = values["prompt_tokens_computed"], values.setdefault("prompt_tokens_cached", 0.0)
        values["prompt_tokens"] = computed + cached
        values["prefix_queries"], values["prefix_hits"] = computed + cached, cached


# -- its processes ------------------------------------------------------------------

_FILE = "sglang/launch_server.py"
_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_TITLE = re.compile(r"sglang::(?P<kind>[a-z_]+?)(?P<ranks>(?:_(?:DP|PP|TP|EP|MOE_EP|ATTN_\w+?)\d+)*)(?::\S*)?\s*$")
_ROLES = {
    "scheduler": "worker",
    "data_parallel_controller": "coordinator",
    "tokenizer_worker": "api-server",
}


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The server that a command line starts; None if it is none of SGLang's."""
    program, arguments = program_of(argv)
    if program == "sglang" and arguments[:1] == ["serve"]:
        arguments = arguments[1:]
    elif program not in _MODULES and not (is_python(argv) and argv[1:2] and argv[1].endswith(_FILE)):
        return None
    options, _ = options_of(arguments)
    config = text_of(options, "--config")
    off = "--enable-metrics" not in options and config is None
    copies = count_of(options, "--data-parallel-size", "--dp-size", "--dp")
    notes = ["its metrics are off: SGLang has a /metrics only with --enable-metrics"] if off else []
    if copies > 1:
        # Then all schedulers write one series, and the last one is what is seen (sgl-project/sglang pull 7645).
        notes.append(
            f"{copies} data-parallel ranks: where its page names none (older SGLang), load and KV cache are those "
            "of one rank, not of the engine"
        )
    return Launch(
        model=text_of(options, "--served-model-name", "--model-path", "--model"),
        host=text_of(options, "--host"),
        port=count_of(options, "--port", none=0 if config else DEFAULT_PORT) or None,
        https="--ssl-certfile" in options,
        config_file=config,
        tensor_parallel=count_of(options, "--tensor-parallel-size", "--tp-size", "--tp"),
        pipeline_parallel=count_of(options, "--pipeline-parallel-size", "--pp-size"),
        notes=tuple(notes),
    )


def read_role(title: str, _argv: Sequence[str]) -> tuple[str, str | None] | None:
    """Role and rank by the title, such as sglang::scheduler_DP1_TP0."""
    found = _TITLE.match(title)
    if found is None:
        return None
    # Of a zombie only 15 bytes are left.
    role = next((role for kind, role in _ROLES.items() if kind.startswith(found["kind"])), "other")
    return role, found["ranks"].lstrip("_") or None


ENGINE = Engine(
    name=NAME,
    prefixes=("sglang:",),
    needed=frozenset({name for name in NAMES.needed if "sglang:stage_" not in name} | {STAGES + end for end in ENDS}),
    read=read,
    nothing="none of those that tell its load",
    version_paths=("/get_server_info", "/server_info"),
    launch=read_launch,
    role=read_role,
    packages=("sglang",),
)
