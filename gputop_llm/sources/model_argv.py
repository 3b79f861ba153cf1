"""Which model a server's command line names, and how it is split over GPUs. Pure functions; vLLM and SGLang."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gputop_llm.modelmath import Parallel
from gputop_llm.sources import vllm_argv
from gputop_llm.sources.launch import options_of

_SGLANG_MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
_MAX_GPUS = 100_000

_Options = Mapping[str, list[str]]


@dataclass(frozen=True, slots=True)
class ModelLaunch:
    """What a command line says of the model.

    Args:
        model: a path or the name on a hub.
        config_from: the path or name whose config.json is used instead.
        parallel: None where it can't be told; then `problem` says why.
        problem: why the rest of the command line is not enough, None when it is.
        notes: what the command line changes and is not worked out here.
    """

    model: str | None = None
    config_from: str | None = None
    revision: str | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    parallel: Parallel | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()


def read_model_launch(engine: str, argv: Sequence[str]) -> ModelLaunch:
    """What the command line of an engine ("vllm", "sglang") says of its model."""
    if not argv:
        return ModelLaunch(problem="its command line is not known")
    if engine not in ("vllm", "sglang"):
        return ModelLaunch(problem=f"a command line of {engine} is not read for its model")
    found = _sglang(argv) if engine == "sglang" else vllm_argv.server_options(argv)
    if found is None:
        return ModelLaunch(problem="it was started by a program of its own, which does not tell the model")
    options, words = found
    launch = ModelLaunch(
        model=words[0] if words and engine != "sglang" else _first(options, "--model", "--model-path"),
        config_from=_first(options, "--hf-config-path"),
        revision=_first(options, "--revision"),
        dtype=_first(options, "--dtype"),
        quantization=_first(options, "--quantization", "-q"),
        kv_dtype=_first(options, "--kv-cache-dtype"),
        notes=_notes(options),
    )
    problem = _problem(options)
    if problem is not None:
        return replace(launch, problem=problem)
    try:
        parallel = _sglang_parallel(options) if engine == "sglang" else _vllm_parallel(options)
    except ValueError:
        return replace(launch, problem="how it is split over GPUs can't be read from its command line")
    if launch.model is None:
        return replace(launch, parallel=parallel, problem="its command line does not name the model")
    return replace(launch, parallel=parallel)


def _sglang(argv: Sequence[str]) -> tuple[dict[str, list[str]], list[str]] | None:
    for position, word in enumerate(argv[:12]):
        if word in _SGLANG_MODULES or word.endswith("sglang/launch_server.py"):
            return options_of(argv[position + 1 :])
        if word == "serve" and position and argv[position - 1].rpartition("/")[2] == "sglang":
            return options_of(argv[position + 1 :])
    return None


def _vllm_parallel(options: _Options) -> Parallel:
    """Experts are spread over all tensor-parallel GPUs of all data-parallel ranks, whole ones or slices of each."""
    tp, dp = _count(options, "--tensor-parallel-size"), _count(options, "--data-parallel-size")
    return Parallel(tp, _count(options, "--pipeline-parallel-size"), dp, tp * dp)


def _sglang_parallel(options: _Options) -> Parallel:
    """With data-parallel attention the ranks share the tensor-parallel GPUs; else each has as many of its own."""
    tp = _count(options, "--tp-size", "--tp", "--tensor-parallel-size")
    dp = _count(options, "--dp-size", "--dp", "--data-parallel-size")
    pp = _count(options, "--pp-size", "--pp", "--pipeline-parallel-size")
    if "--enable-dp-attention" not in options:
        return Parallel(tp, pp, dp, tp)
    if tp % dp:
        raise ValueError("ranks do not divide the GPUs")
    return Parallel(tp // dp, pp, dp, tp)


def _problem(options: _Options) -> str | None:
    if "--config" in options:
        return "it was started with a file of settings (--config), which is not read"
    for name in ("--cpu-offload-gb", "--offload-group-size"):
        if (_first(options, name) or "0") not in ("0", "0.0"):
            return f"a part of its weights is in the host's memory ({name})"
    for name in ("--decode-context-parallel-size", "-dcp", "--prefill-context-parallel-size", "-pcp"):
        if (_first(options, name) or "1") != "1":
            return f"a split by context ({name}) is not worked out here"
    return None


def _notes(options: _Options) -> tuple[str, ...]:
    notes = []
    for name in ("--hf-overrides", "--json-model-override-args"):
        if name in options:
            notes.append(f"{name} may change the model and is not applied")
    if any(name.startswith(("--speculative-config", "--speculative-draft", "-sc")) for name in options):
        notes.append("a draft model's own weights are not counted")
    return tuple(notes)


def _first(options: _Options, *names: str) -> str | None:
    return next((options[name][0] for name in names if options.get(name)), None)


def _count(options: _Options, *names: str) -> int:
    count = int(_first(options, *names) or 1)
    if not 1 <= count <= _MAX_GPUS:
        raise ValueError("not a number of GPUs")
    return count
