"""How the weights of a quantised model are stored, from the `quantization_config` of its config.json. Pure.

The file is not ours and may say anything: what isn't understood is `UnknownModel`, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

MAX_MODULES = 10_000
_MAX_PATTERNS = 64
_MAX_VARIANTS = 32

# How modules are called, by the group of weights that they are part of; of one layer.
_MLP = ("gate_proj", "up_proj", "down_proj")
_MODULES = {
    "attention": tuple(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
    "latent attention": tuple(
        f"self_attn.{name}" for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    ),
    "MLP": tuple(f"mlp.{name}" for name in _MLP),
    "experts": tuple(f"mlp.experts.0.{name}" for name in _MLP),
    "shared experts": tuple(f"mlp.shared_experts.{name}" for name in _MLP),
}
# Where a model has more than a decoder, its names have the decoder's in front.
_BEFORE_DECODER = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?")
_LAYER = re.compile(r"\blayers\.(\d{1,6})\.")
_ALTERNATIVES = re.compile(r"\(([\w|]+)\)")


class UnknownModel(ValueError):
    """A model that can't be vouched for; the text says why."""


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights are stored.

    `multiplies_in` is the data type of the multiplications, None for the model's own. `covers` are the groups of
    weights that are quantised, with the share of each (the rest is left as it was).
    """

    label: str
    bytes_per_param: float
    multiplies_in: str | None
    covers: Mapping[str, float]
    kv_bytes: float | None = None


def read_quantisation(
    config: Mapping[str, Any], groups: Sequence[str], layers: int, flag: str | None = None
) -> Quantisation | None:
    """How the model's weights are stored; None if they aren't quantised.

    Args:
        config: the config.json.
        groups: the groups of weights that the model has.
        layers: how many layers it has.
        flag: the engine's --quantization, which matters for weights that are quantised as they are loaded.

    Raises:
        UnknownModel: it isn't understood.
    """
    found = config.get("quantization_config") or config.get("compression_config")
    if not found:
        return _as_loaded(flag, groups)
    if not isinstance(found, Mapping):
        raise UnknownModel("its quantization_config is not an object")
    method = found.get("quant_method")
    multiplies: str | None
    if method in ("fp8", "fbgemm_fp8"):
        label, size, multiplies = _fp8(found)
    elif method in ("awq", "gptq", "auto-round"):
        label, size, multiplies = _integers(str(method), found)
    elif method == "compressed-tensors":
        label, size, multiplies = _compressed(found)
    elif method == "bitsandbytes":
        label, size, multiplies = _bitsandbytes(found)
    elif method == "mxfp4":
        # gpt-oss: one byte of exponent for 32 weights, and only the experts.
        label, size, multiplies = "MXFP4", 0.5 + 1 / 32, None
        groups = [group for group in groups if group == "experts"]
    elif method in ("modelopt", "modelopt_fp4"):
        label, size, multiplies = _modelopt(found)
    else:
        raise UnknownModel(f"how {shown(method)} stores weights is not known here")
    left = _left_out(_skipped(found), groups, layers)
    return Quantisation(label, size, multiplies, {g: 1.0 - left.get(g, 0.0) for g in groups}, _kv_bytes(found))


def _as_loaded(flag: str | None, groups: Sequence[str]) -> Quantisation | None:
    whole = dict.fromkeys(groups, 1.0)
    if flag in (None, "", "none", "None", "auto"):
        return None
    if flag == "fp8":
        return Quantisation("FP8 as loaded", 1.0, "fp8", whole)
    if flag == "bitsandbytes":
        return Quantisation("bitsandbytes 4 bit as loaded", 0.5 + 4 / 64, None, whole)
    raise UnknownModel(f"what --quantization {shown(flag)} makes of its weights is not known here")


def _fp8(found: Mapping[str, Any]) -> tuple[str, float, str]:
    block = found.get("weight_block_size")
    if block is None:
        return "FP8", 1.0, "fp8"
    if not isinstance(block, list) or len(block) != 2:
        raise UnknownModel(f"its weight_block_size is {shown(block)}")
    rows, columns = (_whole(n, "weight_block_size", 1, 1 << 20) for n in block)
    return f"FP8, a scale per {rows} x {columns}", 1.0 + 4 / (rows * columns), "fp8"


def _integers(method: str, found: Mapping[str, Any]) -> tuple[str, float, None]:
    """AWQ and GPTQ: packed integers, and per group a 16-bit scale and a packed zero point."""
    if found.get("dynamic") or found.get("extra_config"):
        raise UnknownModel(f"its {method} treats modules differently, which is not worked out here")
    bits = _whole(found.get("bits", found.get("w_bit")), "bits", 1, 8)
    group = found.get("group_size", found.get("q_group_size"))
    per_param = 0.0
    if group != -1:
        per_param = (2 + bits / 8) / _whole(group, "group_size", 1, 1 << 20)
    scales = "a scale per column" if group == -1 else f"a scale per {group}"
    return f"{method.upper() if len(method) < 5 else method} {bits} bit, {scales}", bits / 8 + per_param, None


def _bitsandbytes(found: Mapping[str, Any]) -> tuple[str, float, None]:
    if found.get("load_in_4bit") is True:
        # A 32-bit maximum for 64 weights, itself in 8 bits when quantised again.
        scale = 1 if found.get("bnb_4bit_use_double_quant") is True else 4
        return "bitsandbytes 4 bit", 0.5 + scale / 64, None
    if found.get("load_in_8bit") is True:
        return "bitsandbytes 8 bit", 1.0, None
    raise UnknownModel("its bitsandbytes settings name neither 4 nor 8 bit")


def _modelopt(found: Mapping[str, Any]) -> tuple[str, float, str]:
    algorithm = found.get("quant_algo")
    if algorithm == "FP8":
        return "FP8", 1.0, "fp8"
    if algorithm in ("NVFP4", "FP4"):
        return "NVFP4", 0.5 + 1 / 16, "fp4"
    raise UnknownModel(f"how ModelOpt's {shown(algorithm)} stores weights is not known here")


def _compressed(found: Mapping[str, Any]) -> tuple[str, float, str | None]:
    if found.get("sparsity_config") not in (None, {}) and _get(found, "sparsity_config", "format") != "dense":
        raise UnknownModel("its weights are sparse, which is not worked out here")
    groups = found.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise UnknownModel("its compressed-tensors settings have no groups")
    kinds = {_scheme(group) for group in groups.values()}
    if len(kinds) != 1:
        raise UnknownModel("its weights are quantised in several ways, which is not worked out here")
    return kinds.pop()


def _scheme(group: Any) -> tuple[str, float, str | None]:
    weights = _get(group, "weights")
    if not isinstance(weights, Mapping) or _get(group, "targets") != ["Linear"]:
        raise UnknownModel("which of its weights are quantised is not understood")
    bits = _whole(weights.get("num_bits"), "num_bits", 1, 16)
    kind, strategy = weights.get("type"), weights.get("strategy")
    if kind not in ("int", "float") or (kind == "float" and bits not in (4, 8)):
        raise UnknownModel(f"its weights are {shown(kind)} of {bits} bits")
    size = bits / 8
    label = f"{'FP' if kind == 'float' else 'INT'}{bits}"
    if strategy in ("group", "tensor_group"):
        per = _whole(weights.get("group_size"), "group_size", 1, 1 << 20)
        # 4-bit floats have 8-bit scales, integers 16-bit ones.
        scale = 1.0 if kind == "float" and bits == 4 else 2.0
        if weights.get("symmetric") is False:
            scale += bits / 8
        size += scale / per
        label += f", a scale per {per}"
    elif strategy not in ("tensor", "channel", "block"):
        raise UnknownModel(f"its scales are per {shown(strategy)}")
    activations = _get(group, "input_activations")
    if activations is None:
        return label, size, None
    sent = (_get(activations, "type"), _get(activations, "num_bits"))
    multiplies = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "fp4"}.get(sent)
    if multiplies is None:
        raise UnknownModel("its activations are quantised in a way that is not known here")
    return label, size, multiplies


def _kv_bytes(found: Mapping[str, Any]) -> float | None:
    """The size of one KV value that the model asks for; None if it doesn't."""
    if _get(found, "kv_cache_scheme", "num_bits") == 8 or found.get("kv_cache_quant_algo") == "FP8":
        return 1.0
    return None


