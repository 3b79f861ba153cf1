"""Every recorded capture gets the verdict that its INDEX calls right, and none of its traps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import pytest

from gputop_llm.model.finding import Verdict, Weight
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.assemble import judge
from tests.support.captures import CAPTURES

HEALTHY, FINDS, CANT = "healthy", "finds", "can't judge"
CASES = "field-cases"


@dataclass(frozen=True)
class Expected:
    """What the verdict must say. `busy`: share of the window by device; `first`: id of the first finding;
    `says`: parts of the headline; `never`: ids that no finding may have."""

    outcome: str
    busy: dict[int, float]
    window_ms: float | None = None
    first: str | None = None
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


RIGHT = {
    "h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz": Expected(
        FINDS, {0: 52.2}, 1071.9, "launch-bound", ("Launch-bound",), ("sync-bound", "transfer-bound")
    ),
    "h200/nsys-2023.4.4_torch-eager-decode.sqlite.xz": Expected(
        FINDS, {0: 16.74}, 2037.3, "launch-bound", ("Launch-bound",), ("sync-bound",)
    ),
    "h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz": Expected(FINDS, {0: 28.75}, 500.2, "launch-bound"),
    "h200/kineto_vllm-0.24_cpu+cuda_0.5s.json.gz": Expected(FINDS, {0: 23.7}, 503.9, "launch-bound"),
    "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz": Expected(
        FINDS, {0: 12.69}, 500.4, "launch-bound", ("Launch-bound",)
    ),
    "h200/native_vllm-0.24_kernels+api_0.5s.gtw.xz": Expected(
        FINDS, {0: 47.68}, 499.9, "launch-bound", ("Launch-bound",), ("sync-bound", "transfer-bound")
    ),
    "h200/native_vllm-0.24_named_0.5s.gtw.xz": Expected(
        FINDS, {0: 26.88}, 500.0, "launch-bound", ("Launch-bound",), ("sync-bound", "transfer-bound")
    ),
    "public/nsysai_h100_2gpu_1s.sqlite.xz": Expected(
        FINDS,
        {0: 99.3, 1: 99.3},
        969.4,
        "transfer-bound",
        ("Transfer-bound", "27.7 GB/s"),
        ("launch-bound", "gpu-idle", "sync-bound"),
    ),
    "public/flameox_graph_2025.5.2.sqlite": Expected(CANT, {0: 0.00167}, 467.7, says=("2 graph replays",)),
    "public/lt_gemm.sqlite": Expected(CANT, {}, says=("driver (CUDA 13.3) is newer", "update nsys")),
    "public/tl_h100_qwen.json.gz": Expected(
        FINDS, {0: 91.6}, 49.8, "unfused-elementwise", ("elementwise",), ("launch-bound", "sync-bound", "gpu-idle")
    ),
    "public/tl_vllm_decode.json.gz": Expected(
        HEALTHY, {2: 99.8}, 10.7, says=("GPU-bound in MoE GEMM", "100 %"), never=("launch-bound", "gpu-idle")
    ),
    "public/hta_negq.json.gz": Expected(
        FINDS, {0: 35.33}, 1240.8, "idle-though-submitted", never=("launch-bound", "host-bound")
    ),
    f"{CASES}/22-same-stream-id-on-three-gpus/capture.sqlite": Expected(
        FINDS, dict.fromkeys(range(4), 86.1), 100.0, "gpu-idle"
    ),
    f"{CASES}/23-old-and-future-export/old.sqlite": Expected(
        FINDS, {0: 42.55}, 94.0, "gpu-idle", ("just in time", "6.0 ms")
    ),
    f"{CASES}/23-old-and-future-export/future.sqlite": Expected(
        FINDS, {0: 42.55}, 94.0, "gpu-idle", ("just in time", "6.0 ms")
    ),
    f"{CASES}/24-windows-paths-in-a-trace/trace.json": Expected(CANT, {0: 31.03}, 0.290, says=("3 kernels",)),
    f"{CASES}/25-metadata-only-trace/meta.json": Expected(CANT, {}, says=("no events were recorded",)),
    f"{CASES}/25-metadata-only-trace/cpu-only.json": Expected(
        CANT, {}, says=("no GPU activity was recorded", "CUDA activity was off", "ProfilerActivity.CUDA")
    ),
    f"{CASES}/26-kernels-shorter-than-a-microsecond/trace.json": Expected(
        CANT, {0: 10.18}, 0.0982, says=("too short", "50 kernels", "10.2 %")
    ),
    f"{CASES}/27-bare-array-with-named-pids/trace.json": Expected(CANT, {0: 78.62}, 0.247, says=("2 kernels",)),
    f"{CASES}/28-one-launch-for-eighteen-kernels/trace.json": Expected(
        HEALTHY, {9: 98.1}, 1.0, says=("GPU-bound", "MoE GEMM", "98 %"), never=("launch-bound",)
    ),
}


@cache
def verdict_on(name: str) -> Verdict:
    return judge(read_capture([CAPTURES / name]))


@pytest.mark.parametrize("name", RIGHT)
def test_the_verdict_is_the_right_one(name):
    expected, verdict = RIGHT[name], verdict_on(name)

    assert verdict.judged is (expected.outcome != CANT), verdict.headline
    assert verdict.healthy is {HEALTHY: True, FINDS: False, CANT: None}[expected.outcome], verdict.headline
    for part in expected.says:
        assert part in verdict.headline
    if expected.outcome == FINDS:
        assert verdict.headline == verdict.findings[0].headline
        assert verdict.findings[0].id == expected.first
    else:
        assert verdict.headline.startswith(expected.outcome)
        assert not [f for f in verdict.findings if f.weight > Weight.NOTE and (f.recoverable_pct or 0) >= 10]
    assert not {f.id for f in verdict.findings} & set(expected.never)


@pytest.mark.parametrize("name", RIGHT)
def test_coverage_is_right_within_one_percent_for_each_device(name):
    expected, verdict = RIGHT[name], verdict_on(name)
    covered = {row["device"]: row["busy_pct"] for row in verdict.tables.get("coverage", ())}

    assert covered == {device: pytest.approx(pct, rel=0.01) for device, pct in expected.busy.items()}
    assert all(0 <= pct <= 100 for pct in covered.values())
    if expected.window_ms is not None:
        assert verdict.capture["window_ms"] == pytest.approx(expected.window_ms, rel=0.01)


@pytest.mark.parametrize("name", [name for name, expected in RIGHT.items() if expected.busy])
def test_idle_causes_sum_to_the_idle_time(name):
    verdict = verdict_on(name)
    for row in verdict.tables["coverage"]:
        causes = [r["idle_ms"] for r in verdict.tables["idle"] if r["device"] == row["device"]]
        assert sum(causes) == pytest.approx(verdict.capture["window_ms"] - row["busy_ms"], rel=1e-6)


@pytest.mark.parametrize("name", RIGHT)
def test_findings_are_ranked_by_what_they_could_give(name):
    gives = [
        f.recoverable_pct
        for f in verdict_on(name).findings
        if f.weight > Weight.NOTE and f.of == "window" and f.recoverable_pct is not None
    ]

    assert gives == sorted(gives, reverse=True)
    assert all(0 <= pct <= 100 for pct in gives)


def test_a_vllm_capture_without_its_graph_replays_would_read_ten_percent_busy():
    (row,) = verdict_on("h200/nsys-2025.3.1_vllm-0.24-graphs.sqlite.xz").tables["coverage"]

    assert row["graph_replays"] == 396
    assert row["kernels"] == 8220
    assert row["busy_pct"] == pytest.approx(52.2, abs=0.1)


def test_a_capture_that_cannot_be_judged_claims_no_idle_gpu():
    for name, expected in RIGHT.items():
        if expected.outcome == CANT:
            assert verdict_on(name).findings == ()
            assert "idle" not in verdict_on(name).headline.lower()


def test_an_old_and_a_future_export_of_the_same_run_give_the_same_verdict():
    old, future = (verdict_on(f"{CASES}/23-old-and-future-export/{which}.sqlite") for which in ("old", "future"))

    assert old.headline == future.headline
    assert any("schema 3.40.0 is newer" in note for note in future.notes)
    assert any("names of the GPUs" in note for note in old.notes)


def test_the_hot_kernels_of_a_graph_replay_are_named():
    kernels = verdict_on(f"{CASES}/28-one-launch-for-eighteen-kernels/trace.json").tables["kernels"]

    assert any("moe_gemm" in row["kernel"] for row in kernels)
    assert {row["device"] for row in kernels} == {9}


def test_nothing_below_five_percent_of_the_window_is_proposed_for_ncu():
    for name in RIGHT:
        verdict = verdict_on(name)
        proposed = " ".join(f.next_capture or "" for f in verdict.findings if "ncu" in (f.next_capture or ""))
        for row in verdict.tables.get("kernels", ()):
            assert row["window_pct"] >= 5 or f"{row['kernel']}:" not in proposed


def test_streams_are_named_by_device_and_hidden_communication_is_not_exposed():
    verdict = verdict_on(f"{CASES}/22-same-stream-id-on-three-gpus/capture.sqlite")
    (talked,) = verdict.tables["communication"]

    assert (talked["device"], talked["communication_ms"], talked["exposed_ms"]) == (0, pytest.approx(40), 0)
    assert sorted((row["device"], row["stream"]) for row in verdict.tables["streams"]) == [
        (0, 7),
        (0, 20),
        (1, 17),
        (2, 17),
        (3, 17),
    ]
    assert "comm-exposed" not in {f.id for f in verdict.findings}


def test_a_trace_that_names_no_runtime_is_not_said_to_be_of_cuda():
    assert verdict_on(f"{CASES}/28-one-launch-for-eighteen-kernels/trace.json").capture["tool"] == "Kineto"
    assert verdict_on("public/tl_vllm_decode.json.gz").capture["tool"] == "Kineto (HIP 70051831)"


def test_a_mended_trace_says_so_once():
    notes = verdict_on(f"{CASES}/24-windows-paths-in-a-trace/trace.json").notes

    assert len([note for note in notes if "mended" in note]) == 1


def test_a_trace_of_the_old_profiler_says_what_it_lacks():
    notes = verdict_on(f"{CASES}/27-bare-array-with-named-pids/trace.json").notes

    assert any("old autograd profiler" in note for note in notes)


def test_node_level_records_state_their_distortion():
    verdict = verdict_on("h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz")

    assert any("node by node" in note for note in verdict.notes)
    busy = next(fact for fact in verdict.facts if fact.name == "GPU busy")
    assert busy.value + busy.plus_minus >= 45, "the same load is 52.2 % busy without the distortion"
    assert verdict.findings[0].confidence.startswith("low")


def test_both_windows_are_given_for_a_trace_that_tells_its_own():
    facts = {f.name: f.value for f in verdict_on("h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz").facts}

    assert facts["GPU busy"] == pytest.approx(28.75, rel=0.01)
    assert facts["GPU busy, first to last activity"] == pytest.approx(29.8, rel=0.01)


def test_a_native_record_of_replays_reads_nearly_as_busy_as_whole_replays_did():
    verdict = verdict_on("h200/native_vllm-0.24_kernels+api_0.5s.gtw.xz")
    facts = {fact.name: fact for fact in verdict.facts}

    assert facts["GPU busy, first to last activity"].value == pytest.approx(48.5, abs=0.05)
    busy = facts["GPU busy, first to last activity"]
    assert busy.value < 52.2 < busy.value + busy.plus_minus + 0.1, "the same load in whole replays"
    assert any("48.5 %" in note and "node by node" in note for note in verdict.notes)
    assert any("names of 45 kernels" in note for note in verdict.notes)
    (row,) = verdict.tables["coverage"]
    assert (row["kernels"], row["copies"], row["memsets"]) == (37_486, 910, 80)


def test_a_window_of_our_own_client_in_a_live_engine_names_kernels_and_steps():
    verdict = verdict_on("h200/native_vllm-0.24_named_0.5s.gtw.xz")

    assert verdict.tables["kernels"][0]["kernel"] == "nvjet_sm90_tst_128x32_64x10_2x1_v_bz_TNT"
    assert [row["family"] for row in verdict.tables["families"][:2]] == ["GEMM", "attention"]
    decode = next(row for row in verdict.tables["steps"] if row["phase"] == "decode")
    assert (decode["steps"], decode["kernels"], decode["launches"]) == (107, 213.0, 25.0)


def test_every_idle_share_of_a_node_level_record_carries_its_error():
    verdict = verdict_on("h200/native_vllm-0.24_kernels+api_0.5s.gtw.xz")
    found = {f.id: f for f in verdict.findings}
    shares = [
        fact
        for name in ("launch-bound", "host-bound")
        for fact in found[name].facts
        if fact.unit == "%" and ("gaps" in fact.formula or "submitting thread so" in fact.formula)
    ]

    assert len(shares) >= 5
    assert [fact.name for fact in shares if not fact.plus_minus or fact.plus_minus > fact.value] == []
