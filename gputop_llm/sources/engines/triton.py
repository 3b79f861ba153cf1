"""TensorRT-LLM inside Triton: its block on Triton's metrics page (port 8002), and tritonserver's processes."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import EngineReading
from gputop_llm.sources.engines.gather import Key, Names, doubts_note, gather, missing, order
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, options_of, program_of, text_of
from gputop_llm.sources.promtext import Labels, Samples

NAME = "triton"
DEFAULT_PORT = 8002

_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_GENERAL = "nv_trt_llm_general_metrics"
# Triton's own counts are of every model that it has, also of tokenizers: only those of a model with a block count.
NAMES = Names(
    values={
        "finished:done": ("nv_inference_request_success",),
        "finished:error": ("nv_inference_request_failure",),
    },
    labelled=(
        ("request:", (_REQUESTS,), "request_type"),
        ("block:", (_BLOCKS,), "kv_cache_block_type"),
        ("general:", (_GENERAL,), "general_type"),
    ),
    adds=("reason",),
)
# By how many points the share may differ from used ÷ max before it is doubted.
_AGREE_PCT = 1.0

_NO_TOKENS = "Triton does not count tokens of a TensorRT-LLM model"
_NO_REQUESTS = "this page has no counts of requests (nv_inference_request_success)"
_NOT_THERE = "not in the TensorRT-LLM block of this page"
_NO_TIMES = "Triton has no latency histograms of a TensorRT-LLM model"
_WHY = {
    "waiting_by_reason": "Triton does not say why a request waits",
    "requests_per_s": _NO_REQUESTS,
    "finished_per_s": _NO_REQUESTS,
    "steps_per_s": "this Triton does not count iterations",
    "running": _NOT_THERE,
    "waiting": _NOT_THERE,
    "kv_usage_pct": _NOT_THERE,
    "preemptions_per_s": "Triton does not count paused requests",
    "prefix_hit_pct": "Triton does not count reused KV-cache blocks",
    "prefix_hit_lifetime_pct": "Triton does not count reused KV-cache blocks",
    "spec": "Triton does not count draft tokens",
    "lora": "Triton does not name adapters on its page",
    "cache_config": "Triton does not tell it on its page",
    **dict.fromkeys(("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"), _NO_TIMES),
}


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set."""
    drafts = gather(samples.needed, NAMES, _key)
    series = []
    for key, draft in sorted(drafts.items(), key=order):
        values = draft.values
        found = {name: values.pop(name) for name in list(values) if name.partition(":")[0] in _LABELS}
        if not found:
            continue
        # Scheduled ones are in the batch of the last iteration; without that, active ones.
        running = found.get("request:scheduled", found.get("request:active"))
        for name, value in (("running", running), ("waiting", found.get("request:waiting"))):
            if value is not None:
                values[name] = value
        if (steps := found.get("general:iteration_counter")) is not None:
            values["steps"] = steps
        share, used, most = (found.get(f"block:{kind}") for kind in ("fraction", "used", "max"))
        of_blocks = used / most if used is not None and most else None
        if share is not None and of_blocks is not None and 100.0 * abs(share - of_blocks) > _AGREE_PCT:
            draft.doubtful.add("kv_usage_pct")
            share = max(share, of_blocks)
        usage = share if share is not None else of_blocks
        if usage is not None:
            values["kv_usage"] = usage
        series.append(draft.series(key))
    return EngineReading(
        engine=NAME,
        series=tuple(series),
        version=version,
        notes=doubts_note(series),
        missing=missing(series, _WHY, _NO_TOKENS),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=("steps",),
    )


_LABELS = ("request", "block", "general")


def _key(labels: Labels) -> Key:
    return labels.get("model"), None


# -- its processes ------------------------------------------------------------------


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The tritonserver that a command line starts; its port is that of its metrics."""
    program, arguments = program_of(argv)
    if program != "tritonserver":
        return None
    options, _ = options_of(arguments)
    off = (text_of(options, "--allow-metrics") or "").lower() in ("false", "0")
    return Launch(
        host=text_of(options, "--metrics-address", "--http-address"),
        port=count_of(options, "--metrics-port", none=DEFAULT_PORT),
        no_http="its metrics are off (--allow-metrics)" if off else None,
    )


def read_role(title: str, argv: Sequence[str]) -> tuple[str, str | None] | None:
    """In orchestrator mode an executor of its own computes."""
    program = program_of(argv)[0] or title
    return ("worker", None) if program in ("trtllmExecutorWorker", "executorWorker") else None


ENGINE = Engine(
    name=NAME,
    prefixes=("nv_trt_llm_",),
    needed=NAMES.needed,
    read=read,
    nothing="none of those that tell its load",
    launch=read_launch,
    role=read_role,
)
