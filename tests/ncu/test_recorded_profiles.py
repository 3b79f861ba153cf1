"""Every recorded profile gives the verdict that its description and NVIDIA's own rules support."""

from __future__ import annotations

import pytest

from gputop_llm.ncu.model import GemmShape
from gputop_llm.ncu.read import is_profile, read_profile
from tests.support.captures import CAPTURES, field_case
from tests.support.kernels import ALONE, DETAILS, FULL, GEMV, RAW, SHARED, TINY, found, ids, recorded

#: of duration (µs), waves, SM %, memory %; (kernel, grid)
GEMMS = {
    (4, 24, 1, "splitK"): (12.51, 0.73, 8.9, 57.1),
    (4, 24, 1, ""): (10.30, 0.73, 8.1, 51.0),
    (4, 8, 1, ""): (6.50, 0.24, 4.2, 27.1),
}


@pytest.mark.parametrize("path", [FULL, DETAILS, RAW], ids=["report", "details", "raw"])
def test_the_three_decode_gemms_are_small_grids_and_not_memory_bound_in_every_form(path):
    verdict = recorded(path)
    rows = verdict.tables["launches"]

    assert len(rows) == 3
    assert {row["class"] for row in rows} == {"latency-bound"}
    assert ids(verdict).count("kernel-small-grid") == 3
    assert not [id for id in ids(verdict) if id.endswith("-bound")]
    assert "memory-bound" not in verdict.headline
    assert "small grid, 96 blocks on 132 SMs fill 0.73 of one wave" in verdict.headline
    for row in rows:
        split = "splitK" if "splitK" in row["kernel"] else ""
        duration, waves, sm, memory = GEMMS[(*row["grid"], split)]
        assert row["median_us"] == pytest.approx(duration, abs=0.02)
        assert row["waves"] == pytest.approx(waves, abs=0.01)
        assert row["sm_pct"] == pytest.approx(sm, abs=0.1)
        assert row["memory_pct"] == pytest.approx(memory, abs=0.1)


@pytest.mark.parametrize("path", [FULL, DETAILS, RAW], ids=["report", "details", "raw"])
def test_their_floor_is_that_of_their_bytes(path):
    """34.25 MB at 4.816 TB/s; the tensor pipe is far from its own roof."""
    roof = recorded(path).tables["roofline"][0]

    assert roof["roof"] == "DRAM"
    assert roof["floor_us"] == pytest.approx(7.13, abs=0.04)
    assert roof["above_floor_pct"] == pytest.approx(43.0, abs=0.3)


@pytest.mark.parametrize("path", [FULL, RAW], ids=["report", "raw"])
def test_their_operations_are_counted_by_the_tensor_pipe(path):
    """8 × 6144 × 2048 twice is 201.3 MFLOP; 25.2 MB."""
    rows = {(row["flop"], row["floor_us"]): row for row in recorded(path).tables["roofline"]}
    (row,) = [row for row in rows.values() if row["flop"] == 2 * 8 * 6144 * 2048]

    assert row["flop_per_byte"] == pytest.approx(7.98, abs=0.01)
    assert row["peak_flop_per_s"] == pytest.approx(989e12, rel=0.01)
    assert "kernel-tensor-idle" not in ids(recorded(path))


def test_grids_give_back_no_more_than_nvidia_says_of_them():
    """NVIDIA's LaunchConfiguration: 27.27 % for 96 of 132, 75.76 % for 32 of 132, where DRAM's roof is nearer."""
    verdict = recorded(FULL)
    gives = {f.subject: f.recoverable_pct for f in verdict.findings if f.id == "kernel-small-grid"}

    assert sorted(round(value, 1) for value in gives.values()) == [27.3, 27.3, 72.9]


def test_nvidia_agrees_on_the_class_and_its_other_lever_is_shown():
    verdict = recorded(FULL)
    note = found(verdict, "nvidia-disagrees")

    assert {row["nvidia_class"] for row in verdict.tables["launches"]} == {"Small Grid"}
    assert "Low Compression Rate" in note.headline
    assert "its class" not in note.headline


def test_a_warm_l2_and_a_shared_gpu_are_told_apart():
    alone, shared = recorded(ALONE), recorded(SHARED)

    assert "kernel-warm-l2" in ids(alone)
    assert "kernel-counters-mixed" not in ids(alone)
    assert "kernel-counters-mixed" in ids(shared)
    assert "kernel-warm-l2" not in ids(shared)
    assert "warm L2" in alone.headline
    assert "other work is in the counters" in shared.headline
    assert alone.tables["launches"][0]["median_us"] == pytest.approx(9.02, abs=0.01)
    assert shared.tables["launches"][0]["median_us"] == pytest.approx(12.74, abs=0.01)