def _skipped(found: Mapping[str, Any]) -> list[str]:
    """The modules that are left as they were."""
    for key in ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "llm_int8_skip_modules"):
        names = found.get(key)
        if names:
            if not isinstance(names, list) or not all(isinstance(name, str) and len(name) < 300 for name in names):
                raise UnknownModel(f"its {key} is not a list of names")
            if len(names) > MAX_MODULES:
                raise UnknownModel(f"its {key} has {len(names)} names")
            return names
    return []


def _left_out(names: Sequence[str], groups: Sequence[str], layers: int) -> dict[str, float]:
    """The share of each group's modules that `names` name, exactly, by a part of their path, or by a pattern."""
    anywhere: list[str] = []
    of_layer: dict[int, list[str]] = {}
    for name in names:
        for variant in _variants(name):
            found = _LAYER.search(variant)
            if found is None:
                anywhere.append(variant)
            else:
                of_layer.setdefault(int(found[1]), []).append(variant)
    if len(anywhere) > _MAX_PATTERNS:
        raise UnknownModel("too many patterns say which modules are not quantised")
    share: dict[str, float] = {}
    for group in groups:
        modules = _MODULES.get(group, ())
        hits = sum(
            any(_names(name, f"model.layers.{layer}.{module}") for name in (*anywhere, *of_layer.get(layer, ())))
            for layer in range(layers)
            for module in modules
        )
        share[group] = hits / (layers * len(modules)) if modules else 0.0
    return share


def _variants(name: str) -> list[str]:
    """A name, or a regular expression ("re:…") as shell patterns: it is a stranger's, and never run as it is."""
    if not name.startswith("re:"):
        name = _BEFORE_DECODER.sub("model.", name)
        return [name, f"{name}.*"] if "*" in name else [name]
    body = name[3:].removeprefix("^")
    # It need only match the beginning, unless it says where the end is.
    body = body[:-1] if body.endswith("$") else body + "*"
    found = [body.replace("\\.", ".").replace(".*", "*")]
    while (alternatives := _ALTERNATIVES.search(found[0])) is not None:
        words = alternatives[1].split("|")
        if len(found) * len(words) > _MAX_VARIANTS:
            raise UnknownModel("which modules are not quantised is not understood")
        found = [_ALTERNATIVES.sub(word, one, count=1) for one in found for word in words]
    if any(set("()[]{}|+?^$\\") & set(one) for one in found):
        raise UnknownModel("which modules are not quantised is not understood")
    return found


def _names(name: str, module: str) -> bool:
    module = module.replace("shared_experts", "shared_expert") if "shared_expert." in name else module
    return fnmatchcase(module, name) if "*" in name else f".{name}." in f".{module}."


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UnknownModel(f"its {name} is {shown(value)}")
    return value


def _get(value: Any, *path: str) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def shown(value: Any) -> str:
    """A stranger's value, short enough to be shown."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = repr(value[:40] if isinstance(value, str) else value)
    return text if len(text) <= 40 else text[:37] + "..."
