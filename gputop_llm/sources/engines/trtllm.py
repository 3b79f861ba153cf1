"""TensorRT-LLM's own server, trtllm-serve: Prometheus text, iteration statistics as JSON, and its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gputop_llm.model import EngineReading, EngineSeries
from gputop_llm.sources.engines.gather import Key, Names, counter, doubts_note, gather, missing, order
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.launch import Launch, count_of, last_name, options_of, program_of, text_of
from gputop_llm.sources.promtext import Labels, Samples

NAME = "trtllm"
DEFAULT_PORT = 8000


def _metric(*names: str) -> tuple[str, ...]:
    """1.1 and older have no prefix."""
    return tuple(prefix + name for name in names for prefix in ("trtllm_", ""))


NAMES = Names(
    values={
        "running": ("trtllm_num_requests_running",),
        "waiting": ("trtllm_num_requests_waiting",),
        # A share of 1.
        "kv_usage": ("trtllm_kv_cache_utilization",),
        "prompt_tokens": counter("trtllm_prompt_tokens"),
        "prompt_tokens_cached": counter("trtllm_prompt_cached_tokens"),
        "generation_tokens": counter("trtllm_generation_tokens"),
        # In blocks.
        "prefix_hits": counter("trtllm_kv_cache_reused_blocks"),
        "missed": counter("trtllm_kv_cache_missed_blocks"),
        "spec_draft_tokens": counter("trtllm_spec_decode_num_draft_tokens"),
        "spec_accepted_tokens": counter("trtllm_spec_decode_num_accepted_tokens"),
    },
    labelled=(
        ("finished:", _metric("request_success_total", "request_success"), "finished_reason"),
        ("http:", counter("trtllm_request_error"), "http_code"),
    ),
    histograms={
        "ttft": _metric("time_to_first_token_seconds"),
        # The mean of each request; nothing is observed token by token.
        "tpot": _metric("time_per_output_token_seconds"),
        "queue": _metric("request_queue_time_seconds"),
        "prefill": ("trtllm_request_prefill_time_seconds",),
        "decode": ("trtllm_request_decode_time_seconds",),
        "e2e": _metric("e2e_request_latency_seconds"),
    },
    doubts={"kv_usage": "kv_usage_pct"},
)

_AT_END = "TensorRT-LLM counts {} when a request ends"
_NO_LENGTHS = "TensorRT-LLM has no histogram of lengths"
_ITERATIONS = "needs enable_iter_perf_stats: true, and a TensorRT-LLM newer than 1.1"
_WHY = {
    "running": _ITERATIONS,
    "waiting": _ITERATIONS,
    "kv_usage_pct": _ITERATIONS,
    "waiting_by_reason": "TensorRT-LLM does not say why a request waits",
    "prompt_tokens_per_s": _AT_END.format("prompt tokens"),
    "prompt_computed_tokens_per_s": "TensorRT-LLM does not count computed prompt tokens apart",
    "prompt_cached_tokens_per_s": _AT_END.format("cached prompt tokens"),
    "generation_tokens_per_s": _AT_END.format("generated tokens"),
    "steps_per_s": "TensorRT-LLM's page has no count of iterations",
    "tokens_per_step": "TensorRT-LLM's page has no count of iterations",
    "preemptions_per_s": "TensorRT-LLM does not count paused requests",
    "mean_prompt_tokens": _NO_LENGTHS,
    "mean_generation_tokens": _NO_LENGTHS,
    "itl": "TensorRT-LLM measures the time per token as a mean of each request (TPOT)",
    "spec": "speculative decoding is off, or iteration statistics are",
    "lora": "TensorRT-LLM does not name adapters on its page",
    "cache_config": "TensorRT-LLM does not tell it on its page",
}
_FAILURES = "TensorRT-LLM counts failed requests as answers by HTTP status only"
_NOT_YET = "not on the page yet: TensorRT-LLM shows a series only after its first observation"
# Counted as requests end, so that no rate can be made of them.
_NO_RATES = ("prompt_tokens_per_s", "prompt_cached_tokens_per_s", "generation_tokens_per_s")


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page of /prometheus/metrics as a reading; `problem` is never set."""
    drafts = gather(samples.needed, NAMES, _key)
    http: dict[str, float] = {}
    series = []
    for key, draft in sorted(drafts.items(), key=order):
        values = draft.values
        for name in [name for name in values if name.startswith("http:")]:
            status = f"{name[5:6]}xx"
            http[status] = http.get(status, 0.0) + values.pop(name)
        missed = values.pop("missed", None)
        if missed is not None or "prefix_hits" in values:
            values["prefix_queries"] = values.setdefault("prefix_hits", 0.0) + (missed or 0.0)
        series.append(draft.series(key))
    finished = sum(value for one in series for name, value in one.counters.items() if name.startswith("finished:"))
    return EngineReading(
        engine=NAME,
        series=tuple(series),
        version=version,
        notes=doubts_note(series),
        missing={
            **missing(series, _WHY, _NOT_YET),
            **{name: _WHY[name] for name in _NO_RATES},
            "failures": _FAILURES,
        },
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        # Errors alone would be a share of errors only.
        http={**http, "2xx": finished} if http else {},
    )


