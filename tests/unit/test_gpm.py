"""GPM: two samples in turn, what they say, and what is said when they say nothing."""

from __future__ import annotations

import math

import pynvml
import pytest

from gputop_llm.sources.nvml import NvmlSource
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CAPTURES, FakeNvml

H200 = CAPTURES / "h200"
LOADS = [H200 / f"nvml_vllm-load-{number}.json" for number in (1, 2, 3)]
MIB = 1024 * 1024


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def fake():
    return FakeNvml.from_h200(*LOADS)


def metric(fake, name, value, code=0):
    for page in fake.devices[0]["ticks"]:
        page["gpm"] = {**page["gpm"], f"NVML_GPM_METRIC_{name}": [code, value, "%"]}


def polls(source, clock, count, step_s=1.0):
    for _ in range(count):
        gpu = source.poll().gpus[0]
        clock.step(step_s)
    return gpu


def test_the_first_poll_has_no_average_yet(fake, clock):
    gpu = NvmlSource(fake, clock).poll().gpus[0]
    assert gpu.gpm is None
    assert gpu.missing["gpm"] == "needs two samples"


def test_the_second_poll_gives_the_recorded_averages(fake, clock):
    source = NvmlSource(fake, clock)
    source.poll()
    clock.step(1)
    fake.advance()
    gpm = source.poll().gpus[0].gpm
    assert gpm.interval_s == 1.0
    assert gpm.graphics_pct == 54.21360298112806
    assert gpm.sm_active_pct == 29.62498553957443
    assert gpm.sm_occupancy_pct == 4.292488108388362
    assert gpm.integer_pct == 2.2674947079094085
    assert gpm.tensor_pct == 3.5817468798493826
    assert gpm.tensor_hmma_pct == 3.581746972018024
    assert (gpm.tensor_imma_pct, gpm.tensor_dfma_pct, gpm.fp16_pct, gpm.fp64_pct) == (0.0, 0.0, 0.0, 0.0)
    assert gpm.dram_bw_pct == 21.082778023488576
    assert gpm.fp32_pct == 0.41560976276261735
    assert gpm.pcie_tx_bytes_per_s == 16.91604141720262 * MIB
    assert gpm.pcie_rx_bytes_per_s == 57.622296492115005 * MIB


def test_every_field_of_the_model_is_asked_for_under_its_own_number(fake, clock):
    """A distinct value per metric comes out in the field of that metric."""
    names = {
        "GRAPHICS_UTIL": "graphics_pct",
        "SM_UTIL": "sm_active_pct",
        "SM_OCCUPANCY": "sm_occupancy_pct",
        "INTEGER_UTIL": "integer_pct",
        "ANY_TENSOR_UTIL": "tensor_pct",
        "DFMA_TENSOR_UTIL": "tensor_dfma_pct",
        "HMMA_TENSOR_UTIL": "tensor_hmma_pct",
        "IMMA_TENSOR_UTIL": "tensor_imma_pct",
        "DRAM_BW_UTIL": "dram_bw_pct",
        "FP64_UTIL": "fp64_pct",
        "FP32_UTIL": "fp32_pct",
        "FP16_UTIL": "fp16_pct",
        "PCIE_TX_PER_SEC": "pcie_tx_bytes_per_s",
        "PCIE_RX_PER_SEC": "pcie_rx_bytes_per_s",
        "NVLINK_TOTAL_TX_PER_SEC": "nvlink_tx_bytes_per_s",
        "NVLINK_TOTAL_RX_PER_SEC": "nvlink_rx_bytes_per_s",
    }
    for link in range(18):
        fake.set(f"NvLink{link}", 1)
    for number, name in enumerate(names, start=1):
        metric(fake, name, float(number))
    gpm = polls(NvmlSource(fake, clock), clock, 2).gpm
    for number, (name, field) in enumerate(names.items(), start=1):
        scale = MIB if name.endswith("PER_SEC") else 1
        assert getattr(gpm, field) == number * scale, field


def test_two_buffers_serve_for_ever(fake, clock):
    polls(NvmlSource(fake, clock), clock, 50)
    assert fake.calls["nvmlGpmSampleAlloc"] == len(fake.live_samples) == 2
    assert fake.calls["nvmlGpmSampleGet"] == 50
    # Once a poll, and once more every four seconds for the split by pipe.
    assert fake.calls["nvmlGpmMetricsGet"] == 49 + 13


def test_each_average_is_over_the_time_since_the_poll_before(fake, clock):
    source = NvmlSource(fake, clock)
    source.poll()
    for step_s in (0.25, 2.0, 0.5):
        clock.step(step_s)
        assert source.poll().gpus[0].gpm.interval_s == pytest.approx(step_s)


