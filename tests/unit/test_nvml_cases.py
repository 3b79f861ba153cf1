"""Field cases of GPUs that answer in part, wrongly or not at all (captures/field-cases/01–09)."""

from __future__ import annotations

import math

import pytest

from gputop_llm.sources.nvml import NvmlSource
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CASES, FakeNvml

GIB = 1024**3
MIB = 1024**2


def polls(fake, ticks=1, step_s=1.0, case=None):
    """The readings of the first GPUs of a case, one node a tick."""
    clock = ManualClock()
    folder = next(CASES.glob(f"{case}*")) if case else CASES
    source = NvmlSource(
        fake, clock, meminfo_path=folder / "meminfo.txt", version_path=folder / "proc_driver_nvidia_version.txt"
    )
    nodes = []
    for _ in range(ticks):
        nodes.append(source.poll())
        fake.advance()
        clock.step(step_s)
    source.close()
    return nodes


def assert_every_gap_has_a_reason(gpu):
    fields = ("util_pct", "mem_util_pct", "mem_used_bytes", "mem_total_bytes", "sm_clock_mhz", "mem_clock_mhz")
    fields += ("power_w", "power_limit_w", "energy_j", "temp_c", "temp_mem_c", "throttle", "pcie_gen", "pcie_width")
    fields += ("pcie_tx_bytes_per_s", "nvlink_tx_bytes_per_s", "ecc_uncorrected", "remapped_rows", "gpm", "processes")
    fields += ("mig_enabled", "fan_pct", "uuid", "architecture", "mem_bus_width_bits")
    for field in fields:
        assert (getattr(gpu, field) is None) == (field in gpu.missing), field
    assert all(len(reason) > 5 for reason in gpu.missing.values())


