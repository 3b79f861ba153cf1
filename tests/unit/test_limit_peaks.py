"""What the GPUs behind MBU and MFU can do at most: whole cards, slices, and those that nobody knows."""

from __future__ import annotations

import pytest

from gputop_llm.model import MigInstance
from tests.support.captures import case_json
from tests.support.limits import H200, H200_BF16, mbu, mfu, on, value
from tests.support.symptom_frames import CORE

GIB = 2**30


def test_a_gpu_that_the_table_lacks_has_a_nominal_bandwidth_and_no_peak():
    frames = on("NVIDIA H999", mem_clock_max_mhz=3201.0, mem_bus_width_bits=6016)
    found = mbu(**frames)
    assert value(found, "memory bandwidth") == pytest.approx(4.814e12, rel=1e-3)
    assert "nominal" in next(i.source for i in found.inputs if i.name == "memory bandwidth")
    assert found.value_pct is not None
    assert mfu(**frames).unknown == "the peak of NVIDIA H999 is not in the table of GPUs (gputop-llm gpus)"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (on("NVIDIA H999", mem_clock_max_mhz=None, mem_bus_width_bits=None), "not in the table"),
        (on("NVIDIA L40-16Q", mem_clock_max_mhz=9001.0, mem_bus_width_bits=384), "is a vGPU"),
        (on(None, missing={"name": "no permission"}), "no permission"),
        ({"target": {"processes": ()}}, "which GPUs the engine runs on is not known"),
        ({"gpus": 2, "each_gpu": {1: {"name": "NVIDIA A100-SXM4-80GB"}}}, "of different kinds"),
    ],
)
def test_why_the_peaks_are_unknown(frames, reason):
    for found in (mbu(**frames), mfu(**frames)):
        assert found.value_pct is None
        assert reason in found.unknown


def mig(instance=2, name="NVIDIA H200 MIG 3g.71gb", mem_bytes=70 * GIB, sm_count=60):
    slices = (
        MigInstance(1, 0, "MIG-1", "NVIDIA H200 MIG 1g.18gb", 0, 17 * GIB, 16),
        MigInstance(2, 0, "MIG-2", name, 0, mem_bytes, sm_count),
    )
    return {
        "gpu": {"mig_enabled": True, "mig_instances": slices, "gpm": None},
        "process": {CORE: {"gpus": (0,), "mig_instance": instance}},
    }


def test_a_mig_slice_has_its_share_of_the_peaks():
    found = mbu(**mig())
    assert value(found, "memory bandwidth") == pytest.approx(H200 * 4 / 8)
    assert value(mfu(**mig()), "dense bf16 peak") == pytest.approx(H200_BF16 * 60 / 132)
    assert "share of" in next(i.source for i in found.inputs if i.name == "memory bandwidth")
    assert value(mbu(**mig(instance=1)), "memory bandwidth") == pytest.approx(H200 / 8)


@pytest.mark.parametrize(
    "frames",
    [mig(instance=None), mig(instance=7), mig(name="?"), mig(mem_bytes=None), mig(sm_count=None), mig(name="9g.71gb")],
)
def test_a_mig_slice_of_unknown_size_is_unknown_and_never_the_whole_card(frames):
    for found in (mbu(**frames), mfu(**frames)):
        assert found.value_pct is None
        assert found.unknown.startswith("MIG")


def test_the_slices_of_the_field_case_are_half_an_a100():
    device = case_json(2, "nvml")["devices"][0]
    slices = tuple(
        MigInstance(
            one["GpuInstanceId"],
            one["ComputeInstanceId"],
            one["UUID"],
            one["Name"],
            one["MemoryInfo"]["used"],
            one["MemoryInfo"]["total"],
            one["Attributes"]["multiprocessorCount"],
        )
        for one in device["mig"]
    )
    frames = {
        "gpu": {"name": device["Name"], "mem_total_bytes": None, "mig_enabled": True, "mig_instances": slices},
        "process": {CORE: {"gpus": (0,), "mig_instance": 2}},
    }
    assert value(mbu(**frames), "memory bandwidth") == pytest.approx(2039e9 / 2, rel=0.01)
    assert value(mfu(**frames), "dense bf16 peak") == pytest.approx(312e12 * 42 / 108)
