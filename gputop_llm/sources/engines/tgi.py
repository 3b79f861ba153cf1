"""Text Generation Inference: its router's /metrics, and its processes."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import EngineReading
from gputop_llm.sources.engines.gather import ENDS, Names, Rows, doubts_note, gather, missing
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, options_of, program_of, text_of
from gputop_llm.sources.promtext import Labels, Samples

NAME = "tgi"
DEFAULT_PORT = 3000

_BATCH = "tgi_batch_inference_duration"
_REFUSED = "overloaded"

# Its counters have no "_total", and its histograms of lengths tell tokens by their sums.
NAMES = Names(
    values={
        "running": ("tgi_batch_current_size",),
        "waiting": ("tgi_queue_size",),
        "prompt_tokens": ("tgi_request_input_length_sum",),
        "generation_tokens": ("tgi_request_generated_tokens_sum",),
        "finished:done": ("tgi_request_success",),
    },
    labelled=(
        ("failed:", ("tgi_request_failure",), "err"),
        ("batches:", ("tgi_batch_inference_success",), "method"),
    ),
    histograms={
        "tpot": ("tgi_request_mean_time_per_token_duration",),
        "queue": ("tgi_request_queue_duration",),
        # One observation per batch, not per request.
        "prefill": ("tgi_batch_prefill",),
        "e2e": ("tgi_request_duration",),
        "request_prompt_tokens": ("tgi_request_input_length",),
        "request_generation_tokens": ("tgi_request_generated_tokens",),
    },
)

_WHY = {
    "waiting_by_reason": "TGI does not say why a request waits",
    "kv_usage_pct": "TGI does not tell how full its KV cache is",
    "prompt_computed_tokens_per_s": "TGI does not count computed prompt tokens apart",
    "prompt_cached_tokens_per_s": "TGI does not count cached prompt tokens",
    "tokens_per_step": "TGI does not count the tokens of a batch",
    "preemptions_per_s": "TGI does not preempt",
    "prefix_hit_pct": "TGI does not count prefix-cache hits",
    "prefix_hit_lifetime_pct": "TGI does not count prefix-cache hits",
    "ttft": "TGI does not measure the first token: see queue and prefill (per batch)",
    "itl": "TGI measures the time per token as a mean of each request (TPOT)",
    "decode": "TGI does not measure a request's decode time apart",
    "spec": "TGI does not count draft tokens",
    "lora": "TGI does not name adapters on its page",
    "cache_config": "TGI does not tell it on its page",
}
_NOT_YET = "not on the page yet: TGI shows a series only after its first observation"


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set."""
    draft = gather(_prefill_apart(samples.needed), NAMES, lambda _: (None, None))[None, None]
    values = draft.values
    failed = {name: values.pop(name) for name in list(values) if name.startswith("failed:")}
    if failed:
        values["finished:rejected"] = failed.pop(f"failed:{_REFUSED}", 0.0)
        values["finished:error"] = sum(failed.values())
    batches = [values.pop(name) for name in list(values) if name.startswith("batches:")]
    if batches:
        values["steps"] = sum(batches)
    series = (draft.series((None, None)),)
    reasons = missing(series, _WHY, _NOT_YET)
    reasons["prompt_tokens_per_s"] = "TGI counts prompt tokens when a request comes, not as they are computed"
    reasons["generation_tokens_per_s"] = "TGI counts generated tokens when a request ends"
    return EngineReading(
        engine=NAME,
        series=series,
        version=version,
        notes=doubts_note(series),
        missing=reasons,
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        # Batches that were computed: one for each step.
        progress=("steps",),
    )


def _prefill_apart(rows: Rows) -> Rows:
    """The rows with those of the prefill batches under a name of their own."""
    kept: dict[str, Sequence[tuple[Labels, float]]] = {}
    for name, found in rows.items():
        if name.startswith(_BATCH):
            prefills = [(labels, value) for labels, value in found if labels.get("method") == "prefill"]
            kept[name.replace(_BATCH, "tgi_batch_prefill")] = prefills
        else:
            kept[name] = found
    return kept


# -- its processes ------------------------------------------------------------------


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The launcher, or the router that it starts: which alone knows a port that came from the environment."""
    program, arguments = program_of(argv)
    if program not in ("text-generation-launcher", "text-generation-router"):
        return None
    options, _ = options_of(arguments)
    return Launch(
        model=text_of(options, "--model-id", "--tokenizer-name"),
        # The launcher's --hostname is a name for the node, not an address to bind.
        port=count_of(options, "--port", "-p", none=DEFAULT_PORT),
        root_serves=program == "text-generation-router",
    )


def read_role(_title: str, argv: Sequence[str]) -> tuple[str, str | None] | None:
    """The router serves; a Python process with text-generation-server in it is a shard."""
    program, arguments = program_of(argv)
    if program == "text-generation-router":
        return "api-server", None
    if program in ("text-generation-server", "text_generation_server.cli") and arguments[:1] == ["serve"]:
        return "worker", None
    return None


ENGINE = Engine(
    name=NAME,
    prefixes=("tgi_",),
    needed=frozenset({name for name in NAMES.needed if "tgi_batch_prefill" not in name} | {_BATCH + e for e in ENDS}),
    read=read,
    nothing="none of those that tell its load",
    version_paths=("/info",),
    launch=read_launch,
    role=read_role,
    packages=("text_generation_server",),
)
