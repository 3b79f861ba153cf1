"""The NVML source on the records of a real H200: right values, and a failing call costs its own field only."""

from __future__ import annotations

import json

import pynvml
import pytest

from gputop_llm.sources.nvml import NvmlSource
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CAPTURES, FakeNvml

H200 = CAPTURES / "h200"
IDLE = H200 / "nvml_idle.json"
LOADS = [H200 / f"nvml_vllm-load-{number}.json" for number in (1, 2, 3)]


@pytest.fixture
def clock():
    return ManualClock()


def source_of(fake, clock):
    return NvmlSource(fake, clock)


def third_poll(fake, clock):
    """The reading after two seconds, with every rate known."""
    source = source_of(fake, clock)
    for _ in range(3):
        node = source.poll()
        fake.advance()
        clock.step(1)
    return node


def test_the_h200_under_vllm_is_read_to_its_recorded_values(clock):
    node = third_poll(FakeNvml.from_h200(*LOADS), clock)
    gpu = node.gpus[0]
    assert (node.driver, node.cuda, node.problem, node.vgpu_guest) == ("580.159.04", "13.0", None, False)
    assert (gpu.name, gpu.architecture, gpu.integrated, gpu.lost) == ("NVIDIA H200", "Hopper", False, False)
    assert (gpu.util_pct, gpu.mem_util_pct) == (50.0, 24.0)
    assert (gpu.mem_used_bytes, gpu.mem_total_bytes) == (76391710720, 150754820096)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz) == (1980.0, 1980.0)
    assert (gpu.mem_clock_mhz, gpu.mem_clock_max_mhz, gpu.mem_bus_width_bits) == (3201.0, 3201.0, 6016)
    # The energy counter is costly and read every ten seconds: it is still the first recording's.
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j) == (279.565, 700.0, 16460.344)
    assert (gpu.temp_c, gpu.temp_mem_c, gpu.temp_slowdown_c, gpu.temp_shutdown_c) == (43.0, 45.0, 89.0, 95.0)
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max) == (5, 5, 16, 16)
    assert (gpu.ecc_corrected, gpu.ecc_uncorrected) == (0, 0)
    assert (gpu.remapped_rows, gpu.remap_pending, gpu.remap_failed) == (0, False, False)
    assert gpu.mig_enabled is False
    (process,) = gpu.processes
    assert (process.pid, process.kind, process.mem_bytes, process.sm_util_pct) == (624, "compute", 76382470144, 46.0)
    assert process.gpu_instance is None


