"""MBU and MFU: their values worked out by hand, their inputs, and every reason why they can't be known."""

from __future__ import annotations

import timeit
from dataclasses import replace

import pytest

from gputop_llm.config import Config
from gputop_llm.model import SpecDecode
from gputop_llm.modelmath import Parallel, ServedModel
from gputop_llm.symptoms.mbu_mfu import estimate
from gputop_llm.symptoms.view import NodeView
from tests.support import frames as recorded
from tests.support.limits import H200, H200_BF16, limits, mbu, mfu, on, served, text, value
from tests.support.models import shape
from tests.support.symptom_frames import busy

# The load of the recording: 32 streams of 256 + 128 tokens, vLLM 0.24, a Llama of 1.1 B parameters in bf16.
RECORDED = {"running": 32.0, "kv_usage_pct": 0.4194, "steps_per_s": 350.0, "prompt_computed_tokens_per_s": 10_900.0}
MATRICES = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192)


def test_a_small_llama_on_an_h200_by_hand():
    found = mbu(live=RECORDED)
    weights = (MATRICES + 32_000 * 2048) * 2
    kv = 0.004194 * 2_197_328 * (2 * 16 * 8 * 64 * 2)
    assert value(found, "weights") == pytest.approx(weights)
    assert value(found, "KV read") == pytest.approx(kv)
    assert found.value_pct == pytest.approx(100 * (weights + kv) * 350 / H200)
    assert found.value_pct == pytest.approx(17.3, abs=0.1)
    assert found.floor_tpot_s == pytest.approx((weights + kv) / H200)
    assert found.floor_tpot_s == pytest.approx(0.50e-3, abs=0.01e-3)
    assert found.unknown is None
    assert found.at_least is False


def test_it_agrees_with_the_counters_that_were_read_beside_that_load():
    counted = [recorded.h200(recording=n).gpm.dram_bw_pct for n in (1, 2, 3)]
    assert min(counted) < mbu(live=RECORDED).value_pct < max(counted)


def test_mfu_by_hand():
    found = mfu(live=RECORDED)
    assert value(found, "parameters") == MATRICES
    assert found.value_pct == pytest.approx(100 * 2 * MATRICES * 10_900 / H200_BF16)
    assert found.floor_tpot_s is None


def test_every_input_says_where_it_came_from():
    for found in (mbu(live=RECORDED), mfu(live=RECORDED)):
        assert all(one.source for one in found.inputs)
        assert all(one.value is not None for one in found.inputs)
        assert "÷" in found.formula
    bandwidth = next(i for i in mbu(live=RECORDED).inputs if i.name == "memory bandwidth")
    assert bandwidth.source == "table of GPUs, H200 SXM 141 GB (h200-ds)"
    assert any("prefill" in note for note in mbu(live=RECORDED).notes)


def test_a_standstill_is_zero_and_not_unknown():
    quiet = {"running": 0.0, "kv_usage_pct": 0.0, "steps_per_s": 0.0, "prompt_computed_tokens_per_s": 0.0}
    assert mbu(live=quiet).value_pct == 0
    assert mfu(live=quiet).value_pct == 0
    assert mbu(live=quiet).floor_tpot_s > 0


def test_more_than_the_limit_is_shown_with_a_doubt():
    config = Config(params=8e12, bytes_per_param=2.0)
    found = limits(served(), config)
    for one in (found.mbu, found.mfu):
        assert one.value_pct > 100
        assert any("one of the inputs does not fit" in note for note in one.notes)
    assert not any("does not fit" in note for one in (mbu(), mfu()) for note in one.notes)


def test_gauges_are_means_over_ten_seconds():
    found = mbu(live={**RECORDED, "kv_usage_pct": lambda s: 0.2 if s % 2 else 0.6388})
    assert value(found, "KV read") == pytest.approx(value(mbu(live=RECORDED), "KV read"), rel=0.1)


# -- splits --------------------------------------------------------------------


