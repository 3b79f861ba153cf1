"""What the real record of a graph-replaying vLLM is run again by: operations of the right shapes, in a sound script."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

import pytest

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import Parallel
from gputop_llm.rerun import candidates, from_ops, hot, seen
from gputop_llm.rerun.script import needs_bytes, script
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.kineto_ops import Operator
from gputop_llm.timeline.model import Origin
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import Family
from tests.support.captures import CAPTURES
from tests.support.timelines import KINETO_VLLM_CPU, recorded

RECORD = CAPTURES / KINETO_VLLM_CPU
#: The model of the records: Llama shape, 1.1 B.
CONFIG = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
_TILE = re.compile(r"nvjet_sm90_tst_(\d+)x(\d+)_64x\d+_\w+?_(?:h|v)_bz_(splitK_)?T")


@pytest.fixture(scope="module")
def record():
    return recorded(KINETO_VLLM_CPU)


@pytest.fixture(scope="module")
def hottest(record):
    return hot.hot_launches(record)


def shape(**changed):
    return read_shape({**CONFIG, **changed})


def test_a_kernel_with_two_grids_is_two_kernels_and_shares_are_of_the_busy_time(hottest):
    by_name = [(one.short, one.grid) for one in hottest if one.short == "nvjet_sm90_tst_64x16_64x16_4x2_h_bz_TNT"]

    assert by_name == [(by_name[0][0], (8, 12, 1)), (by_name[0][0], (8, 8, 1))]
    assert hottest[0].short == "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_TNT"
    assert (hottest[0].grid, hottest[0].block, hottest[0].by_graph) == ((2, 64, 1), (384, 1, 1), hottest[0].calls)
    assert 80 < sum(one.busy_pct for one in hottest) < 100


def test_the_batch_sizes_are_those_of_the_record(record):
    found = seen.batches(record)

    assert found.tokens[0] == 32
    assert "KV writes" in found.source


def test_every_hot_gemm_of_the_decode_step_has_a_candidate_with_the_tiles_of_its_grid(record, hottest):
    """nvjet's name has the tile of the result, and its grid how many there are: only the right shape fits both."""
    batches = seen.batches(record)
    layers = candidates.gemms(shape(), Parallel())
    expected = {
        ("128x32", (2, 64, 1)): "gate_up projection",
        ("64x16", (8, 12, 1)): "qkv projection",
        ("64x16", (8, 8, 1)): "attention output projection",
        ("256x32", (2, 63, 1)): "LM head",
    }
    checked = 0
    for one in hottest:
        tile = _TILE.match(one.name)
        if tile is None or tile[3]:
            continue
        rows, columns = int(tile[1]), int(tile[2])
        blocks = one.grid[0] * one.grid[1]
        # Clusters of two round an odd number up.
        fitting = {g.name for g in layers if -(-g.n // rows) * -(-batches.tokens[0] // columns) in (blocks, blocks - 1)}
        assert expected[f"{rows}x{columns}", one.grid] in fitting
        checked += 1
    assert checked == len(expected)


def test_tensor_parallel_ranks_have_their_part_of_each_layer():
    whole = {gemm.name: (gemm.k, gemm.n) for gemm in candidates.gemms(shape(), Parallel())}
    part = {gemm.name: (gemm.k, gemm.n) for gemm in candidates.gemms(shape(), Parallel(tp=4))}

    assert whole == {
        "qkv projection": (2048, 3072),
        "attention output projection": (2048, 2048),
        "gate_up projection": (2048, 16384),
        "down projection": (8192, 2048),
        "LM head": (2048, 32000),
    }
    assert part == {
        "qkv projection": (2048, 768),
        "attention output projection": (512, 2048),
        "gate_up projection": (2048, 4096),
        "down projection": (2048, 2048),
        "LM head": (2048, 8000),
    }
    # One KV head for each GPU at least.
    assert {g.name: g.n for g in candidates.gemms(shape(), Parallel(tp=16))}["qkv projection"] == (2 + 2) * 64


def test_an_operator_of_the_record_is_called_with_its_own_shapes_strides_and_types(record):
    (head,) = hot.hot_launches(record, re.compile("256x32_64x5"), most=1)
    cases = from_ops.of_record(record, [head], [RECORD])

    assert [case.call for case in cases][:1] == [
        'operator("mm", tensor(32, 2048, dtype=torch.bfloat16), '
        "tensor(2048, 32000, dtype=torch.bfloat16, stride=(1, 2048)))"
    ]


def test_a_number_beside_a_tensor_stays_a_number():
    # `x * 0.5`: with a tensor on the GPU in its place another kernel would be launched.
    half = Operator("aten::mul", [[4, 8], []], [[8, 1], []], ["c10::BFloat16", "double"], ["", ""])

    assert from_ops.case_of(half).call == 'operator("mul", tensor(4, 8, dtype=torch.bfloat16), 1.0)'
    assert from_ops.case_of(replace(half, dims=[[], []], strides=[[], []], types=["double", "double"])) is None


def test_a_kernel_of_a_graph_replay_hangs_on_no_operator(record, hottest):
    assert from_ops.of_record(record, hottest[:1], [RECORD]) == ()


def test_the_script_is_sound_python_with_only_what_its_cases_call(record, hottest):
    found = candidates.of_families([one.family for one in hottest], shape(), Parallel(), seen.batches(record))
    text = script(hottest, found, 'x"""\\\n.json', "again.py")
    tree = ast.parse(text)
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    assert {"linear", "paged_attention", "kv_write", "rms_norm", "sdpa"} <= defined
    assert not {"sampling", "rotary", "operator", "inductor"} & defined
    assert max(map(len, text.splitlines())) < 200
    assert f"NEEDS_BYTES = {needs_bytes(found):_}" in text
    assert all(f"    {one.short}  grid" in text for one in hottest)
    assert len(found) <= candidates.MOST


def test_what_a_model_does_not_have_is_no_candidate():
    batches = seen.Seen((8,), (8,), "")
    plain = candidates.of_families([Family.ACTIVATION], shape(model_type="nemotron"), Parallel(), batches)

    assert plain == ()
    assert candidates.of_families([Family.NCCL, Family.MOE_GEMM], shape(), Parallel(), batches) == ()


def test_frames_beside_the_capture_tell_lengths_and_without_any_the_usual_batches_are_tried():
    nothing = Context(TimelineBuilder().build(Origin("kineto", ()), 0, 1))
    frame = {
        "engines": [
            {
                "total": {"running": 20.0, "mean_prompt_tokens": 1000.0, "mean_generation_tokens": 200.0},
                "reading": {"cache_config": {"block_size": "32"}},
            }
        ]
    }
    told = seen.batches(nothing, [frame, {"engines": "damaged"}])

    assert (told.tokens, told.kv_tokens, told.block_size) == ((24, 20), 1100, 32)
    assert seen.batches(nothing).tokens[:4] == (1, 2, 4, 8)


@pytest.mark.parametrize(("tokens", "graph"), [(1, 1), (3, 4), (5, 8), (33, 40), (250, 256), (257, 272), (2048, 2048)])
def test_batches_are_padded_as_graphs_are(tokens, graph):
    assert seen.padded(tokens) == graph
