"""How close an engine is to its GPUs' limits: MBU while it decodes, MFU while it prefills. Pure.

MBU = (bytes of weights and KV that one step reads on one GPU) x steps/s / memory bandwidth of one GPU.
MFU = 2 x parameters x prompt tokens computed per second / (GPUs x peak of the data type).
What isn't known makes an estimate unknown, or a lower bound that says so; it is never guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gputop_llm import gpus
from gputop_llm.config import Config
from gputop_llm.model import EngineLive
from gputop_llm.model.limits import EngineLimits, LimitEstimate, LimitInput
from gputop_llm.modelmath import (
    ModelShape,
    Parallel,
    ServedModel,
    experts_touched,
    kv_bytes_per_token,
    kv_bytes_read,
    layers_per_block,
    stage_share,
    weight_bytes_per_step,
)
from gputop_llm.symptoms.peaks import Peaks, peak_source, peaks_of
from gputop_llm.symptoms.view import EngineView

MBU_FORMULA = "(weights + KV read per step on one GPU) × steps/s ÷ memory bandwidth of one GPU"
MFU_FORMULA = "2 × parameters × computed prompt tokens/s ÷ (GPUs × dense peak of the data type)"
# kv_cache_size_tokens is rounded down from the same blocks.
_SAME = 0.02

_KV_BYTES = {"float16": 2.0, "half": 2.0, "bfloat16": 2.0, "float32": 4.0, "fp8_inc": 1.0} | dict.fromkeys(
    ("fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head", "fp8_per_token_head"), 1.0
)
_NOT_READ = "the model's config.json has not been read yet"
_SAY = "--params and --bytes-per-param can say it"
_NO_PREFILL_ONLY = "vLLM counts no step that only prefills and gives no token: their reads are missing"
_IMPOSSIBLE = "more than the limit is not possible: one of the inputs does not fit"
_SHARED = "a prefix that several sequences share is counted once, and may be read once for each"


class _Unknown(Exception):
    """Why an estimate can't be made."""


@dataclass(slots=True)
class _Rank:
    """One data-parallel rank (or all there is), and how many there are on the page."""

    live: EngineLive
    ranks: int
    running: float | None
    kv_usage_pct: float | None
    label: str = ""


def estimate(engine: EngineView, served: ServedModel | None, config: Config) -> EngineLimits:
    """MBU and MFU of one engine at the newest frame.

    Args:
        served: the model that the engine serves; None while it isn't known yet.
        config: `params` and `bytes_per_param` win over the model's config.json.
    """
    known = served or ServedModel(problem=_NOT_READ)
    return EngineLimits(
        _or_unknown("MBU", MBU_FORMULA, engine, known, config), _or_unknown("MFU", MFU_FORMULA, engine, known, config)
    )


def _or_unknown(name: str, formula: str, engine: EngineView, served: ServedModel, config: Config) -> LimitEstimate:
    inputs: list[LimitInput] = []
    try:
        return (_mbu if name == "MBU" else _mfu)(engine, served, config, inputs)
    except _Unknown as reason:
        return LimitEstimate(name, formula, inputs=tuple(inputs), unknown=str(reason))


def _mbu(engine: EngineView, served: ServedModel, config: Config, inputs: list[LimitInput]) -> LimitEstimate:
    parallel = _split(served, inputs)
    peaks = _peaks(engine)
    rank = _rank(engine)
    page = f"{engine.kind} /metrics"
    sequences = max(1.0, (rank.running or 0.0) / parallel.pp)
    tokens = sequences * _tokens_per_sequence(rank.live)
    if rank.running is None and served.shape is not None and served.shape.experts is not None:
        raise _Unknown(rank.live.missing.get("running", "how many requests run is not known"))
    inputs.append(LimitInput(f"running requests{rank.label}", rank.running, "", page))
    weights = _weights(served, parallel, config, tokens, inputs)
    kv, kv_unknown = _kv(engine, served, parallel, rank, inputs)
    steps = rank.live.steps_per_s
    window = f", {rank.live.window_s:.0f} s" if rank.live.window_s else ""
    inputs.append(LimitInput(f"steps/s{rank.label}", steps, "/s", page + window))
    inputs.append(LimitInput("memory bandwidth", peaks.bytes_per_s, "B/s", peaks.bandwidth_source, peaks.name))
    notes = [*(served.shape.notes if served.shape else ()), *served.notes]
    if engine.kind == "vllm":
        notes.append(_NO_PREFILL_ONLY)
    notes.append(f"KV is left out: {kv_unknown}" if kv_unknown else _SHARED)
    if peaks.bytes_per_s is None:
        raise _Unknown(peaks.bandwidth_source)
    per_step = weights + (kv or 0.0)
    floor = per_step / peaks.bytes_per_s * parallel.pp / _tokens_out(rank.live)
    unknown = rank.live.missing.get("steps_per_s", "steps/s is not on the page") if steps is None else None
    value = None if steps is None else 100.0 * per_step * steps / peaks.bytes_per_s
    if value is not None and value > 100.0:
        notes.append(_IMPOSSIBLE)
    return LimitEstimate(
        name="MBU",
        formula=MBU_FORMULA,
        value_pct=value,
        inputs=tuple(inputs),
        floor_tpot_s=floor,
        at_least=kv_unknown is not None,
        notes=tuple(notes),
        unknown=unknown,
    )