def test_tensor_parallel_gpus_each_read_their_share():
    one, two = mbu(served("llama-3.1-70b")), mbu(served("llama-3.1-70b", Parallel(tp=2, expert_gpus=2)), gpus=2)
    assert value(two, "weights") == value(one, "weights") / 2
    assert value(two, "KV read") == value(one, "KV read") / 2
    assert two.value_pct == pytest.approx(one.value_pct / 2)


def test_pipeline_stages_share_layers_and_sequences_and_a_token_takes_all_of_them():
    one, two = mbu(served("llama-3.1-70b")), mbu(served("llama-3.1-70b", Parallel(pp=2)))
    head = 8192 * 128_256 * 2
    assert value(two, "weights") == pytest.approx((value(one, "weights") - head) / 2 + head)
    assert value(two, "KV read") == pytest.approx(value(one, "KV read") / 4)
    assert two.floor_tpot_s == pytest.approx(2 * (value(two, "weights") + value(two, "KV read")) / H200)


def test_the_busiest_rank_counts_and_is_named():
    ranks = [{"steps_per_s": 40.0, "running": 10.0}, {"steps_per_s": 55.0, "running": 20.0}]
    model = served("llama-3.1-8b", Parallel(dp=2, expert_gpus=2))
    found = mbu(model, gpus=2, ranks=ranks)
    assert value(found, "steps/s of DP rank 1") == 55
    assert value(found, "running requests of DP rank 1") == 20
    assert value(mfu(model, gpus=2, ranks=ranks), "GPUs") == 1
    assert [i.value for i in mfu(model, gpus=2, ranks=ranks).inputs if i.name == "GPUs"] == [2]


def test_blocks_are_summed_over_ranks_by_vllm():
    page = {"cache_config": {"num_gpu_blocks": "2000", "block_size": "16", "cache_dtype": "auto"}}
    ranks = [{"kv_usage_pct": 50.0}, {"kv_usage_pct": 50.0}]
    found = mbu(served("llama-3.1-8b", Parallel(dp=2)), ranks=ranks, reading=page)
    assert value(found, "KV read") == pytest.approx(0.5 * 16_000 * 131_072)


def test_several_api_servers_make_steps_unknown_but_not_the_floor():
    why = "several API servers share this page and each counts the same engine step"
    found = mbu(live={"steps_per_s": None, "missing": {"steps_per_s": why}})
    assert (found.value_pct, found.unknown) == (None, why)
    assert found.floor_tpot_s > 0
    assert value(found, "weights") > 0


# -- experts -------------------------------------------------------------------


def test_a_batch_reads_the_experts_that_it_touches():
    def weights(running):
        return value(mbu(served("qwen3-30b-a3b"), live={"running": running}), "weights")

    experts = 48 * 128 * 3 * 2048 * 768 * 2
    rest = weights(1e9) - experts
    assert weights(1.0) == pytest.approx(rest + experts * 8 / 128)
    assert weights(64.0) == pytest.approx(rest + experts * (1 - (1 - 8 / 128) ** 64))
    assert "126 of 128 experts" in text(mbu(served("qwen3-30b-a3b"), live={"running": 64.0}), "weights")


def test_experts_spread_over_ranks_see_the_tokens_of_all_of_them():
    def touched(parallel):
        return text(mbu(served("qwen3-30b-a3b", parallel), live={"running": 4.0}), "weights")

    assert "29 of 128" in touched(Parallel())
    assert "82 of 128" in touched(Parallel(dp=4, expert_gpus=4))


def test_speculation_multiplies_the_tokens_of_a_step_and_divides_the_floor():
    spec = SpecDecode(60.0, 2.2, 50.0, (80.0, 60.0, 40.0))
    plain = mbu(served("qwen3-30b-a3b"), live={"running": 2.0})
    found = mbu(served("qwen3-30b-a3b"), live={"running": 2.0, "spec": spec})
    assert value(found, "weights") > value(plain, "weights")
    assert "52 of 128" in text(found, "weights")
    per_step = value(found, "weights") + value(found, "KV read")
    assert found.floor_tpot_s == pytest.approx(per_step / H200 / 2.2)