def test_what_the_h200_does_not_have_is_missing_with_a_reason(clock):
    gpu = third_poll(FakeNvml.from_h200(*LOADS), clock).gpus[0]
    assert gpu.fan_pct is None
    assert gpu.missing["fan_pct"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"
    assert gpu.nvlink_tx_bytes_per_s is gpu.gpm.nvlink_tx_bytes_per_s is gpu.nvlink_errors is None
    assert gpu.missing["nvlink_tx_bytes_per_s"] == "this GPU has no active NVLink"
    assert gpu.missing["gpm.nvlink_tx_bytes_per_s"] == "this GPU has no active NVLink"


def test_an_idle_gpu_has_no_processes_and_zero_is_zero(clock):
    gpu = third_poll(FakeNvml.from_h200(IDLE), clock).gpus[0]
    assert gpu.processes == ()
    assert gpu.util_pct == 0.0
    assert gpu.mem_used_bytes == 0
    assert "processes.sm_util_pct" not in gpu.missing


def test_a_process_that_did_no_work_has_zero_sm_utilisation_not_an_error(clock):
    fake = FakeNvml.from_h200(*LOADS)
    fake.set("ProcUtil", "ERR NVMLError_NotFound: Not Found")
    gpu = third_poll(fake, clock).gpus[0]
    assert gpu.processes[0].sm_util_pct == 0.0
    assert "processes.sm_util_pct" not in gpu.missing


def test_sm_utilisation_above_100_is_unknown(clock):
    fake = FakeNvml.from_h200(*LOADS)
    fake.set("ProcUtil", [{"pid": 624, "timeStamp": 5, "smUtil": 4294967295}])
    assert third_poll(fake, clock).gpus[0].processes[0].sm_util_pct is None


def test_the_newest_sample_of_a_process_counts(clock):
    fake = FakeNvml.from_h200(*LOADS)
    fake.set("ProcUtil", [{"pid": 624, "timeStamp": t, "smUtil": u} for t, u in ((5, 11), (9, 22), (7, 33))])
    assert third_poll(fake, clock).gpus[0].processes[0].sm_util_pct == 22.0


def test_a_process_with_graphics_and_compute_is_listed_once_as_compute(clock):
    fake = FakeNvml.from_h200(*LOADS)
    listed = [{"pid": 624, "usedGpuMemory": 7}, {"pid": 9, "usedGpuMemory": 8}]
    fake.set("GraphicsRunningProcesses", listed)
    processes = third_poll(fake, clock).gpus[0].processes
    assert [(p.pid, p.kind) for p in processes] == [(624, "compute"), (9, "graphics")]


def test_pids_that_cannot_be_are_left_out(clock):
    fake = FakeNvml.from_h200(IDLE)
    pids = (0, 4294967295, 77)
    fake.set("ComputeRunningProcesses", [{"pid": pid, "usedGpuMemory": 1} for pid in pids])
    assert [p.pid for p in third_poll(fake, clock).gpus[0].processes] == [77]


def test_static_values_are_read_once_and_slow_ones_every_few_seconds(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    for _ in range(20):
        source.poll()
        clock.step(1)
    for call in ("Name", "UUID", "Architecture", "MemoryBusWidth", "MaxPcieLinkWidth"):
        assert fake.calls[f"nvmlDeviceGet{call}"] == 1, call
    assert fake.calls["nvmlDeviceGetMaxClockInfo"] == fake.calls["nvmlDeviceGetTemperatureThreshold"] == 2
    for call in ("EnforcedPowerLimit", "PcieReplayCounter", "RemappedRows"):
        assert fake.calls[f"nvmlDeviceGet{call}"] == 4, call
    assert fake.calls["nvmlDeviceGetPowerUsage"] == 20


def test_all_field_values_of_a_tick_come_from_one_call(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    for expected in range(1, 6):
        source.poll()
        clock.step(1)
        assert fake.calls["nvmlDeviceGetFieldValues"] == expected


@pytest.mark.parametrize("call", ["PcieThroughput", "ViolationStatus", "Samples"])
def test_slow_calls_are_never_made(call, clock):
    fake = FakeNvml.from_h200(*LOADS)
    third_poll(fake, clock)
    assert fake.calls[f"nvmlDeviceGet{call}"] == 0


FIELD_OF_CALL = {
    "UtilizationRates": "util_pct",
    "PowerUsage": "power_w",
    "Temperature": "temp_c",
    "CurrPcieLinkGeneration": "pcie_gen",
    "TotalEnergyConsumption": "energy_j",
    "ComputeRunningProcesses": "processes",
    "nvmlGpmSampleGet": "gpm",
    "nvmlDeviceGetFieldValues": "temp_mem_c",
}
PLAIN_CODES = [code for code in range(2, 31) if code not in (9, 15, 18, 28)] + [999, 4711]


@pytest.mark.parametrize("code", PLAIN_CODES)
@pytest.mark.parametrize("call", FIELD_OF_CALL)
def test_any_error_of_one_call_costs_that_field_only(call, code, clock):
    fake = FakeNvml.from_h200(*LOADS)
    fake.fail(call, code)
    gpu = third_poll(fake, clock).gpus[0]
    field = FIELD_OF_CALL[call]
    assert getattr(gpu, field) is None
    assert gpu.missing[field]
    assert gpu.mem_total_bytes == 150754820096
    others = {name for name in FIELD_OF_CALL.values() if name != field}
    assert all(getattr(gpu, name) is not None for name in others)


def test_an_error_that_passes_is_one_gap(clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.fail("EnforcedPowerLimit", 999, times=1)
    fake.fail("PowerManagementLimit", 999)
    source = source_of(fake, clock)
    assert source.poll().gpus[0].power_limit_w is None
    clock.step(1)
    assert source.poll().gpus[0].power_limit_w == 700.0


@pytest.mark.parametrize("sentinel", [2**64 - 1, 2**32 - 1])
def test_all_bits_set_is_not_a_reading(sentinel, clock):
    fake = FakeNvml.from_h200(IDLE)
    for call in ("PowerUsage", "TotalEnergyConsumption", "PcieReplayCounter"):
        fake.set(call, sentinel)
    fake.set("MemoryInfo_v2", {"total": sentinel, "used": sentinel})
    fake.set("MemoryInfo", {"total": sentinel, "used": sentinel})
    gpu = source_of(fake, clock).poll().gpus[0]
    for field in ("power_w", "energy_j", "pcie_replays", "mem_used_bytes", "mem_total_bytes"):
        assert getattr(gpu, field) is None
        assert gpu.missing[field] == "the driver answers “not available”"


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("UtilizationRates", {"gpu": 300, "memory": 0}, "util_pct"),
        ("Temperature", 0, "temp_c"),
        ("Temperature", 4000, "temp_c"),
        ("MemoryInfo_v2", {"total": 0, "used": 0}, "mem_used_bytes"),
        ("CurrPcieLinkWidth", 0, "pcie_width"),
    ],
)
def test_what_cannot_be_is_missing(key, value, field, clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.set(key, value)
    fake.set("MemoryInfo", {"error": 3})
    gpu = source_of(fake, clock).poll().gpus[0]
    assert getattr(gpu, field) is None
    assert gpu.missing[field]


def test_an_old_nvidia_ml_py_lacks_functions_and_costs_those_fields_only(clock):
    class Old(FakeNvml):
        gone = ("nvmlDeviceGetArchitecture", "nvmlGpmQueryDeviceSupport", "nvmlEventSetWait_v2")
        gone += ("NVMLLibraryMismatchError",)

        def __getattribute__(self, name):
            if name in type(self).gone:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def __getattr__(self, name):
            if name in type(self).gone:
                raise AttributeError(name)
            return super().__getattr__(name)

    gpu = third_poll(Old.from_h200(IDLE), clock).gpus[0]
    assert gpu.architecture is gpu.gpm is None
    assert "nvidia-ml-py" in gpu.missing["architecture"]
    assert "nvidia-ml-py" in gpu.missing["gpm"]
    assert "nvidia-ml-py" in gpu.missing["xids"]
    assert gpu.power_w is not None


def test_an_unversioned_function_of_another_library_version_costs_one_field(clock):
    fake = FakeNvml.from_h200(*LOADS)

    def mismatched(handle):
        raise pynvml.NVMLLibraryMismatchError("Unversioned function called")

    fake.nvmlDeviceGetComputeRunningProcesses = mismatched
    gpu = third_poll(fake, clock).gpus[0]
    assert gpu.processes is None
    assert gpu.power_w is not None


def test_names_given_as_bytes_by_old_versions_are_text(clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.set("Name", b"NVIDIA H200")
    fake.nvmlSystemGetDriverVersion = lambda: b"580.159.04"
    node = source_of(fake, clock).poll()
    assert (node.driver, node.gpus[0].name) == ("580.159.04", "NVIDIA H200")


def test_the_records_are_what_the_fake_serves(clock):
    """Guards the fake: the values above are those of the file, read here without it."""
    page = json.loads(LOADS[2].read_text())
    gpu = third_poll(FakeNvml.from_h200(*LOADS), clock).gpus[0]
    assert gpu.power_w * 1000 == page["PowerUsage"]
    assert gpu.gpm.sm_active_pct == page["gpm"]["NVML_GPM_METRIC_SM_UTIL"][1]