def _mfu(engine: EngineView, served: ServedModel, config: Config, inputs: list[LimitInput]) -> LimitEstimate:
    parallel = _split(served, inputs)
    peaks = _peaks(engine)
    live = _live(engine)
    shape = served.shape
    if config.params is not None:
        params, source, text = config.params, config.origins.get("params", "--params"), None
    elif shape is not None:
        params, source = shape.params_per_prompt_token, _config_source(served)
        text = "without embedding and LM head: a prompt token isn't multiplied with them"
    else:
        raise _Unknown(_no_shape(served))
    inputs.append(LimitInput("parameters per prompt token", params, "", source, text))
    dtype, peak = _compute(shape, peaks, config)
    ranks = max(1, len(engine.ranks))
    count = parallel.gpus_per_rank * ranks
    inputs.append(LimitInput("GPUs", count, "", "command line" if ranks == 1 else "command line × ranks on the page"))
    assert peaks.spec is not None
    inputs.append(LimitInput(f"dense {dtype} peak of one", peak, "FLOP/s", peak_source(peaks.spec, dtype), peaks.name))
    tokens = live.prompt_computed_tokens_per_s
    page = f"{engine.kind} /metrics" + (f", {live.window_s:.0f} s" if live.window_s else "")
    inputs.append(LimitInput("computed prompt tokens", tokens, "tok/s", page, "without those from the prefix cache"))
    if tokens is None:
        raise _Unknown(live.missing.get("prompt_computed_tokens_per_s", "not on the page"))
    value = 100.0 * 2.0 * params * tokens / (count * peak)
    notes = ["attention over the context, and tokens that are decoded, are not counted"]
    notes += shape.notes if shape else ()
    if value > 100.0:
        notes.append(_IMPOSSIBLE)
    return LimitEstimate("MFU", MFU_FORMULA, value, tuple(inputs), notes=tuple(notes))


# -- what goes into them -----------------------------------------------------------------------------------------


def _split(served: ServedModel, inputs: list[LimitInput]) -> Parallel:
    parallel = served.parallel
    if parallel is None:
        raise _Unknown(served.problem or "how the model is split over GPUs is not known")
    text = f"TP {parallel.tp}, PP {parallel.pp}, DP {parallel.dp}"
    if served.shape is not None and served.shape.experts is not None:
        text += f", experts over {parallel.expert_gpus}"
    inputs.append(LimitInput("GPUs per model copy", parallel.gpus_per_rank, "", "command line", text))
    return parallel


def _peaks(engine: EngineView) -> Peaks:
    peaks = peaks_of(engine)
    if isinstance(peaks, str):
        raise _Unknown(peaks)
    return peaks


def _live(engine: EngineView) -> EngineLive:
    if engine.live is None:
        raise _Unknown("the engine's metrics have not been read yet")
    if len(engine.models) > 1:
        raise _Unknown("several models share the metrics page")
    return engine.live


def _rank(engine: EngineView) -> _Rank:
    live = _live(engine)
    if len(engine.ranks) < 2:
        running, usage = engine.mean("running"), engine.mean("kv_usage_pct")
        return _Rank(
            live,
            1,
            live.running if running is None else running,
            live.kv_usage_pct if usage is None else usage,
        )
    known = [rank for rank in engine.ranks if rank.steps_per_s is not None]
    # A limit is reached by the busiest one first.
    one = max(known, key=lambda rank: rank.steps_per_s or 0.0, default=engine.ranks[0])
    label = f" of DP rank {one.rank} (the one with most steps/s)"
    return _Rank(one, len(engine.ranks), one.running, one.kv_usage_pct, label)


def _tokens_per_sequence(live: EngineLive) -> float:
    """Tokens that one step works on per sequence: with speculation its drafts too."""
    return 1.0 + (len(live.spec.by_position_pct) if live.spec else 0)


def _tokens_out(live: EngineLive) -> float:
    """Tokens that one step gives per sequence."""
    return live.spec.mean_length if live.spec and live.spec.mean_length else 1.0


def _config_source(served: ServedModel) -> str:
    return served.path or "config.json"


def _no_shape(served: ServedModel) -> str:
    problem = served.problem or "the model is not known"
    return problem if problem == _NOT_READ else f"{problem}; {_SAY}"


