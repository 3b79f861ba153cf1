"""A model's config.json to its shape. Pure; knows the models by their `model_type` and vouches for no other.

The file is not ours and may say anything: a number that is missing, or absurd, and a structure
that isn't known give `UnknownModel` with the reason, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gputop_llm.modelmath import Experts, Matrices, Mla, ModelShape, Use
from gputop_llm.modelquant import UnknownModel, read_quantisation, shown

_MAX_PARAMS = 10**14
_DTYPE_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp32": 4.0}
_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
}
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


@dataclass(frozen=True, slots=True)
class _Family:
    """What a `model_type` is built like.

    `gated`: the MLP has three matrices, else two. `tied`: what a config means that doesn't say. `experts` is how a
    mixture of experts is told ("every layer", "qwen", "deepseek", "llama4"). `windows` is which layers have the
    sliding window: "none", "all", "qwen" (those from max_window_layers on, if switched on), or n: all but every
    n-th. `given` are values that published configs leave out.
    """

    gated: bool = True
    tied: bool = False
    mla: bool = False
    experts: str = ""
    windows: str | int = "none"
    given: Mapping[str, Any] = field(default_factory=dict)


_QWEN = _Family(windows="qwen")
_GEMMA3_TEXT = _Family(
    tied=True,
    windows=6,
    given=MappingProxyType(
        {"vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}
    ),
)
_FAMILIES: Mapping[str, _Family] = MappingProxyType(
    {
        "llama": _Family(),
        "mistral": _Family(windows="all"),
        "ministral": _Family(windows="all"),
        "qwen2": _QWEN,
        "qwen2_vl_text": _QWEN,
        "qwen2_5_vl_text": _QWEN,
        "qwen3": _QWEN,
        "qwen3_vl_text": _QWEN,
        "gemma": _Family(tied=True),
        "gemma2": _Family(tied=True, windows=2),
        "gemma3_text": _GEMMA3_TEXT,
        "phi3": _Family(windows="all"),
        "granite": _Family(),
        "cohere": _Family(tied=True),
        "cohere2": _Family(tied=True, windows=4),
        "glm": _Family(),
        "glm4": _Family(),
        "olmo2": _Family(),
        "smollm3": _Family(tied=True),
        "seed_oss": _Family(),
        "exaone4": _Family(windows=4),
        "stablelm": _Family(),
        "nemotron": _Family(gated=False),
        "arcee": _Family(gated=False),
        "mixtral": _Family(experts="every layer", windows="all"),
        "olmoe": _Family(experts="every layer"),
        "phimoe": _Family(experts="every layer", windows="all"),
        "granitemoe": _Family(experts="every layer"),
        "minimax_m2": _Family(experts="every layer"),
        "gpt_oss": _Family(experts="every layer", windows=2),
        "qwen2_moe": _Family(experts="qwen", windows="qwen"),
        "qwen3_moe": _Family(experts="qwen", windows="qwen"),
        "qwen3_vl_moe_text": _Family(experts="qwen", windows="qwen"),
        "glm4_moe": _Family(experts="deepseek"),
        "deepseek_v2": _Family(experts="deepseek", mla=True),
        "deepseek_v3": _Family(experts="deepseek", mla=True),
        "kimi_k2": _Family(experts="deepseek", mla=True),
        "llama4_text": _Family(experts="llama4", windows=4),
    }
)
# Models with a tower in front of a plain decoder, and what that decoder is called where it doesn't say.
_WRAPPED: Mapping[str, str | None] = MappingProxyType(
    {
        "gemma3": "gemma3_text",
        "mistral3": "mistral",
        "llama4": "llama4_text",
        "llava": None,
        "llava_next": None,
        "qwen2_vl": "qwen2",
        "qwen2_5_vl": "qwen2",
        "qwen3_vl": "qwen3_vl_text",
        "qwen3_vl_moe": "qwen3_vl_moe_text",
    }
)


def read_shape(config: Mapping[str, Any], dtype: str | None = None, quantization: str | None = None) -> ModelShape:
    """The shape that a config.json describes.

    Args:
        config: the file's content.
        dtype: the engine's --dtype, None or "auto" if it wasn't told.
        quantization: the engine's --quantization.

    Raises:
        UnknownModel: the model isn't known, or its config makes no sense.
    """
    model_type, text, notes = _decoder(config)
    family = _FAMILIES.get(model_type)
    if family is None:
        raise UnknownModel(f"the structure of model type {shown(model_type)} is not known here")
    text = {**family.given, **{key: value for key, value in text.items() if value is not None}}
    if not family.experts and any(text.get(key) not in (None, 0, 1) for key in _EXPERT_COUNTS):
        raise UnknownModel(f"a {model_type} with experts is not known here")
    return _shape(model_type, family, text, config, dtype, quantization, notes)


def _decoder(config: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], tuple[str, ...]]:
    """The type and config of the text decoder, and what stands beside it."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise UnknownModel("its config.json has no model_type")
    if model_type not in _WRAPPED:
        return model_type, config, ()
    notes = ("the vision tower is not counted: it runs once per image, not per step",)
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        inner = {"tie_word_embeddings": config.get("tie_word_embeddings"), **inner}
    elif inner is None and "hidden_size" in config:
        inner = config
    else:
        raise UnknownModel("its config.json has no text_config")
    named = inner.get("model_type") if inner is not config else None
    named = named or _WRAPPED[model_type]
    if not isinstance(named, str):
        raise UnknownModel("its text_config has no model_type")
    return named, inner, notes


