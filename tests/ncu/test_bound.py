"""The class of a launch and what comes after it, on launches that differ from a healthy one in a single thing."""

from __future__ import annotations

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.ncu.model import GemmShape
from tests.support.kernels import ELAPSED, GEMM, PLENTY, found, ids, judged, kernel, rule

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
IDLE_SCHEDULERS = {"smsp__issue_active.avg.pct_of_peak_sustained_active": 20.0}


@pytest.mark.parametrize(
    ("light", "kind", "id"),
    [
        ({"sm": 20, "memory": 85, "dram": 85, "l2": 60}, "DRAM-bound", "kernel-dram-bound"),
        ({"sm": 20, "memory": 60, "dram": 60, "l2": 62}, "DRAM-bound", "kernel-dram-bound"),
        ({"sm": 20, "memory": 70, "dram": 30, "l2": 70}, "L2-bound", "kernel-l2-bound"),
        ({"sm": 20, "memory": 75, "dram": 5, "l2": 20, "l1": 75}, "L1-bound", "kernel-l1-bound"),
        ({"sm": 20, "memory": 75}, "memory-bound", "kernel-memory-bound"),
        ({"sm": 41, "memory": 62, "dram": 62, "l2": 30}, "DRAM-bound", "kernel-dram-bound"),
        ({"sm": 60, "memory": 59, "dram": 59, "l2": 30}, "compute-bound", "kernel-compute-bound"),
        ({"sm": 90, "memory": 70, "dram": 70, "l2": 30}, "compute-bound", "kernel-compute-bound"),
        ({"sm": 59.9, "memory": 59.9, "dram": 59.9, "l2": 30}, "latency-bound", "kernel-latency"),
        ({"sm": 59, "dram": 20, "l2": 65}, "L2-bound", "kernel-l2-bound"),
        ({"sm": 59}, "can't tell", "kernel-unknown"),
        ({"memory": 95, "dram": 95}, "can't tell", "kernel-unknown"),
        ({"sm": 59, "dram": 20}, "can't tell", "kernel-unknown"),
    ],
)
def test_the_class_follows_the_speed_of_light(light, kind, id):
    verdict = judged(kernel(**light))

    assert verdict.tables["launches"][0]["class"] == kind
    assert ids(verdict)[0] == id


def test_near_drams_roof_is_healthy_and_the_lever_is_fewer_bytes():
    verdict = judged(kernel(sm=20, memory=93, dram=93, l2=60))

    assert verdict.healthy
    assert "the lever is fewer bytes" in verdict.headline
    assert verdict.findings[0].weight is Weight.NOTE
    assert "each step reads every weight once" in verdict.findings[0].cause


def test_sectors_and_bytes_stand_beside_what_the_shape_needs():
    loads = {"l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum": 1600.0,
             "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum": 100.0, "dram__bytes.sum": 100e6}  # fmt: skip
    shapes = {(GEMM, 1056): GemmShape(32, 8192, 2048)}
    verdict = judged(kernel(sm=20, memory=93, dram=93, l2=60, with_=loads), shapes=shapes)
    facts = {fact.name: fact.value for fact in verdict.findings[1].facts}

    assert ids(verdict) == ["kernel-extra-bytes", "kernel-dram-bound"]
    assert facts["sectors of a load"] == 16
    assert facts["moved by DRAM"] == 100e6
    assert facts["needed by the shape"] == 2 * (32 * 2048 + 2048 * 8192 + 32 * 8192)
    assert verdict.findings[0].recoverable_pct == pytest.approx(65.8, abs=0.1)


WARM = {f"lts__t_sectors{ELAPSED}": 40.0, f"lts__d_sectors_fill_device{ELAPSED}": 0.01}


@pytest.mark.parametrize(("name", "weight"), [(GEMM, Weight.FINDING), ("vllm::rms_norm_kernel", Weight.NOTE)])
def test_a_warm_l2_matters_where_the_live_run_reads_from_dram(name, weight):
    verdict = judged(kernel(name, sm=20, memory=70, dram=5, l2=70, with_=WARM))

    assert found(verdict, "kernel-warm-l2").weight is weight


def test_l2_that_fetched_is_not_warm_and_neither_is_one_that_was_hardly_used():
    fetched = {**WARM, f"lts__d_sectors_fill_device{ELAPSED}": 20.0}
    unused = {f"lts__t_sectors{ELAPSED}": 1.0, f"lts__d_sectors_fill_device{ELAPSED}": 0.0}

    for metrics in (fetched, unused, {"lts__t_sector_hit_rate.pct": 99.0}):
        verdict = judged(kernel(sm=20, memory=70, dram=5, l2=70, with_=metrics), options={"cache-control": "none"})
        assert "kernel-warm-l2" not in ids(verdict)


