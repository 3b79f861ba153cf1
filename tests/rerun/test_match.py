"""Two kernels match only if they are one and the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.errors import GputopError
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.match import Launched, launched_of, matches, normal, reproduced_pct
from tests.support.timelines import KINETO_VLLM_CPU, NSYS_VLLM, recorded

extents = st.tuples(*[st.integers(1, 4)] * 3)
types = st.sampled_from(["float", "double", "__nv_bfloat16", "(bool)1", "true", "3", "3l", "cute::C<1>", "ns::T<int>"])
names = st.builds(
    lambda space, base, inner, arguments: f"void {space}{base}<{', '.join(inner)}>({', '.join(arguments)})",
    st.sampled_from(["", "at::native::", "at::"]),
    st.sampled_from(["gemm", "gemm_2", "norm"]),
    st.lists(types, min_size=1, max_size=3),
    st.lists(st.sampled_from(["float*", "float const*", "int", "long"]), max_size=3),
)


def hot(name="gemm", grid=(2, 64, 1), block=(384, 1, 1), median_ns=10_000.0, busy_pct=50.0):
    return HotLaunch(name, grid, block, 0, 1, 0, busy_pct, busy_pct, median_ns, np.zeros(1, np.int64))


def launched(name="gemm", grid=(2, 64, 1), block=(384, 1, 1), duration_us=10.0, case="a case"):
    return Launched(case, name, grid, block, duration_us, 5)


@given(names, names, extents, extents, extents, extents)
def test_two_kernels_match_only_where_name_grid_and_block_are_the_same(one, other, grid, grid_2, block, block_2):
    (match,) = matches([hot(one, grid, block)], [launched(other, grid_2, block_2)])

    # "(bool)1" and "true" are one value, and spaces are none.
    plain = [name.replace("(bool)1", "true") for name in (one, other)]
    assert bool(match.same) is ((plain[0], grid, block) == (plain[1], grid_2, block_2))


@pytest.mark.parametrize(
    "file",
    [KINETO_VLLM_CPU, NSYS_VLLM],
    ids=["kineto", "nsys"],
)
def test_no_two_kernels_of_a_real_record_become_one(file):
    timeline = recorded(file).timeline
    found = {timeline.name(int(i)) for i in np.unique(timeline.ops.name_id[timeline.ops.grid > 0])}
    compared = [normal(name) for name in found]

    assert len(found) > 40
    assert len(set(compared) - {None}) == len([name for name in compared if name is not None])


@pytest.mark.parametrize(
    ("nsys", "kineto"),
    [
        ("void f<(int)128, (bool)1>(int)", "void f<128, true>(int)"),
        ("void f<<unnamed>::g, (long)3>(int)", "void f<(anonymous namespace)::g, 3l>(int)"),
        ("void f<float, (int)4>(T1 *, T2)", "void f<float, 4>(float*, 4)"),
        ("void f<a::b<c> >(T1::Params)", "void f<a::b<c>>(a::b<c>::Params)"),
    ],
)
def test_what_two_recorders_write_differently_is_one_kernel(nsys, kineto):
    assert normal(nsys) == normal(kineto)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void f<1>(int)", "void f<1l>(int)"),
        ("void f<float>(T1*)", "void f<float>(double*)"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNN"),
        ("void f<(A)0>(int)", "void f<(B)0>(int)"),
    ],
)
def test_what_differs_stays_apart(one, other):
    assert normal(one) != normal(other)


def test_a_name_that_leaves_out_what_cannot_be_filled_in_never_matches():
    assert normal("void f<float>(T3*)") is None
    assert not matches([hot("void f<float>(T3*)")], [launched("void f<float>(T3*)")])[0].same


def test_of_several_that_launch_it_the_nearest_in_duration_counts_and_another_grid_is_only_near():
    found = [launched(case="half", duration_us=5), launched(case="it", duration_us=9.5), launched(grid=(2, 63, 1))]
    (match,) = matches([hot()], found)

    assert [one.case for one in match.same] == ["it", "half"]
    assert [one.grid for one in match.near] == [(2, 63, 1)]
    assert match.best is not None
    assert match.best.case == "it"


def test_what_was_reproduced_is_counted_by_the_time_it_takes_live():
    found = matches([hot(busy_pct=40.0), replace(hot("norm"), busy_pct=20.0)], [launched()])

    assert reproduced_pct(found) == 40.0


def test_a_kernel_whose_grid_was_not_recorded_matches_nothing():
    assert not matches([hot(grid=None)], [launched(grid=None)])[0].same


def test_what_a_script_printed_is_read_and_other_forms_are_told():
    kernel = {"name": "gemm", "grid": [2, 64, 1], "block": [384, 1, 1], "duration_us": 9.5, "calls": 5}
    cases = [
        {"case": "a", "kernels": [kernel], "error": None},
        {"case": "b", "kernels": [], "error": "ImportError: no vllm"},
    ]

    assert launched_of({"cases": cases}) == ((launched(duration_us=9.5, case="a"),), {"b": "ImportError: no vllm"})
    with pytest.raises(GputopError, match="another form"):
        launched_of({"cases": [{"case": "a"}]})