class Test01UnifiedMemory:
    @pytest.mark.parametrize(
        ("file", "used"), [("nvml-idle.json", 61 * MIB), ("nvml-serving.json", 95859373015)], ids=["idle", "serving"]
    )
    def test_memory_is_the_hosts_ram_and_used_is_what_gpu_processes_hold(self, file, used):
        gpu = polls(FakeNvml.from_case("01", file), case="01")[0].gpus[0]
        assert (gpu.integrated, gpu.mem_source) == (True, "host-shared")
        assert gpu.mem_total_bytes == 127600748 * 1024
        assert round(gpu.mem_total_bytes / GIB, 1) == 121.7
        assert gpu.mem_used_bytes == used
        assert "mem_used_bytes" not in gpu.missing
        assert "mem_total_bytes" not in gpu.missing

    def test_a_discrete_card_that_answers_alike_does_not_get_the_hosts_ram(self):
        gpu = polls(FakeNvml.from_case("01", "nvml-discrete-not-supported.json"), case="01")[0].gpus[0]
        assert (gpu.integrated, gpu.mem_source) == (False, "device")
        assert gpu.mem_total_bytes is gpu.mem_used_bytes is gpu.mem_used_pct is None
        assert gpu.missing["mem_total_bytes"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"
        assert gpu.util_pct == 10.0

    @pytest.mark.parametrize("code", [4, 999], ids=["no permission", "unknown"])
    def test_an_integrated_part_with_another_error_does_not_either(self, code):
        fake = FakeNvml.from_case("01", "nvml-serving.json")
        fake.set("MemoryInfo", {"error": code})
        fake.set("MemoryInfo_v2", {"error": code})
        gpu = polls(fake, case="01")[0].gpus[0]
        assert gpu.mem_total_bytes is None
        assert gpu.mem_source == "device"

    def test_a_lost_one_does_not_either(self):
        fake = FakeNvml.from_case("01", "nvml-serving.json")
        fake.lose(0)
        gpu = polls(fake, case="01")[0].gpus[0]
        assert gpu.lost
        assert gpu.mem_total_bytes is None

    def test_figures_of_buses_that_the_part_does_not_have_are_missing(self):
        fake = FakeNvml.from_case("01", "nvml-serving.json")
        fake.set("CurrPcieLinkGeneration", 1)
        fake.set("CurrPcieLinkWidth", 1)
        fake.set("MemoryBusWidth", 64)
        gpu = polls(fake, ticks=2, case="01")[1].gpus[0]
        assert gpu.util_pct == 96.0
        for field in ("mem_util_pct", "mem_bus_width_bits", "pcie_gen", "pcie_width", "pcie_tx_bytes_per_s"):
            assert getattr(gpu, field) is None
            assert "part of the chip" in gpu.missing[field]

    def test_unreadable_meminfo_leaves_the_total_unknown_with_the_reason(self, tmp_path):
        fake = FakeNvml.from_case("01", "nvml-serving.json")
        gpu = NvmlSource(fake, ManualClock(), meminfo_path=tmp_path / "none").poll().gpus[0]
        assert gpu.mem_total_bytes is None
        assert "can't be read" in gpu.missing["mem_total_bytes"]
        assert gpu.mem_used_pct is None


class Test02Mig:
    def test_utilisation_is_unknown_and_the_reason_is_mig(self):
        gpu = polls(FakeNvml.from_case("02"), case="02")[0].gpus[0]
        assert gpu.mig_enabled is True
        assert gpu.util_pct is None
        assert gpu.missing["util_pct"].startswith("MIG is on")
        assert gpu.missing["gpm"].startswith("MIG is on")
        assert_every_gap_has_a_reason(gpu)

    def test_the_parents_memory_is_unknown_for_want_of_permission(self):
        gpu = polls(FakeNvml.from_case("02"), case="02")[0].gpus[0]
        assert gpu.mem_total_bytes is None
        assert gpu.missing["mem_total_bytes"] == "no permission (NVML_ERROR_NO_PERMISSION)"
        assert gpu.power_w == 178.0

    def test_each_instance_has_its_own_memory_and_processes(self):
        first, second = polls(FakeNvml.from_case("02"), case="02")[0].gpus[0].mig_instances
        assert (first.gpu_instance, second.gpu_instance) == (1, 2)
        assert second.uuid == "MIG-00000000-0000-4000-8000-000000000002"
        assert second.name == "NVIDIA A100-SXM4-80GB MIG 3g.40gb"
        assert second.sm_count == 42
        assert round(second.mem_used_bytes / GIB, 1) == 36.2
        assert round(second.mem_total_bytes / GIB, 1) == 39.5
        assert round(100 * second.mem_used_bytes / second.mem_total_bytes) == 92
        assert [process.pid for process in second.processes] == [6100]

    def test_processes_come_from_the_instances_when_the_parent_lists_none(self):
        gpu = polls(FakeNvml.from_case("02"), case="02")[0].gpus[0]
        assert {(p.pid, p.gpu_instance, p.sm_util_pct) for p in gpu.processes} == {(6001, 1, None), (6100, 2, None)}
        assert "MIG" in gpu.missing["processes.sm_util_pct"]

    def test_a_process_that_parent_and_instance_list_is_there_once(self):
        fake = FakeNvml.from_case("02")
        fake.set("ComputeRunningProcesses", [{"pid": 6100, "usedGpuMemory": 1, "gpuInstanceId": 2}])
        gpu = polls(fake, case="02")[0].gpus[0]
        assert sorted(p.pid for p in gpu.processes) == [6001, 6100]

    def test_an_instance_that_was_destroyed_costs_neither_the_card_nor_the_others(self):
        fake = FakeNvml.from_case("02")
        clock = ManualClock()
        source = NvmlSource(fake, clock)
        assert len(source.poll().gpus[0].mig_instances) == 2
        del fake.devices[0]["mig"][1]
        for _ in range(2):
            clock.step(1)
            gpu = source.poll().gpus[0]
            assert [instance.gpu_instance for instance in gpu.mig_instances] == [1]
            assert not gpu.lost


class Test03VgpuGuest:
    def test_what_answers_is_shown_and_the_rest_is_missing_because_of_the_guest(self):
        nodes = polls(FakeNvml.from_case("03"), ticks=12, case="03")
        gpu = nodes[-1].gpus[0]
        assert nodes[-1].vgpu_guest
        assert (gpu.util_pct, gpu.mem_util_pct, gpu.sm_clock_mhz) == (64.0, 30.0, 2250.0)
        assert round(gpu.mem_used_pct) == 84
        for field in ("temp_c", "power_w", "power_limit_w", "mem_clock_mhz", "ecc_corrected", "remapped_rows"):
            assert getattr(gpu, field) is None
            assert gpu.missing[field] == "not available in a vGPU guest (NVML_ERROR_NOT_SUPPORTED)"
        assert "vGPU guest" in gpu.missing["gpm"]
        assert_every_gap_has_a_reason(gpu)

    def test_the_processs_memory_is_unknown_not_16_exbibytes(self):
        gpu = polls(FakeNvml.from_case("03"), ticks=12, case="03")[-1].gpus[0]
        assert [(p.pid, p.mem_bytes) for p in gpu.processes] == [(3100, None)]

    def test_no_unsupported_call_is_repeated_on_twelve_polls(self):
        fake = FakeNvml.from_case("03")
        polls(fake, ticks=12, case="03")
        assert len(fake.refused()) > 15
        assert set(fake.refused().values()) == {1}

    def test_unsupported_calls_are_tried_again_after_minutes(self):
        fake = FakeNvml.from_case("03")
        polls(fake, ticks=2, step_s=301.0, case="03")
        assert fake.calls["nvmlDeviceGetPowerUsage"] == 2

    def test_they_are_tried_again_after_a_driver_restart(self):
        fake = FakeNvml.from_case("03")
        clock = ManualClock()
        source = NvmlSource(fake, clock)
        source.poll()
        clock.step(60)
        fake.unload_driver(init_code=None)
        source.poll()
        source.poll()
        assert fake.calls["nvmlDeviceGetPowerUsage"] == 2

    def test_pcie_throughput_is_never_asked_for(self):
        fake = FakeNvml.from_case("03")
        polls(fake, ticks=12, case="03")
        assert fake.calls["nvmlDeviceGetPcieThroughput"] == 0


class Test04Wsl:
    def test_memory_of_the_process_is_unknown_and_the_devices_stays_right(self):
        gpu = polls(FakeNvml.from_case("04"), case="04")[0].gpus[0]
        assert [(p.pid, p.mem_bytes) for p in gpu.processes] == [(79, None)]
        assert round(gpu.mem_used_bytes / MIB) == 14360
        assert round(gpu.mem_total_bytes / MIB) == 16376
        assert round(gpu.mem_used_pct) == 88

    def test_it_says_that_sums_over_processes_are_incomplete(self):
        gpu = polls(FakeNvml.from_case("04"), case="04")[0].gpus[0]
        assert "1 of 1 processes" in gpu.missing["processes.mem_bytes"]

    def test_utilisation_is_missing_where_it_is_missing(self):
        gpus = [node.gpus[0] for node in polls(FakeNvml.from_case("04"), ticks=6, case="04")]
        assert [gpu.util_pct for gpu in gpus] == [71.0, None, 71.0, None, 71.0, None]
        assert "NVML_ERROR_UNKNOWN" in gpus[1].missing["util_pct"]
        assert "util_pct" not in gpus[2].missing

    def test_the_driver_is_named(self):
        assert polls(FakeNvml.from_case("04"), case="04")[0].driver == "591.44"


class Test05PowerLimit:
    def test_watts_are_shown_without_a_share_where_there_is_no_limit(self):
        laptop, old, _ = polls(FakeNvml.from_case("05"), case="05")[0].gpus
        assert (laptop.power_w, laptop.power_limit_w, laptop.power_pct) == (2.0, None, None)
        assert laptop.missing["power_limit_w"] == "the driver reports a limit of 0 W, which is none"
        assert (old.power_w, old.power_limit_w, old.power_pct) == (31.0, None, None)
        assert old.missing["power_limit_w"] == "not supported by this GPU (NVML_ERROR_NOT_SUPPORTED)"

    def test_unknown_for_one_poll_is_one_gap(self):
        third = [node.gpus[2] for node in polls(FakeNvml.from_case("05"), ticks=3, case="05")]
        assert (third[0].power_w, third[0].power_limit_w) == (None, None)
        assert "NVML_ERROR_UNKNOWN" in third[0].missing["power_w"]
        for gpu in third[1:]:
            assert (gpu.power_w, gpu.power_limit_w) == (228.82, 250.0)
            assert round(gpu.power_pct) == 92

    def test_no_number_is_infinite_or_nan(self):
        for node in polls(FakeNvml.from_case("05"), ticks=3, case="05"):
            for gpu in node.gpus:
                for value in (gpu.power_w, gpu.power_limit_w, gpu.power_pct):
                    assert value is None or math.isfinite(value)


class Test06DriverLibraryMismatch:
    def test_one_sentence_says_what_is_wrong_what_fixes_it_and_what_it_means(self):
        node = polls(FakeNvml.from_case("06"), case="06")[0]
        assert node.gpus == ()
        assert node.driver == "550.90.07"
        assert node.problem == (
            "driver 550.90.07 is loaded but library 550.107.02 is installed; a reboot or a reload of the kernel "
            "module fixes it; the running engine is not affected, but new CUDA processes on this machine will fail"
        )

    def test_it_is_not_tried_again_each_second(self):
        fake = FakeNvml.from_case("06")
        nodes = polls(fake, ticks=30, case="06")
        assert fake.calls["nvmlInit"] == 1
        assert nodes[-1].problem == nodes[0].problem

    def test_it_is_tried_again_at_growing_intervals_and_recovers(self):
        fake = FakeNvml.from_case("06")
        clock = ManualClock()
        source = NvmlSource(fake, clock)
        attempts = []
        for _ in range(400):
            before = fake.calls["nvmlInit"]
            source.poll()
            if fake.calls["nvmlInit"] > before:
                attempts.append(round(clock.mono() - 1000))
            clock.step(1)
        assert attempts == [0, 30, 90, 210]
        fake.system["init"] = None
        fake.devices = FakeNvml.from_case("04").devices
        clock.step(600)
        assert source.poll().problem is None

    def test_versions_that_cannot_be_found_out_are_not_invented(self, tmp_path):
        fake = FakeNvml.from_case("06")
        fake.system["nvml"] = "12.550.107.02"
        source = NvmlSource(fake, ManualClock(), version_path=tmp_path / "none")
        node = source.poll()
        assert node.driver is None
        assert "driver of another version is loaded but library 550.107.02 is installed" in node.problem


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("07", {56752: 34724810588}),
        ("08", {8100: 26628797235, 4471: 21474836480}),
        ("09", {7302: 40802189312}),
    ],
    ids=["host PIDs", "other users", "zombie"],
)
def test_pids_that_this_namespace_does_not_show_are_listed_with_their_memory(case, expected):
    gpu = polls(FakeNvml.from_case(case), case=case)[0].gpus[0]
    assert {p.pid: p.mem_bytes for p in gpu.processes} == expected
    assert "processes" not in gpu.missing


@pytest.mark.parametrize(
    ("case", "file"),
    [
        (path.parent.name, path.name)
        for path in sorted(CASES.glob("0[1-9]*/nvml*.json"))
        if path.parent.name[:2] != "06"
    ],
)
def test_every_gap_of_every_case_has_its_reason(case, file):
    for node in polls(FakeNvml.from_case(case, file), ticks=3, case=case):
        for gpu in node.gpus:
            assert_every_gap_has_a_reason(gpu)
