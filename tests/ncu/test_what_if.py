"""A profile beside a capture: whether it is of the hot kernel, and what that could give of the window at best."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gputop_llm.ncu import shapes, shares, what_if
from gputop_llm.ncu.assemble import judge as judge_profile
from gputop_llm.ncu.model import GemmShape
from gputop_llm.ncu.read import Profile, read_profile
from gputop_llm.report import verdict_json, verdict_markdown, verdict_text
from gputop_llm.timeline.read import read_capture
from gputop_llm.tui.panels.verdict_page import verdict_rows
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.facts import share
from tests.support.kernels import ALONE, RAW, found, ids, kernel
from tests.support.synth import Simulation
from tests.support.synth_kineto import to_kineto
from tests.support.timelines import recorded

EAGER = "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz"
QWEN = "public/tl_h100_qwen.json.gz"
SPLIT, PLAIN = "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT", "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT"


def beside(context, profile):
    names = {one.full_name for one in profile.kernels}
    verdict, groups = judge_profile(profile, shapes=shapes.of_kernels(context, names))
    return what_if.beside(judge(context.timeline, context), shares.of_kernels(context, names), verdict, groups)


def profile(*kernels):
    return Profile(tuple(kernels), ("made-up",), "ncu")


@pytest.fixture
def window(tmp_path):
    """100 steps of a kernel of 600 µs and one of 20 µs, back to back."""
    simulation = Simulation()
    host = simulation.host(simulation.process(4000, "server"), device=0, name="main")
    for _ in range(100):
        host.launch(7, 600_000, "hot_gemm")
        host.launch(7, 20_000, "cold_norm")
        host.sync(7)
    return Context(read_capture([to_kineto(simulation.schedule(), tmp_path / "trace.json")]))


def test_what_it_could_give_is_its_share_of_the_window_times_what_lies_above_its_floor(window):
    at_half_of_drams_peak = kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30)
    verdict = beside(window, profile(at_half_of_drams_peak))
    (row,) = verdict.tables["what_if"]
    share = next(r["window_pct"] for r in verdict.tables["kernels"] if r["kernel"] == "hot_gemm")

    assert row["window_pct"] == pytest.approx(share)
    assert row["above_floor_pct"] == pytest.approx(50)
    assert row["at_best_pct"] == pytest.approx(share / 2)
    finding = found(verdict, "what-if")
    assert (finding.of, finding.recoverable_pct) == ("window", pytest.approx(share / 2))
    assert "not-the-hot-kernel" not in ids(verdict)
    assert verdict.findings.index(finding) < verdict.findings.index(found(verdict, "kernel-latency"))


def test_it_is_told_as_headroom_times_share_and_of_a_step_in_each_form(window):
    at_half_of_drams_peak = kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30)
    verdict = beside(window, profile(at_half_of_drams_peak))
    (row,) = verdict.tables["what_if"]
    finding = found(verdict, "what-if")
    told = (
        f"2.0× headroom on {share(row['window_pct'])} of the window = {share(row['window_pct'] / 2)} at best; "
        f"on {share(row['step_pct'])} of a "
    )

    assert row["headroom"] == pytest.approx(2)
    # 100 steps of 600 + 20 µs with what the host does between them, from one's begin to the next one's.
    assert row["window_pct"] <= row["step_pct"] < 100 * 600 / 620
    assert row["step_at_best_pct"] == pytest.approx(row["step_pct"] / 2)
    assert told in finding.headline
    text, page = verdict_text.verdict_text(verdict), verdict_markdown.verdict_markdown(verdict)
    screen = "\n".join("".join(text for text, _ in line) for line in verdict_rows(verdict, 200).lines)
    said = json.loads(verdict_json.verdict_text(verdict))
    assert "2.0× headroom" in text
    assert "2.0× headroom" in page
    assert "2.0× headroom" in screen
    assert "What the profiled kernels could give" in text
    assert "What the profiled kernels could give" in page
    assert "What the profiled kernels could give" in screen
    assert said["tables"]["what_if"][0]["headroom"] == pytest.approx(2)


def test_a_kernel_of_little_of_the_window_is_not_the_hot_kernel(window):
    verdict = beside(window, profile(kernel("cold_norm", sm=20, memory=50, dram=50, l2=30)))
    finding = found(verdict, "not-the-hot-kernel")

    assert "the hottest is hot_gemm" in finding.headline
    assert finding.next_capture == "ncu on hot_gemm"


def test_a_kernel_that_is_not_in_the_capture_is_not_the_hot_kernel(window):
    verdict = beside(window, profile(kernel("other", sm=20, memory=50, dram=50, l2=30)))

    assert "other is not in the capture" in found(verdict, "not-the-hot-kernel").headline
    assert "what_if" not in verdict.tables


def test_what_nothing_is_known_of_gives_no_figure(window):
    verdict = beside(window, profile(replace(kernel("hot_gemm", sm=20, memory=50), metrics={})))
    finding = found(verdict, "what-if")

    assert finding.recoverable_pct is None
    assert "not known" in finding.headline


def test_the_same_kernel_with_another_grid_counts_with_a_warning(window):
    grid = int(window.timeline.ops.grid.max())
    same = beside(window, profile(kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30, grid=(grid, 1, 1))))
    other = beside(window, profile(kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30, grid=(grid + 1, 1, 1))))

    assert "another shape was profiled" in found(other, "what-if").confidence
    assert "another shape was profiled" not in found(same, "what-if").confidence


def test_the_verdict_of_the_capture_stays_as_it_was(window):
    alone = judge(window.timeline, window)
    both = beside(window, profile(kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30)))

    assert (both.headline, both.healthy, both.judged) == (alone.headline, alone.healthy, alone.judged)
    assert set(ids(alone)) <= set(ids(both))


def test_grids_of_one_kernel_have_shares_of_their_own():
    """The decode GEMMs were profiled in the loop that was captured: 32 and 96 blocks of one kernel, 96 of the split."""
    context = recorded(EAGER)
    verdict = beside(context, read_profile([RAW]))
    rows = {(row["kernel"], row["blocks"]): row for row in verdict.tables["what_if"]}
    whole = next(r["window_pct"] for r in verdict.tables["kernels"] if r["kernel"] == PLAIN)

    assert set(rows) == {(SPLIT, 96), (PLAIN, 96), (PLAIN, 32)}
    assert rows[PLAIN, 96]["window_pct"] + rows[PLAIN, 32]["window_pct"] == pytest.approx(whole, abs=0.01)
    assert sum(row["at_best_pct"] for row in rows.values()) < 2
    assert "not-the-hot-kernel" not in ids(verdict)


def test_findings_of_a_single_kernel_are_named_among_those_of_the_capture(window):
    verdict = beside(window, profile(kernel("hot_gemm", sm=20, memory=50, dram=50, l2=30)))

    assert found(verdict, "kernel-latency").subject == "hot_gemm"


def test_a_kernel_of_another_load_is_not_the_hot_one():
    assert "not-the-hot-kernel" in ids(beside(recorded(EAGER), read_profile([ALONE])))


def test_shapes_are_those_of_the_operator_that_launched_the_kernel():
    context = recorded(QWEN)
    (name,) = [
        n
        for n in context.timeline.strings
        if n.startswith("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64")
    ][:1]
    found_shapes = shapes.of_kernels(context, [name])

    assert GemmShape(8944, 2816, 1024) in found_shapes.values()


def test_a_capture_without_shapes_tells_none():
    assert shapes.of_kernels(recorded(EAGER), [PLAIN]) == {}
