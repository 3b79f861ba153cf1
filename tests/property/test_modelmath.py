"""Arithmetic on any shape, and any content of a config.json."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import (
    ModelShape,
    Parallel,
    Use,
    experts_touched,
    held_bytes,
    kv_bytes_per_token,
    kv_bytes_read,
    weight_bytes_per_step,
)
from gputop_llm.modelquant import UnknownModel
from tests.support.models import config, names, shape

models = st.sampled_from(names()).map(shape)
powers = st.sampled_from([1, 2, 4, 8, 16, 32])


@st.composite
def dense_configs(draw) -> dict[str, Any]:
    kv_heads = draw(st.sampled_from([1, 2, 4, 8]))
    return {
        "model_type": "llama",
        "hidden_size": draw(st.integers(8, 20_000)),
        "num_hidden_layers": draw(st.integers(1, 200)),
        "num_attention_heads": kv_heads * draw(st.integers(1, 16)),
        "num_key_value_heads": kv_heads,
        "head_dim": draw(st.integers(8, 512)),
        "intermediate_size": draw(st.integers(64, 100_000)),
        "vocab_size": draw(st.integers(64, 300_000)),
        "tie_word_embeddings": draw(st.booleans()),
    }


def copies(found: ModelShape, tp: int) -> float:
    """Bytes that stand on several GPUs: what can't be split as far as there are GPUs."""
    return sum(m.bytes * (tp / min(tp, m.ways) - 1) for m in found.matrices if m.use is not Use.EXPERTS)


@given(dense_configs(), powers)
def test_weights_over_the_tensor_parallel_gpus_sum_to_the_model_and_its_copies(raw, tp):
    found = read_shape(raw)
    parallel = Parallel(tp=tp, expert_gpus=tp)
    held = tp * sum(held_bytes(m, parallel) for m in found.matrices)
    assert held == pytest.approx(sum(m.bytes for m in found.matrices) + copies(found, tp))
    if tp <= found.kv_heads:
        assert held == pytest.approx(sum(m.bytes for m in found.matrices))


@given(models, powers)
def test_what_is_copied_is_keys_and_values_the_router_and_the_compression(found, tp):
    assume(all(tp <= m.ways for m in found.matrices if m.name == "attention"))
    parallel = Parallel(tp=tp, expert_gpus=tp)
    copied = {m.name for m in found.matrices if held_bytes(m, parallel) * tp > m.bytes * 1.0001}
    assert copied <= {"attention, K and V", "router", "attention, compression"}


@given(dense_configs(), powers)
def test_a_step_reads_all_of_a_dense_model_but_the_embedding(raw, tp):
    found = read_shape(raw)
    parallel = Parallel(tp=tp, expert_gpus=tp)
    read = sum(held_bytes(m, parallel) for m in found.matrices if m.use is not Use.LOOKUP)
    assert weight_bytes_per_step(found, parallel, 1) == pytest.approx(read)
    assert weight_bytes_per_step(found, parallel, 500) == weight_bytes_per_step(found, parallel, 1)


@given(models, st.sampled_from([1, 2, 3, 4, 7]), powers)
def test_no_stage_reads_less_than_its_share_and_none_more_than_all(found, pp, tp):
    whole = weight_bytes_per_step(found, Parallel(tp=tp, expert_gpus=tp), 8)
    stage = weight_bytes_per_step(found, Parallel(tp=tp, pp=pp, expert_gpus=tp), 8)
    assert whole / pp * 0.9999 <= stage <= whole * 1.0001


@given(models, st.floats(1, 1e5), st.floats(1, 1e5), powers, st.sampled_from([1, 2, 4]))
def test_a_larger_batch_reads_more_experts_and_never_more_than_there_are(found, one, other, tp, dp):
    parallel = Parallel(tp=tp, dp=dp, expert_gpus=tp * dp)
    less, more = sorted((one, other))
    held = sum(held_bytes(m, parallel) for m in found.matrices)
    assert (
        weight_bytes_per_step(found, parallel, less)
        <= weight_bytes_per_step(found, parallel, more) * 1.0001
        <= held * 1.001
    )


@given(st.sampled_from([name for name in names() if shape(name).experts]))
def test_one_token_touches_the_experts_that_it_chooses(name):
    experts = shape(name).experts
    assert experts_touched(experts, 1) == pytest.approx(experts.per_token)
    assert experts_touched(experts, 0) == 0
    assert experts_touched(experts, 1e6) == pytest.approx(experts.total)


@given(models, st.floats(0, 1e7), st.floats(0, 1e4), powers)
def test_windows_bound_what_is_read_of_the_kv_cache(found, tokens, sequences, tp):
    parallel = Parallel(tp=tp, expert_gpus=tp)
    read = kv_bytes_read(found, parallel, 2.0, tokens, sequences)
    whole = tokens * kv_bytes_per_token(found, parallel, 2.0)
    assert 0 <= read <= whole * 1.0001
    if all(window is None for window, _ in found.windows):
        assert read == pytest.approx(whole)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def spoilt_configs(draw) -> dict[str, Any]:
    """A real config with some values replaced by anything, at the top, in its text_config, or its quantisation."""
    found = config(draw(st.sampled_from(names())))
    settings_ = draw(st.sampled_from(["fp8", "awq", "gptq", "compressed-tensors", "bitsandbytes", "modelopt", "mxfp4"]))
    if draw(st.booleans()):
        found["quantization_config"] = {"quant_method": settings_, "bits": 4, "group_size": 128}
    for _ in range(draw(st.integers(1, 3))):
        places = [found] + [
            found[key] for key in ("text_config", "quantization_config") if isinstance(found.get(key), dict)
        ]
        place = draw(st.sampled_from(places))
        keys = [*place, "layer_types", "ignore", "config_groups", "num_experts", "head_dim", "weight_block_size"]
        place[draw(st.sampled_from(keys))] = draw(json_values)
    return found


def shape_or_reason(raw) -> tuple[ModelShape | None, str]:
    try:
        return read_shape(raw), ""
    except UnknownModel as reason:
        return None, str(reason)


@settings(max_examples=400)
@given(spoilt_configs())
def test_any_config_gives_a_shape_that_makes_sense_or_a_reason(raw):
    found, reason = shape_or_reason(raw)
    if found is None:
        assert 0 < len(reason) < 200
        return
    assert found.params > 0
    assert all(m.params >= 0 and m.bytes >= 0 for m in found.matrices)
    assert sum(layers for _, layers in found.windows) == found.layers
    assert 0 < found.params_per_prompt_token <= found.active_params <= found.params


@given(json_values)
def test_a_model_without_a_size_is_never_vouched_for(raw):
    found, reason = shape_or_reason(json.loads(json.dumps({"model_type": "llama", "x": raw})))
    assert found is None
    assert reason == "its config.json has no hidden_size"