# -- KV ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "flag", "factor"),
    [("auto", None, 1), ("fp8_e4m3", None, 0.5), ("fp8", None, 0.5), ("bfloat16", None, 1), (None, "fp8_e5m2", 0.5)],
)
def test_the_kv_cache_may_be_in_8_bits(named, flag, factor):
    page = {"kv_cache_size_tokens": "100000", **({"cache_dtype": named} if named else {})}
    found = mbu(served("llama-3.1-8b", kv_dtype=flag), reading={"cache_config": page})
    assert value(found, "KV read") == pytest.approx(0.42 * 100_000 * 131_072 * factor)


def left_out(found, reason):
    assert found.at_least
    assert found.value_pct is not None
    assert found.value_pct == pytest.approx(100 * value(found, "weights") * 50 / H200)
    assert any(note.startswith("KV is left out") and reason in note for note in found.notes)
    assert not any(i.name.startswith("KV") for i in found.inputs)


def test_without_the_pool_the_estimate_is_a_lower_bound_and_says_so():
    left_out(mbu(reading={"cache_config": {}}), "the size of the KV pool")
    left_out(mbu(reading={"cache_config": {"num_gpu_blocks": "None", "block_size": "16"}}), "the size of the KV pool")
    left_out(mbu(reading={"cache_config": {"kv_cache_size_tokens": "nan"}}), "the size of the KV pool")
    unknown = {"kv_cache_size_tokens": "100000", "cache_dtype": "turboquant_k3v4_nc"}
    left_out(mbu(reading={"cache_config": unknown}), "how much turboquant_k3v4_nc takes")
    left_out(mbu(live={"kv_usage_pct": None, "missing": {"kv_usage_pct": "hidden in 0.11"}}), "hidden in 0.11")


def test_a_window_bounds_what_is_read_of_each_sequence():
    page = {"cache_config": {"kv_cache_size_tokens": "1000000", "cache_dtype": "auto"}}
    found = mbu(served("mistral-7b-v0.1"), live={"running": 10.0, "kv_usage_pct": 50.0}, reading=page)
    assert value(found, "KV read") == pytest.approx(10 * 4096 * 131_072)


def hybrid(tokens, blocks, running=32.0, usage=10.0, name="gpt-oss-120b"):
    page = {"num_gpu_blocks": str(blocks), "block_size": "16", "cache_dtype": "auto"}
    if tokens:
        page["kv_cache_size_tokens"] = str(tokens)
    return mbu(served(name), live={"running": running, "kv_usage_pct": usage}, reading={"cache_config": page})


def test_layers_of_two_kinds_share_the_pool_by_blocks_of_some_layers():
    # 18 of 36 layers have a window, so that a block has 18; the pool holds fewer tokens than blocks x 16.
    found = hybrid(tokens=850_000, blocks=100_000)
    assert value(found, "KV read") == pytest.approx(0.1 * 100_000 * 16 * (2 * 18 * 8 * 64 * 2))


def test_where_both_kinds_are_kept_whole_the_window_bounds_the_read():
    found = hybrid(tokens=1_600_000, blocks=100_000)
    full = 160_000 * (2 * 18 * 8 * 64 * 2)
    windowed = 32 * 128 * (2 * 18 * 8 * 64 * 2)
    assert value(found, "KV read") == pytest.approx(full + windowed)


def test_layers_of_two_kinds_in_a_pool_that_is_not_told_leave_kv_out():
    assert hybrid(tokens=None, blocks=100_000).at_least


# -- quantisation and data types -----------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "peak"), [("deepseek-v3", "fp8", 1979e12), ("gpt-oss-120b", "bf16", 989.5e12)]
)
def test_the_peak_is_that_of_the_data_type_that_is_multiplied(name, dtype, peak):
    found = mfu(served(name))
    assert value(found, f"dense {dtype} peak") == peak
    assert "half of the figure with sparsity" in next(i.source for i in found.inputs if i.name.startswith("dense"))


def test_a_gpu_without_the_data_type_multiplies_in_16_bits():
    assert value(mfu(served("deepseek-v3"), **on("NVIDIA A100-SXM4-80GB")), "dense bf16 peak") == 312e12
    assert value(mfu(served("llama-3.1-8b"), **on("Tesla T4")), "dense fp16 peak") == 65e12


