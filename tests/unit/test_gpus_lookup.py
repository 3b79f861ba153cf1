"""Looking a GPU up: names that mean the right card or none, and what a slice of a card has."""

from __future__ import annotations

import pytest

from gputop_llm.errors import UsageError
from gputop_llm.gpus import PEAK_FIELDS, GpuSpec, all_specs, find, matching, nominal_from_nvml, scaled

MIB = 2**20


def spec(name: str) -> GpuSpec:
    (found,) = [s for s in all_specs() if s.name == name]
    return found


def test_peak_per_s_gives_the_figure_of_each_data_type():
    h200 = spec("H200 SXM 141 GB")
    assert {dtype: h200.peak_per_s(dtype) for dtype in PEAK_FIELDS} == {
        "fp64_tensor": 67e12,
        "fp32": 67e12,
        "tf32": 494.5e12,
        "fp16": 989.5e12,
        "fp16_acc16": None,
        "bf16": 989.5e12,
        "fp8": 1979e12,
        "fp8_acc16": None,
        "int8": 1979e12,
        "fp4": None,
    }


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nvml_name", "total_bytes", "name"),
    [
        ("NVIDIA H200", 150_754_820_096, "H200 SXM 141 GB"),
        ("NVIDIA H200 NVL", 143_771 * MIB, "H200 NVL 141 GB"),
        ("NVIDIA H100 80GB HBM3", 81_559 * MIB, "H100 SXM 80 GB"),
        ("NVIDIA H100 PCIe", 81_559 * MIB, "H100 PCIe 80 GB"),
        ("NVIDIA H100 NVL", 95_830 * MIB, "H100 NVL 94 GB"),
        ("NVIDIA H20", 97_871 * MIB, "H20 96 GB"),
        ("NVIDIA H20-3e", 143_771 * MIB, "H20 141 GB"),
        ("NVIDIA GH200 480GB", 97_871 * MIB, "GH200 96 GB"),
        ("NVIDIA GH200 144G HBM3e", 146_831 * MIB, "GH200 144 GB"),
        ("NVIDIA A100-SXM4-80GB", 81_920 * MIB, "A100 SXM 80 GB"),
        ("NVIDIA A100-SXM4-40GB", 40_960 * MIB, "A100 SXM 40 GB"),
        ("NVIDIA A100-PCIE-40GB", 40_960 * MIB, "A100 PCIe 40 GB"),
        ("NVIDIA A100 80GB PCIe", 81_920 * MIB, "A100 PCIe 80 GB"),
        ("A100-SXM4-40GB", 40_536 * MIB, "A100 SXM 40 GB"),
        ("Tesla T4", 15_360 * MIB, "T4"),
        ("NVIDIA T4", 15_360 * MIB, "T4"),
        ("Tesla V100-SXM2-32GB", 32_510 * MIB, "V100 SXM2 32 GB"),
        ("NVIDIA L4", 23_034 * MIB, "L4"),
        ("NVIDIA L40", 46_068 * MIB, "L40"),
        ("NVIDIA L40S", 46_068 * MIB, "L40S"),
        ("NVIDIA A10G", 23_028 * MIB, "A10G"),
        ("NVIDIA A40", 46_068 * MIB, "A40"),
        ("NVIDIA RTX 6000 Ada Generation", 49_140 * MIB, "RTX 6000 Ada"),
        ("NVIDIA RTX 6000 Ada Generation", 46_068 * MIB, "RTX 6000 Ada"),
        ("NVIDIA GeForce RTX 4090", 24_564 * MIB, "GeForce RTX 4090"),
        ("GeForce RTX 4090", 24_564 * MIB, "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 16_376 * MIB, "GeForce RTX 4070 Ti SUPER"),
        ("NVIDIA GeForce RTX 5090", 32_607 * MIB, "GeForce RTX 5090"),
        ("NVIDIA B200", 183_359 * MIB, "B200"),
        ("NVIDIA GB200", 189_471 * MIB, "GB200 (one GPU)"),
        ("NVIDIA B300 SXM6 AC", 275_040 * MIB, "B300"),
        ("NVIDIA GB10", 122_500 * MIB, "GB10 (DGX Spark)"),
        ("NVIDIA GB10", None, "GB10 (DGX Spark)"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_887 * MIB, "RTX PRO 6000 Blackwell Server"),
    ],
)
def test_an_nvml_name_finds_its_card(nvml_name, total_bytes, name):
    found = find(nvml_name, total_bytes)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "nvml_name",
    [
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA L40-16Q",
        "NVIDIA L40S-48Q",
        "NVIDIA A10-4Q",
        "NVIDIA A100-4-20C",
        "GRID A100-40C",
        "GRID T4-16Q",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 5090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 5090 D",
        "NVIDIA RTX 5000 Ada Generation",
        "NVIDIA H100",
        "NVIDIA A100-SXM-64GB",
        "NVIDIA H800 PCIe",
        "Tesla V100-SXM3-32GB",
        "AMD Instinct MI300X",
        "NVIDIA",
        "",
        None,
    ],
)
def test_slices_vgpus_laptops_and_strangers_find_nothing(nvml_name):
    assert find(nvml_name) is None