def _shape(
    model_type: str,
    family: _Family,
    text: Mapping[str, Any],
    config: Mapping[str, Any],
    dtype: str | None,
    quantization: str | None,
    notes: tuple[str, ...],
) -> ModelShape:
    hidden = _number(text, "hidden_size", 10**6)
    layers = _number(text, "num_hidden_layers", 2000)
    heads = _number(text, "num_attention_heads", 10**5)
    vocab = _number(text, "vocab_size", 10**8)
    kv_heads = _number(text, "num_key_value_heads", heads, default=heads)
    mla = _mla(text) if family.mla else None
    head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else _head_dim(text, hidden, heads)
    experts, dense_width, shared_width = _mlp(family, text, layers)
    expert_layers = experts.layers if experts else 0
    tied = text.get("tie_word_embeddings", family.tied)
    if not isinstance(tied, bool):
        raise UnknownModel(f"its tie_word_embeddings is {shown(tied)}")

    per_mlp = (3 if family.gated else 2) * hidden
    found: list[tuple[str, int, int, Use]] = []
    if mla is None:
        found.append(("attention", layers * 2 * hidden * heads * head_dim, heads, Use.READ))
        found.append(("attention, K and V", layers * 2 * hidden * kv_heads * head_dim, kv_heads, Use.READ))
    else:
        found += _mla_matrices(mla, layers, hidden, heads)
    if dense_width:
        found.append(("MLP", (layers - expert_layers) * per_mlp * dense_width, dense_width, Use.READ))
    if experts is not None:
        found.append(("router", expert_layers * hidden * experts.total, 1, Use.READ))
        per_expert = per_mlp * experts.intermediate
        found.append(("experts", expert_layers * experts.total * per_expert, experts.total, Use.EXPERTS))
        if shared_width:
            found.append(("shared experts", expert_layers * per_mlp * shared_width, shared_width, Use.READ))
    found.append(("LM head", vocab * hidden, vocab, Use.HEAD))
    if not tied:
        found.append(("embedding", vocab * hidden, vocab, Use.LOOKUP))
    if sum(params for _, params, _, _ in found) > _MAX_PARAMS:
        raise UnknownModel("its config.json describes a model of an absurd size")

    plain = _dtype(text, config, dtype)
    stored = read_quantisation(
        {"quantization_config": text.get("quantization_config"), **config},
        tuple(dict.fromkeys(_group(name, mla is not None) for name, _, _, use in found if _quantisable(name, use))),
        layers,
        quantization,
    )
    covers = stored.covers if stored else {}
    matrices = []
    for name, params, ways, use in found:
        share = covers.get(_group(name, mla is not None), 0.0)
        quantised = stored.bytes_per_param if stored else 0.0
        matrices.append(
            Matrices(name, params, params * (share * quantised + (1 - share) * _DTYPE_BYTES[plain]), ways, use)
        )
    return ModelShape(
        model_type=model_type,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=dense_width,
        vocab=vocab,
        tied=tied,
        dtype=plain,
        windows=_windows(family, text, layers),
        matrices=tuple(matrices),
        experts=experts,
        mla=mla,
        quantisation=stored.label if stored else "none",
        multiplies_in=(stored.multiplies_in if stored else None) or plain,
        gated=family.gated,
        kv_bytes_auto=(stored.kv_bytes if stored else None) or _DTYPE_BYTES[plain],
        notes=notes,
    )


def _quantisable(name: str, use: Use) -> bool:
    return use in (Use.READ, Use.EXPERTS) and name != "router"


def _group(name: str, latent: bool) -> str:
    """The group of modules, as quantisation settings know them, that matrices belong to."""
    if name.startswith("attention"):
        return "latent attention" if latent else "attention"
    return name


def _head_dim(text: Mapping[str, Any], hidden: int, heads: int) -> int:
    return _number(text, "head_dim", 10**5, default=hidden // heads)


def _mla(text: Mapping[str, Any]) -> Mla:
    return Mla(
        q_lora_rank=_number(text, "q_lora_rank", 10**6) if text.get("q_lora_rank") is not None else None,
        kv_lora_rank=_number(text, "kv_lora_rank", 10**6),
        qk_nope_head_dim=_number(text, "qk_nope_head_dim", 10**5),
        qk_rope_head_dim=_number(text, "qk_rope_head_dim", 10**5),
        v_head_dim=_number(text, "v_head_dim", 10**5),
    )


def _mla_matrices(mla: Mla, layers: int, hidden: int, heads: int) -> list[tuple[str, int, int, Use]]:
    """The compressing matrices, of which every GPU has a copy, and those that are split by heads."""
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim)
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim) + heads * mla.v_head_dim * hidden
    if mla.q_lora_rank is None:
        up += hidden * query
    else:
        down += hidden * mla.q_lora_rank
        up += mla.q_lora_rank * query
    return [
        ("attention", layers * up, heads, Use.READ),
        ("attention, compression", layers * down, 1, Use.READ),
    ]


