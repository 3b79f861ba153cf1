"""LMDeploy's /metrics, and its processes."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import EngineReading
from gputop_llm.sources.engines.gather import Key, Names, counter, doubts_note, gather, missing, order
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, options_of, program_of, text_of
from gputop_llm.sources.promtext import Labels, Samples

NAME = "lmdeploy"
DEFAULT_PORT = 23333


def _metric(name: str) -> tuple[str, ...]:
    return (f"lmdeploy:{name}",)


def _counter(name: str) -> tuple[str, ...]:
    return counter(f"lmdeploy:{name}")


NAMES = Names(
    values={
        "running": _metric("num_requests_running"),
        "waiting": _metric("num_requests_waiting"),
        # A share of 1 in spite of "perc".
        "kv_usage": _metric("gpu_cache_usage_perc"),
        "prompt_tokens": _counter("prompt_tokens"),
        "generation_tokens": _counter("generation_tokens"),
        # Gauges by their type, but they only count up.
        "finished:done": _metric("num_requests_succeeded"),
        "finished:error": _metric("num_requests_failed"),
        "spec_drafts": _counter("spec_decode_num_drafts"),
        "spec_draft_tokens": _counter("spec_decode_num_draft_tokens"),
        "spec_accepted_tokens": _counter("spec_decode_num_accepted_tokens"),
    },
    labelled=(("spec_accepted_at:", _counter("spec_decode_num_accepted_tokens_per_pos"), "position"),),
    histograms={
        "ttft": _metric("time_to_first_token_seconds"),
        # In seconds, though its name has no unit.
        "itl": _metric("iter_token_latency"),
        "tpot": _metric("time_per_output_token_seconds"),
        "queue": _metric("request_queue_time_seconds"),
        "prefill": _metric("request_prefill_time_seconds"),
        "decode": _metric("request_decode_time_seconds"),
        "e2e": _metric("e2e_request_latency_seconds"),
        "request_prompt_tokens": _metric("request_prompt_tokens"),
        "request_generation_tokens": _metric("request_generation_tokens"),
        # A histogram in spite of "_total": one observation per engine step.
        "iteration": _metric("iteration_tokens_total"),
    },
    doubts={"kv_usage": "kv_usage_pct", "iteration": "steps"},
)

_APART = "LMDeploy does not count computed and cached prompt tokens apart"
_HIT_RATE = "LMDeploy tells its prefix-cache hits as a share of its whole life only"
_WHY = {
    "waiting_by_reason": "LMDeploy does not say why a request waits",
    "prompt_computed_tokens_per_s": _APART,
    "prompt_cached_tokens_per_s": _APART,
    "tokens_per_step": _APART,
    "preemptions_per_s": "LMDeploy does not count preemptions",
    "prefix_hit_pct": _HIT_RATE,
    "prefix_hit_lifetime_pct": _HIT_RATE,
    "spec": "speculative decoding is off",
    "lora": "LMDeploy does not name adapters on its page",
    "cache_config": "LMDeploy does not tell it on its page",
}
_NOT_YET = "not on the page yet: LMDeploy shows a series only after its first observation"


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set."""
    drafts = gather(samples.needed, NAMES, _key)
    for draft in drafts.values():
        if (iterations := draft.histograms.pop("iteration", None)) is not None:
            draft.values["steps"] = iterations.counts[-1]
    series = tuple(draft.series(key) for key, draft in sorted(drafts.items(), key=order))
    return EngineReading(
        engine=NAME,
        series=series,
        version=version,
        notes=doubts_note(series),
        missing=missing(series, _WHY, _NOT_YET),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=("steps", "generation_tokens"),
    )


def _key(labels: Labels) -> Key:
    return labels.get("model_name"), labels.get("engine")


# -- its processes ------------------------------------------------------------------


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The server that a command line starts; None if it is none of LMDeploy's."""
    program, arguments = program_of(argv)
    if program not in ("lmdeploy", "lmdeploy.cli") or arguments[:2] != ["serve", "api_server"]:
        return None
    options, words = options_of(arguments[2:])
    return Launch(
        model=text_of(options, "--model-name") or (words[0] if words else None),
        host=text_of(options, "--server-name"),
        port=count_of(options, "--server-port", none=DEFAULT_PORT),
        https="--ssl" in options,
        no_http="its metrics are off (--disable-metrics)" if "--disable-metrics" in options else None,
        tensor_parallel=count_of(options, "--tp"),
        engine_in_root=True,
    )


def read_role(_title: str, argv: Sequence[str]) -> tuple[str, str | None] | None:
    """Processes that Python's multiprocessing spawned compute."""
    return ("worker", None) if "multiprocessing.spawn" in " ".join(argv[:6]) else None


ENGINE = Engine(
    name=NAME,
    prefixes=("lmdeploy:",),
    needed=NAMES.needed,
    read=read,
    nothing="none of those that tell its load",
    launch=read_launch,
    role=read_role,
    packages=("lmdeploy",),
)