def test_a_poll_too_soon_after_the_last_keeps_the_average(fake, clock):
    source = NvmlSource(fake, clock)
    polls(source, clock, 2, 0.25)
    samples = fake.calls["nvmlGpmSampleGet"]
    clock.step(-0.2)
    gpu = source.poll().gpus[0]
    assert gpu.gpm.interval_s == 0.25
    assert fake.calls["nvmlGpmSampleGet"] == samples


@pytest.mark.parametrize("value", [math.nan, math.inf, -3.0, 5000.0])
def test_a_value_that_cannot_be_costs_that_metric_only(value, fake, clock):
    metric(fake, "SM_UTIL", value)
    gpu = polls(NvmlSource(fake, clock), clock, 2)
    assert gpu.gpm.sm_active_pct is None
    assert "can't be" in gpu.missing["gpm.sm_active_pct"]
    assert gpu.gpm.tensor_pct is not None


def test_a_rate_that_no_link_has_costs_that_rate_only(fake, clock):
    metric(fake, "PCIE_TX_PER_SEC", 2.0**63 / MIB)
    gpu = polls(NvmlSource(fake, clock), clock, 2)
    assert gpu.gpm.pcie_tx_bytes_per_s is None
    assert gpu.missing["gpm.pcie_tx_bytes_per_s"] == "the driver answers 8.8e+12 MiB/s, which can't be"
    assert gpu.gpm.pcie_rx_bytes_per_s is not None


def test_a_little_over_100_is_100(fake, clock):
    metric(fake, "DRAM_BW_UTIL", 100.4)
    assert polls(NvmlSource(fake, clock), clock, 2).gpm.dram_bw_pct == 100.0


def test_one_metric_that_the_gpu_lacks_is_missing_alone(fake, clock):
    metric(fake, "FP64_UTIL", 0.0, code=3)
    gpu = polls(NvmlSource(fake, clock), clock, 2)
    assert gpu.gpm.fp64_pct is None
    assert gpu.missing["gpm.fp64_pct"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"
    assert gpu.gpm.fp32_pct is not None


def test_a_gpu_without_gpm_says_so_and_is_not_asked_again_for_minutes(fake, clock):
    for page in fake.devices[0]["ticks"]:
        page["gpm_supported"] = 0
    source = NvmlSource(fake, clock)
    gpu = polls(source, clock, 100)
    assert gpu.missing["gpm"] == "needs a Hopper or newer GPU (GPM)"
    assert fake.calls["nvmlGpmQueryDeviceSupport"] == 1
    assert fake.calls["nvmlGpmSampleAlloc"] == 0
    polls(source, clock, 2, 301)
    assert fake.calls["nvmlGpmQueryDeviceSupport"] == 2


def test_counters_kept_for_administrators_are_said_to_be(fake, clock):
    fake.fail("nvmlGpmSampleGet", 4)
    gpu = polls(NvmlSource(fake, clock), clock, 5)
    assert gpu.gpm is None
    assert "no permission (NVML_ERROR_NO_PERMISSION)" in gpu.missing["gpm"]
    assert "administrators" in gpu.missing["gpm"]
    assert fake.calls["nvmlGpmSampleGet"] == 1


def test_a_failed_sample_starts_the_pair_anew(fake, clock):
    source = NvmlSource(fake, clock)
    polls(source, clock, 2)
    fake.fail("nvmlGpmSampleGet", 999, times=1)
    assert "NVML_ERROR_UNKNOWN" in polls(source, clock, 1).missing["gpm"]
    assert polls(source, clock, 1).missing["gpm"] == "needs two samples"
    assert polls(source, clock, 1).gpm.interval_s == 1.0


def test_each_gpu_has_its_own_pair(clock):
    fake = FakeNvml.from_h200(*LOADS, copies=8)
    source = NvmlSource(fake, clock)
    source.poll()
    clock.step(1)
    assert all(gpu.gpm is not None for gpu in source.poll().gpus)
    assert len(fake.live_samples) == 16


def test_a_buffer_that_can_not_be_had_leaves_no_others_behind(fake, clock, monkeypatch):
    real = fake.nvmlGpmSampleAlloc

    def one_and_no_more():
        if fake.live_samples:
            raise pynvml.NVMLError(20)
        return real()

    monkeypatch.setattr(fake, "nvmlGpmSampleAlloc", one_and_no_more)
    source = NvmlSource(fake, clock)
    assert "ran out of memory" in polls(source, clock, 5).missing["gpm"]
    assert len(fake.live_samples) == 1
    source.close()
    assert not fake.live_samples
