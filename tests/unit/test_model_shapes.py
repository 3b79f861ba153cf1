"""What a config.json says, against the models' own published sizes."""

from __future__ import annotations

import math

import pytest

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import Parallel, Use, kv_bytes_per_token, layers_per_block
from gputop_llm.modelquant import UnknownModel
from tests.support.models import config, names, shape

ONE = Parallel()

# Counted on the models themselves as transformers 5.19 builds them, decoder only.
COUNTED = {
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-1b-of-the-recording": 1_104_218_112,
    "qwen2.5-7b": 7_615_616_512,
    "mistral-small-24b": 23_572_403_200,
    "mistral-7b-v0.1": 7_241_732_096,
    "phi-4": 14_659_507_200,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-27b": 27_009_346_304,
    "qwen2.5-vl-7b": 7_615_616_512,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,
    "deepseek-v2-lite": 15_706_484_224,
    "kimi-k2": 1_026_408_209_408,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "glm-4.5-air": 106_851_586_048,
    "minimax-m2": 228_689_748_992,
    "llama-4-scout": 107_769_861_120,
}


def test_every_model_is_counted():
    assert set(COUNTED) == set(names())


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_are_those_of_the_model_itself_but_for_norms_and_biases(name):
    found = shape(name).params
    assert found <= COUNTED[name]
    assert found == pytest.approx(COUNTED[name], rel=5e-4)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.1-70b", 70.6),
        ("qwen2.5-7b", 7.62),
        ("gemma-2-9b", 9.24),
        ("mixtral-8x7b", 46.7),
        ("qwen3-30b-a3b", 30.5),
        ("qwen3-235b-a22b", 235),
        ("deepseek-v3", 671),
        ("gpt-oss-120b", 117),
        ("gpt-oss-20b", 21),
    ],
)
def test_parameters_are_as_published(name, published):
    assert shape(name).params == pytest.approx(published * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "published", "digit"),
    [("mixtral-8x7b", 12.9, 0.1), ("qwen3-30b-a3b", 3.3, 0.1), ("qwen3-235b-a22b", 22, 1), ("llama-4-scout", 17, 1)],
)
def test_active_parameters_are_as_published(name, published, digit):
    assert shape(name).active_params / 1e9 == pytest.approx(published, abs=digit * 0.55)


@pytest.mark.parametrize(
    ("name", "published", "digit"), [("deepseek-v3", 37, 1), ("gpt-oss-120b", 5.1, 0.1), ("gpt-oss-20b", 3.6, 0.1)]
)
def test_active_parameters_are_as_published_by_those_who_leave_out_the_embedding(name, published, digit):
    found = shape(name)
    embedding = found.vocab * found.hidden
    assert (found.active_params - embedding) / 1e9 == pytest.approx(published, abs=digit * 0.5)


@pytest.mark.parametrize("name", names())
def test_a_prompt_token_is_multiplied_with_neither_embedding_nor_head(name):
    found = shape(name)
    both = found.vocab * found.hidden * (1 if found.tied else 2)
    assert found.params_per_prompt_token == pytest.approx(found.active_params - both)


@pytest.mark.parametrize(("name", "tied"), [("llama-3.2-1b", True), ("gemma-2-9b", True), ("llama-3.1-8b", False)])
def test_a_tied_embedding_is_one_matrix_and_read_as_the_head(name, tied):
    uses = [m.use for m in shape(name).matrices]
    assert shape(name).tied is tied
    assert uses.count(Use.HEAD) == 1
    assert uses.count(Use.LOOKUP) == (0 if tied else 1)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3.1-70b", 2 * 80 * 8 * 128 * 2),
        ("qwen2.5-7b", 57_344),
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("gpt-oss-120b", 2 * 36 * 8 * 64 * 2),
    ],
)
def test_kv_bytes_per_token(name, bytes_per_token):
    assert kv_bytes_per_token(shape(name), ONE, 2.0) == bytes_per_token


@pytest.mark.parametrize(
    ("name", "windows"),
    [
        ("llama-3.1-8b", ((None, 32),)),
        ("qwen2.5-7b", ((None, 28),)),  # it has a window, switched off
        ("mistral-7b-v0.1", ((4096, 32),)),
        ("gemma-2-9b", ((None, 21), (4096, 21))),
        ("gemma-3-27b", ((None, 10), (1024, 52))),
        ("gpt-oss-120b", ((None, 18), (128, 18))),
        ("llama-4-scout", ((None, 12), (8192, 36))),
    ],
)
def test_windows_by_layer(name, windows):
    assert shape(name).windows == windows


def test_a_window_that_is_switched_on_counts_from_its_first_layer():
    assert shape("qwen2.5-7b", use_sliding_window=True, max_window_layers=20).windows == ((None, 20), (131072, 8))


@pytest.mark.parametrize(
    ("full", "windowed", "layers"),
    [(18, 18, 18), (10, 52, 10), (12, 36, 12), (20, 24, 24), (20, 28, None), (20, 30, 20)],
)
def test_layers_per_kv_block_follow_the_smaller_kind_unless_releases_differ(full, windowed, layers):
    types = ["full_attention"] * full + ["sliding_attention"] * windowed
    found = shape("gpt-oss-120b", num_hidden_layers=full + windowed, layer_types=types)
    assert layers_per_block(found) == layers


