"""llama.cpp's llama-server: its /metrics, and its process."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gputop_llm.model import EngineReading, Histogram
from gputop_llm.sources.engines.gather import Names, counter, doubts_note, gather, missing
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, options_of, program_of, text_of
from gputop_llm.sources.promtext import Samples

NAME = "llamacpp"
DEFAULT_PORT = 8080

# Not read, each for a reason: `prompt_tokens_seconds` and `predicted_tokens_seconds` are averages since the last
# scrape, whoever's it was, and 0 when nothing ended; `n_busy_slots_per_decode` is an average of the whole life;
# `n_tokens_max` is a high-water mark.
NAMES = Names(
    values={
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        # Until 2025.
        "kv_usage": ("llamacpp:kv_cache_usage_ratio",),
        # Without cached ones.
        "prompt_tokens_computed": counter("llamacpp:prompt_tokens"),
        "prompt_tokens_cached": counter("llamacpp:prompt_tokens_cached"),
        "generation_tokens": counter("llamacpp:tokens_predicted"),
        "generation_seconds": counter("llamacpp:tokens_predicted_seconds"),
        "steps": counter("llamacpp:n_decode"),
        "spec_drafts": counter("llamacpp:spec_decode_num_drafts"),
        "spec_draft_tokens": counter("llamacpp:spec_decode_num_draft_tokens"),
        "spec_accepted_tokens": counter("llamacpp:spec_decode_num_accepted_tokens"),
    },
    labelled=(("spec_accepted_at:", counter("llamacpp:spec_decode_num_accepted_tokens_per_pos"), "position"),),
    doubts={"kv_usage": "kv_usage_pct", "generation_seconds": "itl"},
)

_NO_TIMES = "llama.cpp does not measure it"
_NO_REQUESTS = "llama.cpp does not count requests"
_OLD = "this llama.cpp does not count cached prompt tokens"
_WHY = {
    "waiting_by_reason": "llama.cpp does not say why a request waits",
    "kv_usage_pct": "llama.cpp no longer tells it (since 2025)",
    "requests_per_s": _NO_REQUESTS,
    "finished_per_s": _NO_REQUESTS,
    "prompt_tokens_per_s": _OLD,
    "prompt_cached_tokens_per_s": _OLD,
    "prefix_hit_pct": _OLD,
    "prefix_hit_lifetime_pct": _OLD,
    "tokens_per_step": "llama.cpp tells its batch only as an average of its whole life",
    "preemptions_per_s": "llama.cpp does not preempt",
    "mean_prompt_tokens": _NO_REQUESTS,
    "mean_generation_tokens": _NO_REQUESTS,
    "spec": "speculative decoding is off",
    "lora": "llama.cpp does not name adapters on its page",
    "cache_config": "llama.cpp does not tell it on its page",
    **dict.fromkeys(("ttft", "tpot", "queue", "prefill", "decode", "e2e"), _NO_TIMES),
}
_NOT_THERE = "this llama.cpp's page does not have it"


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set.

    Its seconds of generation ÷ tokens make an ITL with a mean and no quantiles.
    """
    draft = gather(samples.needed, NAMES, lambda _: (None, None))[None, None]
    values = draft.values
    computed, cached = values.get("prompt_tokens_computed"), values.get("prompt_tokens_cached")
    if computed is not None and cached is not None:
        values["prompt_tokens"] = values["prefix_queries"] = computed + cached
        values["prefix_hits"] = cached
    total, tokens = values.pop("generation_seconds", None), values.get("generation_tokens")
    if total is not None and tokens is not None:
        draft.histograms["itl"] = Histogram((math.inf,), (tokens,), total)
    if not values.get("spec_draft_tokens"):
        # The counters are there, at 0, also without speculative decoding.
        for name in [name for name in values if name.startswith("spec_")]:
            del values[name]
    series = (draft.series((None, None)),)
    reasons = missing(series, _WHY, _NOT_THERE)
    reasons["generation_tokens_per_s"] = "llama.cpp counts generated tokens when a request ends"
    return EngineReading(
        engine=NAME,
        series=series,
        version=version,
        notes=doubts_note(series),
        missing=reasons,
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=("steps",),
    )


# -- its process --------------------------------------------------------------------


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The llama-server that a command line starts; without a model it is a router that starts one for each."""
    program, arguments = program_of(argv)
    if program != "llama-server":
        return None
    options, _ = options_of(arguments)
    model = text_of(options, "--alias", "-a", "--model", "-m", "--hf-repo", "-hf", "-hfr", "--model-url", "-mu")
    host = text_of(options, "--host")
    no_http = None
    if host is not None and host.endswith(".sock"):
        no_http = f"it listens on the Unix socket {host}, which is not read"
    elif model is None:
        no_http = "it is a router, whose models are servers (and targets) of their own"
    off = no_http is None and "--metrics" not in options
    return Launch(
        model=model,
        host=host,
        port=count_of(options, "--port", none=DEFAULT_PORT),
        # LLAMA_ARG_PORT may say another one, and newer releases announce 9931.
        port_assumed="--port" not in options,
        https="--ssl-cert-file" in options,
        no_http=no_http,
        notes=("its metrics may be off: llama-server has a /metrics only with --metrics",) if off else (),
        engine_in_root=True,
    )


ENGINE = Engine(
    name=NAME,
    prefixes=("llamacpp:",),
    needed=NAMES.needed,
    read=read,
    nothing="none of those that tell its load",
    version_paths=("/props",),
    version_field="build_info",
    launch=read_launch,
    nested=True,
)