def test_no_other_recorded_profile_is_warm_or_shared():
    for path in (FULL, RAW, DETAILS, GEMV, TINY):
        assert not {"kernel-warm-l2", "kernel-counters-mixed"} & set(ids(recorded(path))), path


def test_the_floor_of_a_warm_l2_is_unknown_unless_the_shape_is_known():
    """Its 5.9 MB of DRAM traffic would promise a floor of 1.2 µs; the shape needs 34.2 MB, which take 7.1 µs."""
    shape = {("nvjet_sm90_tst_64x32_64x16_2x1_v_bz_TNT", 128): GemmShape(32, 8192, 2048)}
    known = recorded(ALONE, shapes=shape)

    assert "roofline" not in recorded(ALONE).tables
    assert next(fact for fact in recorded(ALONE).facts if fact.name == "floor by the roofline").value is None
    assert known.tables["roofline"][0]["bytes_needed"] == 2 * (32 * 2048 + 2048 * 8192 + 32 * 8192)
    assert known.tables["roofline"][0]["floor_us"] == pytest.approx(7.1, abs=0.1)
    assert "of the 32.6 MiB that the shape needs" in found(known, "kernel-warm-l2").headline


def test_traffic_about_as_large_as_the_shape_needs_is_no_finding():
    shape = {("nvjet_sm90_tst_64x32_64x16_2x1_v_bz_TNT", 128): GemmShape(32, 8192, 2048)}

    assert "kernel-extra-bytes" not in ids(recorded(SHARED, shapes=shape))


def test_a_gemv_with_an_unfilled_grid_is_no_memory_bound_kernel():
    """Its repository calls it memory-bound at 20 %; NVIDIA's rule says that the grid is too small."""
    verdict = recorded(GEMV)
    row = verdict.tables["launches"][0]

    assert verdict.judged
    assert row["class"] == "latency-bound"
    assert row["nvidia_class"] == "Small Grid"
    assert row["waves"] == pytest.approx(0.7)
    assert row["median_us"] == pytest.approx(6.75)
    assert ids(verdict)[0] == "kernel-small-grid"
    assert "kernel-tensor-idle" not in ids(verdict)


def test_launches_of_a_block_and_a_microsecond_are_too_small_to_judge():
    verdict = recorded(TINY)

    assert not verdict.judged
    assert verdict.healthy is None
    assert set(ids(verdict)) == {"kernel-too-short"}
    assert "too small to judge" in verdict.headline
    assert {row["nvidia_class"] for row in verdict.tables["launches"]} == {"Small Grid"}
    assert verdict.capture["tool"] == "Nsight Compute 2022.4.0"


def test_a_table_between_progress_lines_and_program_output():
    a, b = read_profile([field_case(29) / "stdout.log"]).kernels

    assert (a.name, a.metrics["gpc__cycles_elapsed.max"], a.memory_pct, a.sm_pct) == ("gemm_a", 23023, 57.12, 30.40)
    assert b.name == "void norm_b<float, 4>(T1 *, int)"
    assert (b.metrics["gpc__cycles_elapsed.max"], b.memory_pct, b.sm_pct) == (1204118, 81.0, 12.5)
    rows = recorded(field_case(29) / "stdout.log").tables["launches"]
    assert [row["class"] for row in rows] == ["latency-bound", "memory-bound"]


def test_a_row_of_units_is_no_kernel():
    (only,) = read_profile([field_case(29) / "raw-page.csv"]).kernels

    assert (only.name, only.grid, only.duration_ns) == ("gemm_a", (132, 1, 1), 12510)
    assert only.metrics["sm__cycles_active.avg"] == 22911.4
    assert not recorded(field_case(29) / "raw-page.csv").judged


def test_missing_values_are_never_zero_and_give_no_class():
    verdict = recorded(field_case(30) / "metrics.csv")
    row = verdict.tables["launches"][0]
    (finding,) = verdict.findings

    assert not verdict.judged
    assert row["class"] == "can't tell"
    assert (row["memory_pct"], row["dram_pct"], row["sm_pct"]) == (None, None, 41.2)
    for metric in ("memory throughput", "DRAM throughput", "L2 hit rate", "tensor pipe", "another profiler"):
        assert metric in finding.cause


def test_profiles_are_told_by_content_and_captures_are_none():
    profiles = (ALONE, FULL, DETAILS, RAW, GEMV, TINY, *sorted(field_case(31).glob("*.log")))

    assert all(map(is_profile, profiles))
    for name in ("h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz", "public/tl_vllm_decode.json.gz", "h200/INDEX.md"):
        assert not is_profile(CAPTURES / name)