@pytest.mark.parametrize(
    ("nvml_name", "total_bytes"),
    [
        ("NVIDIA GeForce RTX 4090", 49_140 * MIB),  # modified to 48 GB
        ("NVIDIA A100-SXM4-80GB", 40_192 * MIB),  # what a 3g.40gb slice has
        ("NVIDIA L40S", 24_512 * MIB),
        ("NVIDIA H200", 0),
    ],
)
def test_a_name_whose_memory_does_not_fit_finds_nothing(nvml_name, total_bytes):
    assert find(nvml_name) is not None
    assert find(nvml_name, total_bytes) is None


def test_matching_wants_every_word_and_ignores_case():
    assert [s.name for s in matching("h100 SXM")] == ["H100 SXM 80 GB"]
    assert {s.name for s in matching("nvidia gb")} >= {"GB200 (one GPU)", "GB300 (one GPU)", "GB10 (DGX Spark)"}
    assert matching("voodoo") == ()
    assert matching("") == all_specs()


# --- slices and nominal bandwidth ------------------------------------------------------------------------------------


def test_a_slice_has_its_share_of_the_card():
    whole = spec("A100 SXM 80 GB")
    part = scaled(whole, 3, 4)
    assert part.mem_bytes == whole.mem_bytes / 2
    assert part.mem_bytes_per_s == 2039e9 / 2
    assert part.l2_bytes == whole.l2_bytes / 2
    assert part.bf16_flop_per_s == pytest.approx(312e12 * 3 / 7)
    assert part.tdp_w is None
    assert part.nvlink_bytes_per_s is None
    assert part.name == "A100 SXM 80 GB, 3/7 compute, 4/8 memory"


def test_a_slice_of_known_sms_is_scaled_by_them():
    part = scaled(spec("H100 SXM 80 GB"), 3, 4, sm_count=60)
    assert part.fp8_flop_per_s == pytest.approx(1979e12 * 60 / 132)
    assert part.sm_count == 60


def test_what_the_card_lacks_or_nobody_knows_stays_none_in_its_slice():
    part = scaled(spec("A800 SXM 80 GB"), 7, 8)
    assert part.fp8_flop_per_s is None
    assert part.tf32_flop_per_s is None
    assert part.l2_bytes is None


def test_a_slice_answers_to_no_name_and_has_no_slices():
    part = scaled(spec("A30"), 2, 2)
    assert part.nvml_names == ()
    with pytest.raises(UsageError, match="no MIG"):
        scaled(part, 1, 1)


@pytest.mark.parametrize(
    ("name", "compute", "memory", "why"),
    [("L4", 1, 1, "it has no MIG"), ("A30", 5, 4, "it has 4 and 4"), ("A100 SXM 80 GB", 0, 1, "it has 7 and 8")],
)
def test_impossible_slices_are_refused_with_the_reason(name, compute, memory, why):
    with pytest.raises(UsageError, match=why):
        scaled(spec(name), compute, memory)


@pytest.mark.parametrize(
    ("name", "mem_clock_mhz", "bus_width_bits"),
    [
        ("H200 SXM 141 GB", 3201, 6016),
        ("H100 SXM 80 GB", 2619, 5120),
        ("A100 SXM 40 GB", 1215, 5120),
        ("V100 SXM2 16 GB", 877, 4096),
        ("L4", 6251, 192),
        ("T4", 5001, 256),
    ],
)
def test_the_nominal_bandwidth_of_nvml_agrees_with_the_table(name, mem_clock_mhz, bus_width_bits):
    nominal = nominal_from_nvml(mem_clock_mhz, bus_width_bits)
    assert nominal.bytes_per_s == pytest.approx(spec(name).mem_bytes_per_s, rel=0.005)
    assert "nominal" in nominal.source


@pytest.mark.parametrize(("clock", "width"), [(None, 6016), (3201, None), (0, 6016), (3201, 0)])
def test_without_clock_or_width_there_is_no_nominal_bandwidth(clock, width):
    assert nominal_from_nvml(clock, width) is None


# --- text, JSON, document --------------------------------------------------------------------------------------------