def _key(labels: Labels) -> Key:
    model = labels.get("model_name")
    return (None if model == "undefined" else model), None


# Beyond it a number of JSON may be none of Python's floats.
_LARGEST = 1e300

# -- iteration statistics: /metrics where there is no Prometheus page -------------------

_STOLEN = (
    "the iteration statistics are empty: nothing ran since the last poll, or another reader (perhaps the server's "
    "own collector) took them; return_perf_metrics: true gives a page that can be shared"
)
_NOTE = (
    "this page hands each iteration out once: what is read here is lacking elsewhere; return_perf_metrics: true gives "
    "a page (/prometheus/metrics) that can be shared, and is then read instead"
)
_NOT_IN_JSON = "the iteration statistics (JSON) do not tell it; return_perf_metrics: true gives a page that does"


def read_json(page: object) -> EngineReading:
    """The newest of a list of iterations as a reading.

    Raises:
        ValueError: it is no such list.
    """
    if not isinstance(page, list) or not all(isinstance(item, dict) for item in page):
        raise ValueError("no list of iterations")
    if page and "numActiveRequests" not in page[-1] and "iter" not in page[-1]:
        raise ValueError("no iterations of TensorRT-LLM")
    newest: Mapping[str, object] = page[-1] if page else {}
    kv = newest.get("kvCacheStats")
    kv = kv if isinstance(kv, dict) else {}
    used, most = _number(kv.get("usedNumBlocks")), _number(kv.get("maxNumBlocks"))
    counters = {}
    if (steps := _number(newest.get("iter"))) is not None:
        counters["steps"] = steps
    reused, missed = _number(kv.get("reusedBlocks")), _number(kv.get("missedBlocks"))
    if reused is not None and missed is not None:
        counters["prefix_hits"], counters["prefix_queries"] = reused, reused + missed
    one = EngineSeries(
        None,
        None,
        running=_number(newest.get("numActiveRequests")),
        waiting=_number(newest.get("numQueuedRequests")),
        kv_usage_pct=100.0 * used / most if used is not None and most else None,
        counters=counters,
    )
    reasons = missing((one,), {}, _NOT_IN_JSON if page else _STOLEN)
    return EngineReading(
        engine=NAME,
        series=(one,),
        notes=(_NOTE,),
        # For up to two seconds.
        held_back=True,
        missing={**reasons, "failures": _NOT_IN_JSON},
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _LARGEST:
        return None
    return float(value)


# -- its processes ------------------------------------------------------------------

# Its subcommands that serve no model of their own.
_OTHERS = ("disaggregated", "disaggregated_mpi_worker")
# Under mpirun this script starts the server and, beside it, a process for each rank.
_LAUNCHER = "trtllm-llmapi-launch"
_RANKS = ("mpi4py.futures", "tensorrt_llm.llmapi.mgmn_")


def read_launch(argv: Sequence[str]) -> Launch | None:
    """The server that a command line starts; None if it is no trtllm-serve, or an mpirun of its launcher."""
    program, arguments = program_of(argv)
    launchers = [at for at, word in enumerate(arguments) if last_name(word) == _LAUNCHER]
    by_mpi = program in ("mpirun", "mpiexec") and bool(launchers)
    if by_mpi:
        program, arguments = program_of(arguments[launchers[0] + 1 :])
    if program != "trtllm-serve" or (arguments and arguments[0] in _OTHERS):
        return None
    options, words = options_of(arguments[1:] if arguments[:1] == ["serve"] else arguments)
    return Launch(
        model=words[0] if words else text_of(options, "--model"),
        host=text_of(options, "--host"),
        port=count_of(options, "--port", none=DEFAULT_PORT),
        tensor_parallel=count_of(options, "--tp-size"),
        pipeline_parallel=count_of(options, "--pp-size"),
        root_serves=not by_mpi,
    )


def read_role(_title: str, argv: Sequence[str]) -> tuple[str, str | None] | None:
    """A process of the MPI pool, or that the launcher started, is a rank."""
    program = program_of(argv)[0]
    if program == "trtllm-serve":
        return "api-server", None
    return ("worker", None) if program.startswith(_RANKS) else None


ENGINE = Engine(
    name=NAME,
    prefixes=("trtllm_", "time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"),
    needed=NAMES.needed,
    read=read,
    read_json=read_json,
    nothing="none of those that tell its load",
    version_paths=("/version",),
    launch=read_launch,
    role=read_role,
    packages=("tensorrt_llm",),
)