# -- unknown models, and what the user says ------------------------------------


def test_an_unknown_model_is_unknown_and_says_what_would_help():
    model = ServedModel(parallel=Parallel(), problem="the structure of model type 'mamba2' is not known here")
    for found in (mbu(model), mfu(model)):
        assert found.value_pct is None
        assert found.unknown == f"{model.problem}; --params and --bytes-per-param can say it"


def test_a_model_that_was_not_read_yet_is_unknown():
    for found in (limits(None).mbu, limits(None).mfu):
        assert found.unknown == "the model's config.json has not been read yet"


def test_what_the_user_says_wins_over_the_config():
    config = Config(params=3e9, bytes_per_param=1.0, origins={"params": "--params"})
    found = limits(served("llama-3.1-8b", Parallel(tp=2)), config, gpus=2)
    assert value(found.mbu, "weights") == 1.5e9
    assert next(i.source for i in found.mbu.inputs if i.name.startswith("weights")) == "--params"
    assert value(found.mfu, "parameters") == 3e9


def test_bytes_per_parameter_alone_keeps_the_shape():
    found = limits(served("llama-3.1-8b"), Config(bytes_per_param=0.5)).mbu
    assert value(found, "weights") == pytest.approx((shape("llama-3.1-8b").params - 4096 * 128_256) / 2)
    assert "--bytes-per-param" in text(found, "weights")


def test_the_number_of_parameters_alone_takes_the_bytes_of_the_config():
    found = limits(served("gpt-oss-120b"), Config(params=1e9)).mbu
    assert value(found, "weights") == pytest.approx(0.558e9, rel=0.01)


def test_what_the_user_says_of_an_unknown_model_is_a_lower_bound_without_kv():
    model = ServedModel(parallel=Parallel(), problem="its config.json is not valid JSON")
    found = limits(model, Config(params=8e9, bytes_per_param=2.0))
    assert found.mbu.at_least
    assert found.mbu.value_pct == pytest.approx(100 * 16e9 * 50 / H200)
    assert found.mfu.value_pct == pytest.approx(100 * 2 * 8e9 * 3100 / H200_BF16)
    half = limits(model, Config(params=8e9))
    assert "--bytes-per-param can say it" in half.mbu.unknown
    assert half.mfu.unknown == "the data type that it multiplies in is not known"


def test_a_split_that_is_not_known_makes_both_unknown():
    model = ServedModel(problem="it was started with a file of settings (--config), which is not read")
    found = limits(model, Config(params=8e9, bytes_per_param=2.0))
    assert found.mbu.unknown == found.mfu.unknown == model.problem


@pytest.mark.parametrize("name", ["running", "kv_usage_pct", "steps_per_s", "prompt_computed_tokens_per_s"])
def test_any_figure_may_be_missing(name):
    found = limits(served("qwen3-30b-a3b"), live={name: None, "missing": {name: "because"}})
    for one in (found.mbu, found.mfu):
        assert (one.value_pct is None) == (one.unknown is not None)
    assert found.mfu.unknown == ("because" if name == "prompt_computed_tokens_per_s" else None)


def test_several_models_on_a_page_are_unknown():
    found = limits(served(), models={"a": {}, "b": {}})
    assert found.mbu.unknown == found.mfu.unknown == "several models share the metrics page"


def test_before_the_first_scrape_it_is_unknown():
    frames = busy(2)
    bare = replace(frames[-1], engines=(replace(frames[-1].engines[0], window=None),))
    found = estimate(NodeView([bare]).engines[0], served(), Config())
    assert found.mbu.unknown == found.mfu.unknown == "the engine's metrics have not been read yet"


def test_it_costs_little():
    view = NodeView(busy(12)).engines[0]
    model, config = served("deepseek-v3"), Config()
    best = min(timeit.repeat(lambda: estimate(view, model, config), number=50, repeat=20)) / 50
    # 25 µs were measured; the bound leaves room for a busy machine.
    assert best < 300e-6