def test_compute_is_named_by_its_busiest_pipe():
    pipes = {f"sm__pipe_tensor_cycles_active{ELAPSED}": 81.0, f"sm__pipe_alu_cycles_active{ELAPSED}": 12.0}

    assert "most in tensor (81 %)" in judged(kernel(sm=82, memory=40, with_=pipes)).headline
    said = rule("HighPipeUtilization", message="ALU is the highest-utilized pipeline (71.5%) based on active cycles")
    assert "most in ALU (72 %)" in judged(kernel(sm=72, memory=40, rules=[said])).headline
    assert "which pipe was not recorded" in judged(kernel(sm=72, memory=40)).headline


LATENCY = {"sm": 20, "memory": 30, "dram": 30, "l2": 20}
STALLS = {
    _STALL.format("long_scoreboard"): 8.0,
    _STALL.format("selected"): 1.0,
    _STALL.format("barrier"): 1.0,
    **IDLE_SCHEDULERS,
}


def test_causes_of_latency_are_looked_at_in_their_order():
    """The biggest stall is not the root cause while the grid, its tail or the occupancy explain it."""
    narrow = {**STALLS, "sm__maximum_warps_per_active_cycle_pct": 25.0, "launch__occupancy_limit_registers": 2.0,
              "launch__occupancy_limit_shared_mem": 4.0}  # fmt: skip
    tail = {**narrow, "launch__waves_per_multiprocessor": 1.1, "sm__warps_active.avg.pct_of_peak_sustained_active": 15}
    small = {**tail, "launch__waves_per_multiprocessor": 0.5}
    first = [ids(judged(kernel(**LATENCY, with_=metrics)))[0] for metrics in (small, tail, narrow, STALLS)]

    assert first == ["kernel-small-grid", "kernel-tail-wave", "kernel-occupancy", "kernel-stall"]


def test_the_limiter_of_occupancy_is_named():
    limits = {"launch__occupancy_limit_registers": 2.0, "launch__occupancy_limit_shared_mem": 2.0,
              "launch__occupancy_limit_warps": 8.0}  # fmt: skip
    metrics = {**IDLE_SCHEDULERS, **limits, "sm__maximum_warps_per_active_cycle_pct": 25.0}

    assert "held at 25 % by registers and shared memory" in judged(kernel(**LATENCY, with_=metrics)).headline


def test_low_occupancy_is_no_defect_where_the_kernel_is_near_its_roof():
    low = {"sm__maximum_warps_per_active_cycle_pct": 12.5, **IDLE_SCHEDULERS}

    assert "kernel-occupancy" not in ids(judged(kernel(sm=20, memory=90, dram=90, l2=50, with_=low)))
    assert "kernel-occupancy" not in ids(judged(kernel(sm=85, memory=20, dram=20, l2=20, with_=low)))


def test_low_occupancy_is_no_cause_where_it_is_not_known_whether_schedulers_wait():
    verdict = judged(kernel(**LATENCY, with_={"sm__maximum_warps_per_active_cycle_pct": 25.0}))

    assert ids(verdict) == ["kernel-latency"]
    assert "SchedulerStats" in verdict.findings[0].next_capture


def test_a_tail_needs_few_waves_and_an_occupancy_that_falls_short():
    many = {"launch__waves_per_multiprocessor": 9.1, "sm__warps_active.avg.pct_of_peak_sustained_active": 15.0}
    full = {"launch__waves_per_multiprocessor": 1.1}
    whole = {"launch__waves_per_multiprocessor": 2.0, "sm__warps_active.avg.pct_of_peak_sustained_active": 15.0}

    for metrics in (many, full, whole):
        assert "kernel-tail-wave" not in ids(judged(kernel(**LATENCY, with_=metrics)))
    tail = {"launch__waves_per_multiprocessor": 1.2, "sm__warps_active.avg.pct_of_peak_sustained_active": 15.0}
    assert judged(kernel(**LATENCY, with_=tail)).findings[0].recoverable_pct == pytest.approx(40.0)


IDLE_TENSOR = {f"sm__pipe_tensor_cycles_active{ELAPSED}": 0.0, f"sm__pipe_fma_cycles_active{ELAPSED}": 80.0}


def test_an_idle_tensor_pipe_in_a_16_bit_gemm_is_severe():
    finding = found(judged(kernel(sm=80, memory=25, dram=25, l2=20, with_=IDLE_TENSOR)), "kernel-tensor-idle")

    assert finding.weight is Weight.SEVERE
    assert finding.recoverable_pct == 75


