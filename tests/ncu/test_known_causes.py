"""Kernels whose limit is known, as ncu recorded them on one H200: each is judged by its cause and by no other."""

from __future__ import annotations

import pytest

from gputop_llm.ncu.read import read_profile
from gputop_llm.ncu.rules.finding import Seen
from tests.support.kernels import H200, found, ids, recorded
from tests.support.known_causes import KNOWN, missed

#: The report of "spilling" is too large to be kept.
KEPT = [known for known in KNOWN if known.kernel != "spilling"]


def report(name):
    return H200 / f"ncu-2025.3.1_known_{name}.ncu-rep.xz"


@pytest.mark.parametrize("known", KEPT, ids=[known.kernel for known in KEPT])
def test_the_known_cause_is_found_and_no_other(known):
    verdict = recorded(report(known.kernel))
    (row,) = verdict.tables["launches"]

    assert row["kernel"] == known.kernel
    assert missed(known, row["class"], set(ids(verdict))) == []


def test_a_product_without_mma_whose_constants_are_written_on_the_tensor_pipe_has_it_idle():
    """Its SASS has HFMA2.MMA (131,072 of them) and no other instruction of that pipe, which reads 0.006 %."""
    finding = found(recorded(report("gemm_bf16_plain")), "kernel-tensor-idle")
    (pipe,) = [
        fact for fact in finding.facts if fact.name == "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    ]

    assert 0 < pipe.value < 0.01
    assert {fact.value for fact in finding.facts if "_ops_path_" in fact.name} == {0.0}


def test_shares_of_an_l2_that_nothing_uses_are_no_proof_of_other_work():
    """203 % of 20,615 sectors in 4 ms; alone on the GPU."""
    kernels = read_profile([report("bank_conflicts")]).kernels

    assert max(kernel.metrics["lts__t_sector_op_read_hit_rate.pct"] for kernel in kernels) > 200
    assert [Seen(kernel, {}).foreign for kernel in kernels] == [None, None]


def test_the_hot_gemm_of_a_decode_step_launched_again_is_bound_by_dram():
    """32 × 2048 by 2048 × 16384 in bf16, L2 flushed before each launch: its 67 MB of weights are what it moves."""
    verdict = recorded(H200 / "ncu-2025.3.1_rerun_decode-gemm.ncu-rep.xz")
    (row,) = verdict.tables["launches"]
    (roof,) = verdict.tables["roofline"]

    assert (row["launches"], row["class"], row["median_us"]) == (3, "DRAM-bound", pytest.approx(20.2, abs=0.1))
    assert roof["bytes"] == pytest.approx(2 * 2048 * 16384, rel=0.05)


@pytest.mark.parametrize("name", ["fma_chains", "read_l2"])
def test_bytes_of_dram_are_no_floor_for_a_kernel_that_something_else_holds(name):
    """Their few bytes would promise a thousandth of the time; FLOP aren't counted in these reports."""
    verdict = recorded(report(name))

    assert "roofline" not in verdict.tables
    facts = {fact.name: fact for fact in verdict.findings[0].facts}
    assert facts["floor by the roofline"].value is None
    assert "what it computes was not counted" in facts["floor by the roofline"].text
    assert facts["above the floor"].value is None