def _weights(served: ServedModel, parallel: Parallel, config: Config, tokens: float, inputs: list[LimitInput]) -> float:
    shape, per_param = served.shape, config.bytes_per_param
    if config.params is not None:
        if per_param is None:
            if shape is None:
                raise _Unknown("how many bytes a parameter takes is not known; --bytes-per-param can say it")
            per_param = sum(m.bytes for m in shape.matrices) / shape.params
        size = config.params * per_param / parallel.gpus_per_rank
        text = f"{config.params:.4g} parameters × {per_param:.3g} B ÷ {parallel.gpus_per_rank} GPUs"
        inputs.append(LimitInput("weights read per step", size, "B", config.origins.get("params", "--params"), text))
        return size
    if shape is None:
        raise _Unknown(_no_shape(served))
    size = weight_bytes_per_step(shape, parallel, tokens, per_param)
    stored = f"{per_param:.3g} B each (--bytes-per-param)" if per_param is not None else _stored(shape)
    text = f"{shape.params / 1e9:.4g} B parameters, {stored}, without the embedding"
    if shape.experts is not None:
        touched = experts_touched(shape.experts, tokens * parallel.ranks_per_expert_batch)
        text += f"; {touched:.0f} of {shape.experts.total} experts of a layer expected in use"
    if parallel.pp > 1:
        text += "; of the stage that reads most"
    inputs.append(LimitInput("weights read per step", size, "B", _config_source(served), text))
    return size


def _stored(shape: ModelShape) -> str:
    return shape.dtype if shape.quantisation == "none" else f"{shape.quantisation}, the rest {shape.dtype}"


def _kv(
    engine: EngineView, served: ServedModel, parallel: Parallel, rank: _Rank, inputs: list[LimitInput]
) -> tuple[float | None, str | None]:
    """KV bytes of the running sequences that one step reads on one GPU; or why they aren't known."""
    shape = served.shape
    if shape is None:
        return None, "its size per token needs the model's config.json"
    if rank.kv_usage_pct is None or rank.running is None:
        return None, rank.live.missing.get("kv_usage_pct", "KV usage is not known")
    reading = engine.frame.scrape.value
    cache = reading.cache_config if reading else {}
    named = cache.get("cache_dtype") or served.kv_dtype or "auto"
    value_bytes = shape.kv_bytes_auto if named == "auto" else _KV_BYTES.get(named)
    if value_bytes is None:
        return None, f"how much {named} takes is not known here"
    blocks, size = _count(cache.get("num_gpu_blocks")), _count(cache.get("block_size"))
    # vLLM adds up the blocks of the ranks on one page, but not this one.
    pool = _count(cache.get("kv_cache_size_tokens"))
    in_blocks = blocks * size / rank.ranks if blocks and size else None
    if pool is None:
        pool = in_blocks if len(shape.windows) == 1 else None
    if pool is None:
        return None, "the size of the KV pool in tokens is not on the page"
    share = rank.kv_usage_pct / 100.0
    per_token = kv_bytes_per_token(shape, parallel, value_bytes)
    if len(shape.windows) > 1 and in_blocks is not None and abs(pool / in_blocks - 1.0) > _SAME:
        # Blocks are of a few layers each, and those that fell out of a window are free again.
        layers = layers_per_block(shape)
        if layers is None:
            return None, "how vLLM divides this model's layers into KV blocks is not known"
        total = share * in_blocks * per_token * layers / shape.layers
        text = f"{share:.1%} of the blocks, each of {layers} of {shape.layers} layers"
    else:
        total = kv_bytes_read(shape, parallel, value_bytes, share * pool, rank.running)
        text = f"{share:.1%} of a pool of {pool:.0f} tokens"
        if rank.running:
            text += f": {share * pool / rank.running:.0f} tokens a sequence"
    total *= stage_share(shape, parallel) / parallel.pp
    inputs.append(LimitInput("KV bytes per token", per_token, "B", _config_source(served), f"KV in {named}"))
    inputs.append(LimitInput("KV read per step", total, "B", f"{engine.kind} /metrics{rank.label}", text))
    return total, None


def _count(text: str | None) -> float | None:
    """A label's number; None if it has none ("None")."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _compute(shape: ModelShape | None, peaks: Peaks, config: Config) -> tuple[str, float]:
    """The data type that the GPU multiplies in, and its dense peak. A GPU that lacks it multiplies in 16 bits."""
    if peaks.spec is None:
        raise _Unknown(f"the peak of {peaks.name} is not in the table of GPUs (gputop-llm gpus)")
    wanted: tuple[str, ...]
    if shape is not None:
        wanted = (shape.multiplies_in, shape.dtype, "fp16")
    elif config.bytes_per_param == 2:
        wanted = ("bf16", "fp16")
    else:
        raise _Unknown("the data type that it multiplies in is not known")
    for dtype in wanted:
        peak = peaks.spec.peak_per_s(dtype)
        if peak is not None:
            return dtype, peak
        if gpus.PEAK_FIELDS[dtype] not in peaks.spec.lacks:
            break
    raise _Unknown(f"the {dtype} peak of {peaks.name} is not known")
