"""How many bytes quantised weights take, against the size of published checkpoints."""

from __future__ import annotations

import time

import pytest

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import Use
from gputop_llm.modelquant import UnknownModel
from tests.support.models import config, shape


def stored(name, **changes):
    return sum(m.bytes for m in shape(name, **changes).matrices)


def quantised(name, **settings):
    return shape(name, quantization_config=settings)


def size_of(found, name):
    return next(m.bytes / m.params for m in found.matrices if m.name == name)


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
W4A16 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True},
            "input_activations": None,
        }
    },
    "ignore": ["lm_head"],
}
NVFP4 = {
    "targets": ["Linear"],
    "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True},
    "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16},
}


def w8a8(kind):
    return {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": kind, "strategy": "channel", "symmetric": True},
        "input_activations": {"num_bits": 8, "type": kind, "strategy": "token", "dynamic": True},
    }


@pytest.mark.parametrize(
    ("name", "settings", "checkpoint_gb"),
    [
        ("gpt-oss-120b", None, 65.2),
        ("gpt-oss-20b", None, 13.8),
        ("llama-3.1-70b", AWQ, 39.8),
        ("llama-3.1-8b", {"quant_method": "fp8"}, 9.1),
    ],
)
def test_the_size_is_that_of_the_published_checkpoint(name, settings, checkpoint_gb):
    changes = {} if settings is None else {"quantization_config": settings}
    assert stored(name, **changes) == pytest.approx(checkpoint_gb * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("settings", "bytes_per_param", "multiplies_in"),
    [
        ({"quant_method": "fp8"}, 1.0, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 128**2, "fp8"),
        ({"quant_method": "fbgemm_fp8"}, 1.0, "fp8"),
        (AWQ, 0.5 + 2.5 / 128, "bf16"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 0.5 + 2.5 / 64, "bf16"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}, 0.5 + 2.5 / 128, "bf16"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 1.0, "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5 + 4 / 64, "bf16"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
            0.5 + 1 / 64,
            "bf16",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, 1.0, "bf16"),
        (W4A16, 0.5 + 2 / 128, "bf16"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": w8a8("float")}}, 1.0, "fp8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": w8a8("int")}}, 1.0, "int8"),
        ({"quant_method": "compressed-tensors", "config_groups": {"g": NVFP4}}, 0.5 + 1 / 16, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5 + 1 / 16, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 1.0, "fp8"),
    ],
)
def test_bytes_and_data_type_by_method(settings, bytes_per_param, multiplies_in):
    found = shape("llama-3.1-8b", quantization_config=settings)
    for name in ("attention", "attention, K and V", "MLP"):
        assert size_of(found, name) == pytest.approx(bytes_per_param)
    for name in ("LM head", "embedding"):
        assert size_of(found, name) == 2
    assert found.multiplies_in == multiplies_in
    assert found.quantisation != "none"


def test_mxfp4_stores_only_the_experts_so():
    found = shape("gpt-oss-120b")
    assert size_of(found, "experts") == 0.5 + 1 / 32
    assert size_of(found, "attention") == size_of(found, "router") == size_of(found, "LM head") == 2
    assert found.multiplies_in == "bf16"


def test_latent_attention_and_shared_experts_are_quantised_too_but_not_the_router():
    found = shape("deepseek-v3")
    for name in ("attention", "attention, compression", "MLP", "experts", "shared experts"):
        assert size_of(found, name) == pytest.approx(1.0, abs=1e-3)
    assert size_of(found, "router") == 2


@pytest.mark.parametrize(
    ("left", "attention", "mlp"),
    [
        (["lm_head"], 1.0, 1.0),
        (["self_attn"], 2.0, 1.0),
        (["model.layers.*.self_attn"], 2.0, 1.0),
        (["re:.*self_attn.*"], 2.0, 1.0),
        (["re:.*self_attn"], 2.0, 1.0),
        (["re:.*self_attn$"], 1.0, 1.0),
        (["re:model\\.layers\\.\\d+\\.self_attn.*"], None, None),
        (["re:.*mlp\\.(gate|up|gate_up|down)_proj.*"], 1.0, 2.0),
        (["re:(.*a){20}$"], None, None),
        ([f"model.layers.{i}.self_attn.{p}_proj" for i in range(16) for p in "qkvo"], 1.5, 1.0),
        ([f"model.layers.{i}.mlp.gate" for i in range(32)], 1.0, 1.0),
        ([f"model.layers.{i}.post_attention_layernorm" for i in range(32)], 1.0, 1.0),
        ([f"language_model.model.layers.{i}.mlp.down_proj" for i in range(32)], 1.0, 1 + 1 / 3),
        (["vision_tower.layers.0.self_attn.q_proj"], 1.0, 1.0),
    ],
)
@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"])
def test_modules_that_are_left_alone_keep_their_size(key, left, attention, mlp):
    if attention is None:
        with pytest.raises(UnknownModel, match="not understood"):
            quantised("llama-3.1-8b", quant_method="fp8", **{key: left})
        return
    found = quantised("llama-3.1-8b", quant_method="fp8", **{key: left})
    assert size_of(found, "attention") == pytest.approx(attention)
    assert size_of(found, "MLP") == pytest.approx(mlp)


