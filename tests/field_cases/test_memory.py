"""Cases 01, 02, 04: memory that the GPU shares with the host, that of a MIG instance, and memory that nobody tells."""

from __future__ import annotations

import pytest

from tests.support.captures import case_page

GIB = 1 << 30


@pytest.fixture
def shared(machine):
    """Case 01: `shared("nvml-idle.json")`."""

    def make(nvml: str):
        one = machine(1, nvml=nvml, procs=None)
        one.add_engine(9001)
        one.serve(case_page(34, "t0"))
        return one

    return make


@pytest.mark.parametrize(
    ("nvml", "used", "row", "words"),
    [
        ("nvml-idle.json", 61 << 20, "0.1/121.7", "61.0 MiB of 122 GiB host RAM, 23.0 GiB free"),
        ("nvml-serving.json", 95859373015, "89.3/121.7", "89.3 of 122 GiB host RAM, 23.0 GiB free"),
    ],
)
async def test_01_the_memory_is_the_hosts_and_named_so_everywhere(shared, nvml, used, row, words):
    one = shared(nvml).run(3)
    (gpu,) = one.json()["gpus"]
    assert (gpu["mem_source"], gpu["mem_used_bytes"], gpu["mem_total_bytes"]) == ("host-shared", used, 127600748 << 10)
    assert gpu["mem_free_bytes"] == 24110500 << 10, "headroom is MemAvailable, not the total less the GPU's"
    assert (gpu["mem_util_pct"], gpu["pcie_gen"], gpu["pcie_tx_bytes_per_s"]) == (None, None, None)
    text = one.text()
    assert row in text
    assert "its memory is the host's RAM, shared with all programs: 23.0 GiB available" in text
    async with one.shown() as press:
        screens = "\n".join(await press("1") + await press("2"))
    assert words in screens
    assert "the host's RAM, shared" in screens
    assert "0 / 0" not in screens


async def test_01_a_discrete_card_that_answers_alike_has_no_memory_figures(shared):
    one = shared("nvml-discrete-not-supported.json").run(3)
    (gpu,) = one.json()["gpus"]
    assert [gpu[f"mem_{name}"] for name in ("used_bytes", "total_bytes", "free_bytes", "used_pct")] == [None] * 4
    assert "host's RAM" not in one.text()
    async with one.shown() as press:
        assert "host RAM" not in "\n".join(await press("1"))


def test_01_a_process_of_unknown_size_makes_the_sum_unknown_and_not_smaller(shared):
    one = shared("nvml-serving.json")
    one.nvml.set("GraphicsRunningProcesses", [{"pid": 2101, "usedGpuMemory": 2**64 - 1}])
    (gpu,) = one.run(3).json()["gpus"]
    assert (gpu["mem_used_bytes"], gpu["mem_used_pct"]) == (None, None)
    assert "memory of some of its processes is unknown" in gpu["missing"]["mem_used_bytes"]
    assert gpu["mem_total_bytes"] == 127600748 << 10


def test_01_host_programs_that_fill_the_shared_memory_are_seen_and_not_counted_as_the_gpus(shared):
    one = shared("nvml-serving.json")

    def fill(second: int) -> None:
        full = second >= 25
        one.proc.write("meminfo", f"MemTotal: 127600748 kB\nMemAvailable: {1000000 if full else 24110500} kB\n")
        held = 95859373015 + (4 * GIB if full else 0)
        one.nvml.set("ComputeRunningProcesses", [{"pid": 9001, "usedGpuMemory": held}])

    spike = one.run(32, fill).raised()["memory-spike"]
    assert "grew by 4.0 GiB" in spike.headline
    assert "to 99 %, 977 MiB left" in spike.headline
    assert one.json()["gpus"][0]["mem_used_pct"] == pytest.approx(100 * (95859373015 + 4 * GIB) / (127600748 << 10))


@pytest.fixture
def mig(machine):
    """Case 02, with the launcher of the engine core."""
    one = machine(2)
    one.proc.write("6100/environ", (one.case / "environ.bin").read_bytes())
    one.proc.add(6090, ["vllm", "serve", "org/model-a"])
    one.serve(case_page(34, "t0"))
    return one


async def test_02_the_target_is_shown_on_its_instance_with_that_ones_memory(mig):
    mig.run(3)
    core = next(p for p in mig.json()["targets"][0]["processes"] if p["pid"] == 6100)
    assert (core["gpus"], core["mig_instance"]) == ([0], 2)
    assert [i["mem_used_pct"] for i in mig.json()["gpus"][0]["mig_instances"]] == pytest.approx(
        [23.04, 91.65], abs=0.01
    )
    assert "(instance 2): 36.2 GiB of 39.5 GiB (92 %)" in mig.text()
    assert "6100 engine-core 0 MIG2 36.0 GiB" in mig.text()
    async with mig.shown() as press:
        overview, processes = await press("1"), "\n".join(await press("4"))
    (memory,) = [line for line in overview if line.startswith("memory")]
    assert "92 %" in memory
    assert "MIG2: 36.2 of 39.5 GiB" in memory
    assert "0 MIG2" in processes


async def test_02_utilisation_is_unknown_and_never_0(mig):
    mig.run(12)
    (gpu,) = mig.json()["gpus"]
    assert (gpu["util_pct"], gpu["mem_used_bytes"], gpu["gpm"]) == (None, None, None)
    async with mig.shown() as press:
        (util,) = [line for line in await press("1") if line.startswith("NVML util")]
    assert "0 %" not in util
    assert "MIG is on" in util
    for rule in ("gpu-starved", "gpu-busy-not-working", "bandwidth-bound", "compute-bound"):
        assert mig.cannot_tell()[rule].startswith("MIG"), rule
        assert rule not in mig.raised()


def test_02_the_other_instances_process_is_listed_and_no_neighbour(mig):
    mig.run(12)
    assert "noisy-neighbour" not in {*mig.raised(), *mig.cannot_tell()}
    assert "python3 train.py (PID 6001, GPU 0, 8.9 GiB of GPU memory)" in mig.text()


async def test_02_of_several_gpus_the_row_has_the_instances_memory_too(mig):
    mig.nvml.devices.append({**mig.nvml.devices[0], "index": 1, "mig": []})
    mig.run(3)
    async with mig.shown() as press:
        rows = [line.split() for line in await press("1") if line[:4].strip() in ("0", "1")][:2]
    assert "92" in rows[0]
    assert "92" not in rows[1]


async def test_04_memory_of_the_process_is_unknown_and_said_to_be(machine):
    one = machine(4)
    one.serve(case_page(15))
    one.run(4)
    (gpu,) = one.json()["gpus"]
    assert (gpu["processes"][0]["mem_bytes"], round(gpu["mem_used_pct"])) == (None, 88)
    assert (round(gpu["mem_used_bytes"] / GIB, 1), round(gpu["mem_total_bytes"] / GIB, 1)) == (14.0, 16.0)
    why = "the driver does not tell the memory of 1 of 1 processes; sums leave them out"
    assert why in one.text()
    async with one.shown() as press:
        processes = await press("4")
    (row,) = [line for line in processes if line.lstrip().startswith("79 ")]
    assert "GiB" not in row
    assert any(why in line for line in processes)
    for nonsense in ("EiB", "17179869184", " -1 "):
        assert nonsense not in one.text() + "\n".join(processes)
    assert "memory by process" in one.cannot_tell()["noisy-neighbour"]
    assert [frame.gpus.value.gpus[0].util_pct for frame in one.frames] == [71.0, None, 71.0, None]