NO_OPERATIONS = {f"sm__ops_path_tensor_src_{dtype}.sum": 0.0 for dtype in ("bf16_dst_fp32", "fp16", "int8")}


@pytest.mark.parametrize(
    "metrics",
    [
        {f"sm__pipe_tensor_cycles_active{ELAPSED}": 0.0064},
        # Packed 16-bit arithmetic runs on that pipe too.
        {f"sm__pipe_tensor_cycles_active{ELAPSED}": 5.3, **NO_OPERATIONS},
    ],
    ids=["next to nothing", "no operation counted"],
)
def test_a_pipe_that_multiplies_nothing_is_idle_whatever_else_runs_on_it(metrics):
    assert "kernel-tensor-idle" in ids(judged(kernel(sm=80, memory=25, dram=25, l2=20, with_=metrics)))


def test_shares_above_100_pct_show_other_work_unless_they_are_of_an_l2_that_nothing_uses():
    foreign = {"lts__t_sector_hit_rate.pct": 203.0}
    mixed = "kernel-counters-mixed"

    assert mixed in ids(judged(kernel(sm=80, memory=25, dram=25, l2=20, with_=foreign)))
    assert mixed in ids(judged(kernel(sm=80, memory=25, with_=foreign)))
    assert mixed not in ids(judged(kernel(sm=80, memory=25, l2=0.002, with_=foreign)))
    assert mixed in ids(judged(kernel(sm=80, memory=25, l2=0.002, with_={"l1tex__t_sector_hit_rate.pct": 203.0})))


@pytest.mark.parametrize(
    ("name", "metrics", "missing"),
    [
        (GEMM, {f"sm__pipe_tensor_cycles_active{ELAPSED}": 2.0}, ()),
        (GEMM, {**IDLE_TENSOR, **NO_OPERATIONS, "sm__ops_path_tensor_src_fp16.sum": 4096.0}, ()),
        (
            GEMM,
            {f"sm__pipe_tensor_cycles_active{ELAPSED}": 2.0, **NO_OPERATIONS},
            ("sm__ops_path_tensor_src_fp8_sparsity_off.sum",),
        ),
        (GEMM, {"sm__ops_path_tensor_src_int8.sum": 0.0}, ()),
        (GEMM, {}, (f"sm__pipe_tensor_cycles_active{ELAPSED}",)),
        (GEMM, {}, ()),
        (
            GEMM,
            {f"sm__pipe_tensor_op_imma_cycles_active{ELAPSED}": 0.0},
            (f"sm__pipe_tensor_op_hmma_cycles_active{ELAPSED}",),
        ),
        ("gemvNSP_kernel<__nv_bfloat16, __nv_bfloat16>", IDLE_TENSOR, ()),
        ("cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>", IDLE_TENSOR, ()),
        ("ampere_sgemm_128x64_nn", IDLE_TENSOR, ()),
        ("vllm::rms_norm_kernel<c10::BFloat16>", IDLE_TENSOR, ()),
    ],
    ids=[
        "used",
        "operations",
        "operations of a type unknown",
        "operations of one type",
        "n/a",
        "not asked for",
        "one type only",
        "gemv",
        "sum of a split",
        "32 bits",
        "no product",
    ],
)
def test_a_tensor_pipe_that_is_used_unknown_or_not_needed_is_no_finding(name, metrics, missing):
    verdict = judged(kernel(name, sm=80, memory=25, dram=25, l2=20, with_=metrics, missing=missing))

    assert "kernel-tensor-idle" not in ids(verdict)