def test_shared_experts_are_known_by_either_name():
    for name in ("shared_expert", "shared_experts"):
        left = [f"model.layers.{i}.mlp.{name}.{p}_proj" for i in range(61) for p in ("gate", "up", "down")]
        found = quantised("deepseek-v3", quant_method="fp8", modules_to_not_convert=left)
        assert size_of(found, "shared experts") == 2
        assert size_of(found, "experts") == size_of(found, "MLP") == 1


@pytest.mark.parametrize(
    ("settings", "kv_bytes"),
    [
        ({"quant_method": "fp8"}, 2),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 1),
        ({**W4A16, "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False}}, 1),
        ({**W4A16, "kv_cache_scheme": None}, 2),
    ],
)
def test_a_model_may_ask_for_an_8_bit_kv_cache(settings, kv_bytes):
    assert shape("llama-3.1-8b", quantization_config=settings).kv_bytes_auto == kv_bytes


def test_weights_may_be_quantised_as_they_are_loaded():
    assert size_of(read_shape(config("llama-3.1-8b"), quantization="fp8"), "MLP") == 1
    assert size_of(read_shape(config("llama-3.1-8b"), quantization="bitsandbytes"), "MLP") == 0.5 + 4 / 64
    with pytest.raises(UnknownModel, match="--quantization 'torchao'"):
        read_shape(config("llama-3.1-8b"), quantization="torchao")


def test_the_flag_says_nothing_new_of_a_model_that_is_quantised_already():
    found = read_shape(config("llama-3.1-8b", quantization_config=AWQ), quantization="awq_marlin")
    assert size_of(found, "MLP") == pytest.approx(0.5 + 2.5 / 128)


def _compressed(**changes):
    group = {**W4A16["config_groups"]["group_0"], **changes}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"quant_method": "gguf"}, "how 'gguf' stores"),
        ({"quant_method": None, "x": 1}, "how None stores"),
        ({"quant_method": ["fp8"]}, "how a list stores"),
        ({"quant_method": "awq", "bits": -4, "group_size": 128}, "bits is -4"),
        ({"quant_method": "awq", "bits": 4.0, "group_size": 128}, "bits is 4.0"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, "group_size is 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:mlp": {}}}, "differently"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size is 0"),
        ({"quant_method": "fp8", "weight_block_size": 128}, "weight_block_size is 128"),
        ({"quant_method": "fp8", "ignored_layers": "lm_head"}, "not a list of names"),
        ({"quant_method": "fp8", "ignored_layers": [1]}, "not a list of names"),
        ({"quant_method": "fp8", "ignored_layers": ["x"] * 10_001}, "10001 names"),
        ({"quant_method": "fp8", "ignored_layers": [f"*{i}" for i in range(65)]}, "too many patterns"),
        ({"quant_method": "bitsandbytes"}, "neither 4 nor 8 bit"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
        ({"quant_method": "compressed-tensors"}, "no groups"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": w8a8("int"), "b": w8a8("float")}}, "several"),
        ({**W4A16, "sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse"),
        (_compressed(targets=["re:.*mlp.*"]), "which of its weights"),
        (_compressed(weights=None), "which of its weights"),
        (_compressed(weights={"num_bits": 3, "type": "float", "strategy": "channel"}), "'float' of 3 bits"),
        (_compressed(weights={"num_bits": 8, "type": "int", "strategy": "galaxy"}), "'galaxy'"),
        (_compressed(input_activations={"num_bits": 2, "type": "int"}), "activations"),
    ],
)
def test_what_is_not_understood_is_unknown_with_the_reason(settings, reason):
    with pytest.raises(UnknownModel, match=reason):
        shape("llama-3.1-8b", quantization_config=settings)


def test_a_regular_expression_of_a_stranger_is_never_run():
    began = time.monotonic()
    for pattern in ("re:" + ".*a" * 90 + "$", "re:" + ".*" * 140, "*a" * 140):
        quantised("llama-3.1-8b", quant_method="fp8", ignored_layers=[pattern] * 20)
    assert time.monotonic() - began < 5.0


def test_the_head_is_left_alone_and_is_read():
    head = next(m for m in shape("llama-3.1-70b", quantization_config=AWQ).matrices if m.use is Use.HEAD)
    assert head.bytes == head.params * 2