def _mlp(family: _Family, text: Mapping[str, Any], layers: int) -> tuple[Experts | None, int, int]:
    """The experts, the width of the MLP in layers without (0 if all have), and of the shared experts together."""
    width = "intermediate_size"
    if not family.experts:
        return None, _number(text, width, 10**8), 0
    total = _number(text, _first(text, _EXPERT_COUNTS), 10**5)
    per_token = _number(text, _first(text, ("num_experts_per_tok", "experts_per_token")), total)
    if family.experts == "every layer":
        return Experts(total, per_token, 0, _number(text, width, 10**8), layers), 0, 0
    if family.experts == "qwen":
        step = _number(text, "decoder_sparse_step", 2000, default=1)
        dense_only = _layer_list(text, "mlp_only_layers", layers)
        with_experts = sum((i + 1) % step == 0 and i not in dense_only for i in range(layers))
        shared = _number(text, "shared_expert_intermediate_size", 10**8, low=0, default=0)
        inner, shared_count = _number(text, "moe_intermediate_size", 10**8), 1 if shared else 0
    elif family.experts == "deepseek":
        first = _number(text, "first_k_dense_replace", layers, low=0, default=0)
        if text.get("moe_layer_freq", 1) != 1 and text["moe_layer_freq"] != [int(i >= first) for i in range(layers)]:
            raise UnknownModel("which of its layers have experts is not understood")
        with_experts = layers - first
        inner = _number(text, "moe_intermediate_size", 10**8)
        shared_count = _number(text, "n_shared_experts", 10**4, low=0, default=0)
        shared = shared_count * inner
    else:
        step = _number(text, "interleave_moe_layer_step", 2000, default=1)
        listed = _layer_list(text, "moe_layers", layers)
        with_experts = len(listed) if listed else sum((i + 1) % step == 0 for i in range(layers))
        inner = shared = _number(text, width, 10**8)
        shared_count, width = 1, "intermediate_size_mlp"
    dense = _number(text, width, 10**8) if with_experts < layers else 0
    if with_experts == 0:
        return None, dense, 0
    return Experts(total, per_token, shared_count, inner, with_experts), dense, shared


def _windows(family: _Family, text: Mapping[str, Any], layers: int) -> tuple[tuple[int | None, int], ...]:
    types = text.get("layer_types")
    chunk = "attention_chunk_size" if family.experts == "llama4" else "sliding_window"
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise UnknownModel("its layer_types do not fit its layers")
        known = {"full_attention", "sliding_attention", "chunked_attention"}
        if not all(isinstance(kind, str) and kind in known for kind in types):
            raise UnknownModel("some of its layers are of a type that is not known here")
        windowed = sum(kind != "full_attention" for kind in types)
    elif text.get(chunk) is None or family.windows == "none":
        windowed = 0
    elif family.windows == "all":
        windowed = layers
    elif family.windows == "qwen":
        on = text.get("use_sliding_window") is True
        windowed = layers - _number(text, "max_window_layers", layers, low=0, default=0) if on else 0
    else:
        pattern = text.get("sliding_window_pattern", family.windows)
        every = len(pattern) if isinstance(pattern, str) else pattern
        if isinstance(every, bool) or not isinstance(every, int) or not 1 <= every <= layers:
            raise UnknownModel(f"its sliding_window_pattern is {shown(pattern)}")
        windowed = layers - layers // every
    if not windowed:
        return ((None, layers),)
    window = _number(text, chunk, 10**9)
    return ((window, windowed),) if windowed == layers else ((None, layers - windowed), (window, windowed))


def _dtype(text: Mapping[str, Any], config: Mapping[str, Any], flag: str | None) -> str:
    """What isn't quantised is kept in: engines load 32-bit weights as 16-bit ones unless they are told not to."""
    if flag not in (None, "", "auto"):
        if flag not in _DTYPES:
            raise UnknownModel(f"its --dtype {shown(flag)} is not known here")
        return _DTYPES[flag]
    named = next((c[key] for c in (text, config) for key in ("dtype", "torch_dtype") if c.get(key) is not None), None)
    if named in (None, "auto"):
        return "bf16"
    if not isinstance(named, str) or (known := _DTYPES.get(named.removeprefix("torch."))) is None:
        raise UnknownModel(f"its torch_dtype is {shown(named)}")
    return "bf16" if known == "fp32" else known


def _number(text: Mapping[str, Any], key: str, high: int, *, low: int = 1, default: int | None = None) -> int:
    value = text.get(key, default)
    if value is None:
        raise UnknownModel(f"its config.json has no {key}")
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnknownModel(f"its {key} is {shown(value)}")
    return value


def _first(text: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    return next((key for key in keys if key in text), keys[0])


def _layer_list(text: Mapping[str, Any], key: str, layers: int) -> set[int]:
    value = text.get(key, [])
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < layers for n in value):
        raise UnknownModel(f"its {key} is no list of layers")
    return set(value)
