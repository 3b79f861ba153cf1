"""Kernels of torch.compile from its cache: what their wrapper passes is worked out from its text alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gputop_llm.rerun import inductor

#: As torch 2.13 writes them, cut down: a norm and an activation of a batch of s77 tokens, and one of two free sizes.
WRAPPER = """
triton_red_fused_add_rms_norm_0 = async_compile.triton('triton_red_fused_add_rms_norm_0', '''
@triton_heuristics.reduction(
    size_hints={'x': 32, 'r0_': 2048},
    triton_meta={'signature': {'in_ptr0': '*bf16', 'out_ptr2': '*bf16', 'ks0': 'i64', 'xnumel': 'i32', \
'r0_numel': 'i32', 'XBLOCK': 'constexpr', 'R0_BLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda')},
)
''', device_str='cuda')
triton_poi_fused_mul_silu_1 = async_compile.triton('triton_poi_fused_mul_silu_1', '''
    triton_meta={'signature': {'in_ptr0': '*bf16', 'out_ptr0': '*bf16', 'ks0': 'i64', 'xnumel': 'i32', \
'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda'), 'constants': {}},
''', device_str='cuda')
triton_poi_fused_2 = async_compile.triton('triton_poi_fused_2', '''
    triton_meta={'signature': {'in_ptr0': '*bf16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'}, 'device': 0},
''', device_str='cuda')
async_compile.wait(globals())

    def call(self, args):
        arg0_1, arg1_1 = args
        s77 = arg0_1
        s80 = s77
        s91 = arg1_1
        buf0 = empty_strided_cuda((s77, 2048), (2048, 1), torch.bfloat16)
        triton_red_fused_add_rms_norm_0.run(arg2_1, buf0, 2048, s80, 2048, stream=stream0)
        ps0 = (1 + 16384) // 2
        del arg2_1
        triton_poi_fused_mul_silu_1_xnumel = s77*((1 + 16384) // 2)
        triton_poi_fused_mul_silu_1.run(arg6_1, buf3, ps0, triton_poi_fused_mul_silu_1_xnumel, stream=stream0)
        triton_poi_fused_2_xnumel = s77*s91
        triton_poi_fused_2.run(buf3, triton_poi_fused_2_xnumel, stream=stream0)
"""
NORM, SILU, TWO_SIZES = "triton_red_fused_add_rms_norm_0", "triton_poi_fused_mul_silu_1", "triton_poi_fused_2"


@pytest.fixture
def cache(tmp_path):
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "wrapper.py").write_text(WRAPPER)
    (tmp_path / "ab" / "kernel.py").write_text("# the source alone, with no call\n")
    return tmp_path


def test_sizes_follow_from_the_wrapper_and_the_batch():
    assert inductor.sizes_of(WRAPPER, NORM, 32) == {"ks0": 2048, "xnumel": 32, "r0_numel": 2048}
    assert inductor.sizes_of(WRAPPER, SILU, 32) == {"ks0": 8192, "xnumel": 32 * 8192}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (WRAPPER, TWO_SIZES),
        (WRAPPER, "triton_poi_fused_9"),
        (WRAPPER.replace("2048, s80, 2048, stream", "2048, f(s80), 2048, stream"), NORM),
        (WRAPPER.replace("2048, s80, 2048, stream", "2048, s80, stream"), NORM),
        (WRAPPER.replace("ps0 = (1 + 16384) // 2", "ps0 = 1 // 0"), SILU),
        (WRAPPER.replace("ps0 = (1 + 16384) // 2", "ps0 = ps0"), SILU),
    ],
    ids=["two free sizes", "another kernel", "a call", "too few", "division by zero", "itself"],
)
def test_what_cannot_be_told_is_left_out(text, name):
    assert inductor.sizes_of(text, name, 32) is None


def test_each_batch_size_is_a_case_and_only_kernels_of_torch_compile_are_looked_for(cache):
    found = inductor.cases([NORM, "nvjet", "triton_x'); import os"], (32, 4), [cache])
    path = str(cache / "ab" / "wrapper.py")

    assert [case.label for case in found] == [f"{NORM}, 32 tokens", f"{NORM}, 4 tokens"]
    assert found[0].call == f'inductor({path!r}, "{NORM}", ' + "{'ks0': 2048, 'xnumel': 32, 'r0_numel': 2048})"
    assert inductor.cases(["nvjet"], (32,), [cache]) == ()


def test_the_same_name_in_two_wrappers_is_two_cases(cache):
    (cache / "cd").mkdir()
    (cache / "cd" / "other.py").write_text(WRAPPER)

    labels = [case.label for case in inductor.cases([NORM], (32,), [cache])]
    assert sorted(labels) == [f"{NORM}, 32 tokens", f"{NORM}, 32 tokens, wrapper 2"]


def test_links_and_the_files_of_others_are_not_taken(cache, monkeypatch):
    os.rename(cache / "ab" / "wrapper.py", cache / "elsewhere")
    os.symlink(cache / "elsewhere", cache / "ab" / "wrapper.py")
    assert inductor.cases([NORM], (32,), [cache]) == ()

    (cache / "ab" / "own.py").write_text(WRAPPER)
    assert len(inductor.cases([NORM], (32,), [cache])) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    owner = (cache / "ab" / "own.py").stat().st_uid
    assert len(inductor.cases([NORM], (32,), [cache])) == (1 if owner == 0 else 0)


def test_the_cache_is_where_torch_and_vllm_look_for_it():
    assert inductor.folders({"HOME": "/home/a", "USER": "a"}) == (
        Path("/tmp/torchinductor_a"),
        Path("/home/a/.cache/vllm/torch_compile_cache"),
    )
    assert inductor.folders({"TORCHINDUCTOR_CACHE_DIR": "/x", "VLLM_CACHE_ROOT": "/y"}) == (
        Path("/x"),
        Path("/y/torch_compile_cache"),
    )


def test_of_the_wrappers_of_many_models_the_newest_are_tried(tmp_path):
    for number in range(40):
        path = tmp_path / f"{number:02}.py"
        path.write_text(WRAPPER)
        os.utime(path, (number, number))
    found = inductor.cases([NORM], [1, 2], [tmp_path])

    assert len(found) == inductor.MOST
    assert f"{tmp_path}/39.py" in found[0].call
    assert not any("/20.py" in case.call for case in found)