@pytest.mark.parametrize(
    ("id", "metrics", "little"),
    [
        (
            "kernel-spills",
            {"derived__local_spilling_requests_pct": 12.0},
            {"derived__local_spilling_requests_pct": 4.0},
        ),
        (
            "kernel-spills",
            {"smsp__sass_inst_executed_op_local_ld.sum": 60.0, "smsp__sass_inst_executed_op_local_st.sum": 40.0,
             "smsp__inst_executed.sum": 1000.0},
            {"smsp__sass_inst_executed_op_local_ld.sum": 6.0, "smsp__sass_inst_executed_op_local_st.sum": 4.0,
             "smsp__inst_executed.sum": 1000.0},
        ),
        (
            "kernel-bank-conflicts",
            {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 300.0,
             "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000.0,
             f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}": 50.0},
            {"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum": 300.0,
             "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum": 1000.0,
             f"l1tex__data_pipe_lsu_wavefronts{ELAPSED}": 10.0},
        ),
        (
            "kernel-uncoalesced",
            {"derived__memory_l2_theoretical_sectors_global_excessive": 750.0,
             "memory_l2_theoretical_sectors_global": 1000.0},
            {"derived__memory_l2_theoretical_sectors_global_excessive": 50.0,
             "memory_l2_theoretical_sectors_global": 1000.0},
        ),
        (
            "kernel-uncoalesced",
            {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 8.0},
            {"smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.ratio": 31.0,
             "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.ratio": 0.0},
        ),
    ],
)  # fmt: skip
def test_spills_conflicts_and_scattered_access_are_told_when_they_cost_more_than_5_pct(id, metrics, little):
    light = {"sm": 20, "memory": 70, "dram": 30, "l2": 70}

    assert found(judged(kernel(**light, with_=metrics)), id).recoverable_pct > 5
    assert id not in ids(judged(kernel(**light, with_=little)))
    assert id not in ids(judged(kernel(**light)))


def test_a_disagreement_with_nvidia_is_shown_with_both_sides():
    said = rule("SOLBottleneck", "High Compute Throughput")
    verdict = judged(kernel(sm=20, memory=85, dram=85, l2=60, rules=[said]))
    note = found(verdict, "nvidia-disagrees")

    assert 'its class is "High Compute Throughput", ours DRAM-bound' in note.headline
    agreeing = [rule("SOLBottleneck", "High Memory Throughput"), rule("SOLBottleneck", "Balanced Throughput")]
    for same in agreeing:
        assert "nvidia-disagrees" not in ids(judged(kernel(sm=60, memory=65, dram=65, l2=60, rules=[same])))


def test_nvidias_largest_estimate_for_the_whole_kernel_comes_before_one_for_a_part():
    rules = [rule("SOLBottleneck", "Small Grid"), rule("HighPipeUtilization", "Low Utilization", 97.0, False),
             rule("LaunchConfiguration", "Small Grid", 27.0)]  # fmt: skip
    verdict = judged(kernel(**LATENCY, with_={"launch__waves_per_multiprocessor": 0.5}, rules=rules))
    fact = verdict.findings[0].facts[-1]

    assert (fact.value, fact.formula) == (27.0, "LaunchConfiguration")
    assert "nvidia-disagrees" not in ids(verdict)


def test_launches_of_one_kernel_and_shape_are_summarised_and_other_shapes_stand_apart():
    def taking(ns, grid=(1056, 1, 1)):
        return kernel(sm=20, memory=93, dram=93, l2=60, grid=grid, with_={"gpu__time_duration.sum": ns})

    verdict = judged(taking(10_000.0), taking(30_000.0), taking(20_000.0), taking(5_000.0, (8, 1, 1)))
    first, second = verdict.tables["launches"]

    assert (first["launches"], first["median_us"], first["shortest_us"], first["longest_us"]) == (3, 20, 10, 30)
    assert (second["launches"], second["grid"]) == (1, [8, 1, 1])


def test_findings_rank_by_what_they_give_of_all_profiled_time():
    short = {"launch__waves_per_multiprocessor": 0.1, "gpu__time_duration.sum": 3_000.0}
    long = {"launch__waves_per_multiprocessor": 0.6, "gpu__time_duration.sum": 90_000.0}
    verdict = judged(kernel("short", **LATENCY, with_=short), kernel("long", **LATENCY, with_=long))

    assert [finding.subject.split()[0] for finding in verdict.findings] == ["long", "short"]


def test_another_kernel_than_the_one_asked_for_gets_no_verdict():
    verdict = judged(kernel(sm=20, memory=93, dram=93, l2=60), name="flash_fwd")

    assert not verdict.judged
    assert verdict.headline.startswith("this isn't your hot kernel")
    assert "flash_fwd" in verdict.headline


def test_a_kernel_asked_for_leaves_the_others_out():
    light = {"sm": 20, "memory": 93, "dram": 93, "l2": 60}
    verdict = judged(kernel(**light), kernel("flash_fwd_kernel", **light), name="flash_fwd")

    assert [row["kernel"] for row in verdict.tables["launches"]] == ["flash_fwd_kernel"]
    assert any("left out" in note for note in verdict.notes)


def test_a_healthy_launch_of_the_tests_has_nothing_to_tell_but_its_roof():
    assert ids(judged(kernel(sm=20, memory=93, dram=93, l2=60))) == ["kernel-dram-bound"]
    assert PLENTY["launch__waves_per_multiprocessor"] >= 1
