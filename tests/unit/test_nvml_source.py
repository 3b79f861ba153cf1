"""The NVML source on the records of a real H200, and what happens to it when calls fail, hang or vanish."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

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


def source_of(fake, clock, **paths):
    return NvmlSource(fake, clock, **paths)


def third_poll(fake, clock, source=None):
    """The reading after two seconds, with every rate known."""
    source = source or source_of(fake, clock)
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
    assert (gpu.power_w, gpu.power_limit_w, gpu.energy_j) == (279.565, 700.0, 17148.589)
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


def test_a_lost_gpu_is_said_to_be_lost_and_the_others_go_on(clock):
    fake = FakeNvml.from_h200(*LOADS, copies=4)
    source = source_of(fake, clock)
    source.poll()
    fake.lose(2)
    for _ in range(3):
        clock.step(1)
        gpus = source.poll().gpus
        assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]
        assert [gpu.lost for gpu in gpus] == [False, False, True, False]
        assert gpus[2].name == "NVIDIA H200"
        assert gpus[2].util_pct is gpus[2].mem_used_bytes is gpus[2].processes is None
        assert "NVML_ERROR_GPU_IS_LOST" in gpus[2].missing["util_pct"]
        assert all(gpu.util_pct is not None for gpu in gpus if not gpu.lost)


def test_a_lost_gpu_is_looked_for_at_growing_intervals_and_comes_back(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    source.poll()
    fake.lose(1)
    for _ in range(100):
        clock.step(1)
        assert source.poll().gpus[0].util_pct is not None
    assert fake.inits == 1 + 2  # after 30 and 90 s
    fake.find(1)
    clock.step(300)
    gpus = source.poll().gpus
    assert [gpu.lost for gpu in gpus] == [False, False]
    assert gpus[1].util_pct == 0.0


def test_a_gpu_lost_before_the_start_is_listed_without_a_name(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    fake.lose(0)
    gpus = source_of(fake, clock).poll().gpus
    assert [(gpu.index, gpu.lost, gpu.name) for gpu in gpus] == [(0, True, None), (1, False, "NVIDIA H200")]


def test_a_gpu_that_may_not_be_opened_is_not_called_lost(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    fake.fail("HandleByIndex", 4, gpu=1)
    gpus = source_of(fake, clock).poll().gpus
    assert [gpu.lost for gpu in gpus] == [False, False]
    assert gpus[1].missing["util_pct"] == "no permission (NVML_ERROR_NO_PERMISSION)"


@pytest.mark.parametrize("code", [1, 9, 18])
def test_a_driver_reload_is_said_and_survived(code, clock, tmp_path):
    fake = FakeNvml.from_h200(*LOADS)
    source = source_of(fake, clock, version_path=tmp_path / "none")
    third_poll(fake, clock, source)
    clock.step(60)
    fake.unload_driver(init_code=code)
    node = source.poll()
    assert node.gpus == ()
    assert "connection to the NVIDIA driver was lost" in node.problem
    clock.step(1)
    assert source.poll().problem
    attempts = fake.calls["nvmlInit"]
    for _ in range(20):
        clock.step(1)
        assert source.poll().gpus == ()
    assert fake.calls["nvmlInit"] == attempts
    fake.unload_driver(init_code=None)
    clock.step(60)
    assert third_poll(fake, clock, source).gpus[0].gpm is not None


def test_a_reload_to_another_version_asks_for_a_restart_of_the_program(clock, tmp_path):
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  590.10.01  Fri May 31 09:35:42 UTC 2026\n")
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock, version_path=version)
    source.poll()
    clock.step(60)
    fake.unload_driver(init_code=18)
    source.poll()
    node = source.poll()
    assert node.driver == "590.10.01"
    assert "driver 590.10.01 is loaded, library 580.159.04 is still in use here; restart gputop-llm" in node.problem


def test_rates_and_gpm_do_not_reach_across_a_reload(clock):
    fake = FakeNvml.from_h200(*LOADS)
    source = source_of(fake, clock)
    third_poll(fake, clock, source)
    clock.step(60)
    fake.unload_driver(init_code=None)
    source.poll()
    gpu = source.poll().gpus[0]
    assert gpu.gpm is None
    assert gpu.missing["gpm"] == "needs two samples"
    assert all(reason.source == "bit" for reason in gpu.throttle)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (9, "the NVIDIA kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED)"),
        (12, "no NVIDIA driver library on this machine"),
        (4, "no permission (NVML_ERROR_NO_PERMISSION) on the /dev/nvidia* device files"),
        (999, "NVML did not start"),
    ],
)
def test_without_a_driver_there_is_one_sentence_and_no_retry_each_second(code, words, clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.unload_driver(init_code=code)
    source = source_of(fake, clock)
    for _ in range(30):
        node = source.poll()
        clock.step(1)
        assert words in node.problem
        assert "\n" not in node.problem
    assert fake.calls["nvmlInit"] == 1
    assert fake.calls["nvmlShutdown"] == 0


def test_a_driver_without_gpus_says_so(clock):
    node = source_of(FakeNvml([], {"driver": "580.1", "cuda": 13000, "nvml": "13.580.1"}), clock).poll()
    assert "shows no GPU" in node.problem
    assert node.driver == "580.1"


def test_without_the_package_there_is_one_sentence(monkeypatch, clock):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    node = NvmlSource(clock=clock).poll()
    assert "nvidia-ml-py" in node.problem


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA driver")
def test_on_a_machine_without_a_driver_the_real_library_gives_one_sentence(clock):
    node = NvmlSource(clock=clock).poll()
    assert node.gpus == ()
    assert node.problem


def test_closing_lets_go_of_everything(clock):
    fake = FakeNvml.from_h200(*LOADS, copies=2)
    source = source_of(fake, clock)
    third_poll(fake, clock, source)
    assert len(fake.live_samples) == 4
    source.close()
    assert fake.live_samples == {}
    assert fake.calls["nvmlEventSetFree"] == 1
    assert not fake.initialised


def test_closing_while_a_call_hangs_does_not_touch_the_driver(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    release = fake.hang("UtilizationRates")
    poll = threading.Thread(target=source.poll, daemon=True)
    poll.start()
    assert fake.hanging.wait(5)
    source.abort()
    source.close()
    assert fake.calls["nvmlShutdown"] == 0
    release.set()
    poll.join(5)
    assert not poll.is_alive()


def test_a_failing_shutdown_is_nobodys_problem(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    fake.unload_driver()
    source.close()


def test_an_xid_is_kept_with_the_time_of_its_receipt(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    assert source.poll().gpus[1].xids == ()
    fake.emit_xid(31, gpu=1)
    fake.emit_xid(79, gpu=1)
    clock.step(1)
    gpus = source.poll().gpus
    assert gpus[0].xids == ()
    assert [(event.xid, event.at_s) for event in gpus[1].xids] == [(31, clock.wall()), (79, clock.wall())]
    clock.step(1)
    assert len(source.poll().gpus[1].xids) == 2


def test_the_xid_of_a_lost_gpu_is_shown_with_it(clock):
    fake = FakeNvml.from_h200(IDLE, copies=2)
    source = source_of(fake, clock)
    source.poll()
    fake.emit_xid(79, gpu=1)
    fake.lose(1)
    clock.step(1)
    gpu = source.poll().gpus[1]
    assert gpu.lost
    assert [event.xid for event in gpu.xids] == [79]
    clock.step(1)
    assert [event.xid for event in source.poll().gpus[1].xids] == [79]


def test_a_storm_of_xids_is_bounded_and_does_not_hold_the_poll(clock):
    fake = FakeNvml.from_h200(IDLE)
    source = source_of(fake, clock)
    source.poll()
    for xid in range(500):
        fake.emit_xid(xid)
    xids = source.poll().gpus[0].xids
    assert len(xids) == 16
    assert fake.calls["nvmlEventSetWait_v2"] < 100


def test_xids_that_cannot_be_watched_are_missing_with_the_reason(clock):
    fake = FakeNvml.from_h200(IDLE)
    fake.fail("nvmlDeviceRegisterEvents", 3)
    gpu = source_of(fake, clock).poll().gpus[0]
    assert gpu.missing["xids"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"


def test_the_records_are_what_the_fake_serves(clock):
    """Guards the fake: the values above are those of the file, read here without it."""
    page = json.loads(LOADS[2].read_text())
    gpu = third_poll(FakeNvml.from_h200(*LOADS), clock).gpus[0]
    assert gpu.power_w * 1000 == page["PowerUsage"]
    assert gpu.gpm.sm_active_pct == page["gpm"]["NVML_GPM_METRIC_SM_UTIL"][1]