@pytest.mark.parametrize(
    ("name", "layers"),
    [("deepseek-v3", 58), ("deepseek-v2-lite", 26), ("qwen3-30b-a3b", 48), ("mixtral-8x7b", 32), ("glm-4.5-air", 45)],
)
def test_layers_with_experts(name, layers):
    assert shape(name).experts.layers == layers


def test_only_some_layers_have_experts():
    assert shape("qwen3-30b-a3b", decoder_sparse_step=2, mlp_only_layers=[1]).experts.layers == 23


def test_no_layer_with_experts_is_a_dense_model():
    found = shape("qwen3-30b-a3b", mlp_only_layers=list(range(48)))
    assert found.experts is None
    assert found.params == found.active_params


@pytest.mark.parametrize(
    ("told", "flag", "kept"),
    [
        ("bfloat16", None, "bf16"),
        ("float16", "auto", "fp16"),
        ("torch.bfloat16", None, "bf16"),
        # Engines serve 32-bit checkpoints in 16 bits unless told not to.
        ("float32", None, "bf16"),
        (None, None, "bf16"),
        ("float32", "float32", "fp32"),
        ("bfloat16", "half", "fp16"),
    ],
)
def test_the_data_type_is_the_engines_flag_or_the_configs(told, flag, kept):
    found = read_shape(config("llama-3.1-8b", torch_dtype=told), dtype=flag)
    assert found.dtype == found.multiplies_in == kept
    assert sum(m.bytes for m in found.matrices) == found.params * (4 if kept == "fp32" else 2)


def test_a_model_with_a_vision_tower_is_its_decoder_and_says_so():
    for name in ("gemma-3-27b", "llama-4-scout", "qwen2.5-vl-7b"):
        assert any("vision" in note for note in shape(name).notes)
    assert shape("llama-3.1-8b").notes == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mamba2"}, "the structure of model type 'mamba2' is not known here"),
        ({"model_type": "qwen3_next"}, "not known"),
        ({"model_type": None}, "no model_type"),
        ({"model_type": 7}, "no model_type"),
        ({"model_type": ["llama"]}, "no model_type"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"hidden_size": -4096}, "hidden_size is -4096"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": 10**30}, "hidden_size is 1000000"),
        ({"hidden_size": math.nan}, "hidden_size is nan"),
        ({"hidden_size": math.inf}, "hidden_size is inf"),
        ({"hidden_size": 4096.0}, "hidden_size is 4096.0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"hidden_size": [4096]}, "hidden_size is a list"),
        ({"num_key_value_heads": 64}, "num_key_value_heads is 64"),
        ({"num_hidden_layers": 2001}, "num_hidden_layers"),
        ({"intermediate_size": {}}, "intermediate_size is an object"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
        ({"torch_dtype": "float8_e4m3fn"}, "torch_dtype"),
        ({"torch_dtype": []}, "torch_dtype is a list"),
        ({"layer_types": ["full_attention"]}, "layer_types do not fit"),
        ({"layer_types": ["linear_attention"] * 32}, "a type that is not known"),
        ({"layer_types": [["full_attention"]] * 32}, "a type that is not known"),
        ({"num_experts": 8}, "a llama with experts"),
        ({"quantization_config": 4}, "quantization_config is not an object"),
        ({"hidden_size": 10**6, "num_hidden_layers": 2000, "intermediate_size": 10**8}, "absurd size"),
    ],
)
def test_what_cannot_be_vouched_for_is_unknown_with_the_reason(changes, reason):
    with pytest.raises(UnknownModel, match=reason):
        shape("llama-3.1-8b", **changes)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9"),
        ("mixtral-8x7b", {"num_local_experts": None}, "no num_local_experts"),
        ("deepseek-v3", {"kv_lora_rank": None}, "no kv_lora_rank"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "first_k_dense_replace is 62"),
        ("deepseek-v3", {"moe_layer_freq": 2}, "which of its layers have experts"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("qwen3-30b-a3b", {"mlp_only_layers": "all"}, "mlp_only_layers"),
        ("gemma-2-9b", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma-3-27b", {"text_config": None}, "no text_config"),
        ("gemma-3-27b", {"text_config": [1]}, "no text_config"),
        ("gemma-3-27b", {"text_config": {"model_type": "t5"}}, "'t5'"),
        ("gemma-3-27b", {"text_config": {"model_type": 5}}, "no model_type"),
    ],
)
def test_so_with_experts_latent_attention_and_towers(name, changes, reason):
    with pytest.raises(UnknownModel, match=reason):
        shape(name, **changes)


def test_a_strangers_text_is_cut_when_it_is_shown():
    with pytest.raises(UnknownModel) as refusal:
        shape("llama-3.1-8b", model_type="\x1b[2J" + "x" * 100_000)
    assert len(str(refusal.value)) < 120
    assert "\x1b" not in str(refusal.value)
