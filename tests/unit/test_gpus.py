"""The table of GPUs: dense figures that fit each other, sources for all, and names that mean the right card or none."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gputop_llm import gpus
from gputop_llm.gpus import GpuSpec, all_specs, matching, scaled
from gputop_llm.report import gpus_text

MIB = 2**20
DOC = Path(__file__).parents[2] / "docs" / "gpus.md"

# Dense FP16 FLOP per clock and SM with the tensor cores at full rate: NVIDIA's architecture whitepapers.
FLOP_PER_CLOCK_AND_SM = {
    (7, 0): 1024,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1024,
    (8, 9): 1024,
    (9, 0): 4096,
    (12, 0): 1024,
}


MAIN_FIGURES = {f.name for f in fields(GpuSpec)} - {"pcie_width", "mig_memory_slices"}


def spec(name: str) -> GpuSpec:
    (found,) = [s for s in all_specs() if s.name == name]
    return found


def is_geforce(s: GpuSpec) -> bool:
    return s.name.startswith("GeForce")


def with_figures(*names: str) -> list[GpuSpec]:
    found = [s for s in all_specs() if all(getattr(s, name) is not None for name in names)]
    assert len(found) > 3, f"too few GPUs have {names} for the test to mean anything"
    return found


# --- figures ---------------------------------------------------------------------------------------------------------


def test_every_figure_has_a_source_with_a_title():
    plain = {"name", "nvml_names", "architecture", "nvlink_bridge", "note", "lacks", "halved", "sources"}
    for s in all_specs():
        for f in fields(s):
            if f.name not in plain and getattr(s, f.name) is not None:
                assert s.sources[f.name].title, f"{s.name}: {f.name}"


def test_every_source_of_the_file_is_used():
    used = {source.key for s in all_specs() for source in s.sources.values()}
    assert set(gpus._read()["sources"]) == used


def test_no_figure_stands_twice_in_an_entry():
    for row in gpus._read()["gpu"]:
        assert not set(row.get("dense", {})) & set(row.get("sparse", {})), row["name"]


def test_every_overriding_source_is_for_a_figure_that_is_there():
    for row in gpus._read()["gpu"]:
        assert set(row.get("from", {})) <= {*row, *row.get("dense", {}), *row.get("sparse", {})}, row["name"]


def test_names_and_nvml_names_are_unique():
    names = [s.name for s in all_specs()]
    nvml = [name for s in all_specs() for name in s.nvml_names]
    assert len(set(names)) == len(names)
    assert len(set(nvml)) == len(nvml)


def test_what_a_part_lacks_has_no_figure():
    for s in all_specs():
        assert [name for name in s.lacks if getattr(s, name) is not None] == [], s.name


def test_a_generation_lacks_the_data_types_that_came_later():
    assert {"tf32_flop_per_s", "bf16_flop_per_s", "fp8_flop_per_s", "fp4_flop_per_s"} <= spec("T4").lacks
    assert {"int8_op_per_s", "bf16_flop_per_s"} <= spec("V100 SXM2 16 GB").lacks
    assert spec("A100 SXM 80 GB").lacks == {"fp8_flop_per_s", "fp8_acc16_flop_per_s", "fp4_flop_per_s"}
    assert spec("H100 SXM 80 GB").lacks == {"fp4_flop_per_s"}
    assert not spec("B200").lacks


def test_bf16_is_as_fast_as_fp16_from_ampere_on():
    for s in with_figures("bf16_flop_per_s", "fp16_flop_per_s"):
        assert s.compute_capability >= (8, 0)
        assert s.bf16_flop_per_s == s.fp16_flop_per_s, s.name
    for s in all_specs():
        if s.compute_capability >= (8, 0):
            assert (s.bf16_flop_per_s is None) == (s.fp16_flop_per_s is None), s.name


def test_fp8_is_twice_fp16():
    for s in with_figures("fp8_flop_per_s", "fp16_flop_per_s"):
        assert s.fp8_flop_per_s == pytest.approx(2 * s.fp16_flop_per_s, rel=0.02), s.name


def test_tf32_is_half_of_fp16():
    for s in with_figures("tf32_flop_per_s", "fp16_flop_per_s"):
        assert s.tf32_flop_per_s == pytest.approx(s.fp16_flop_per_s / 2, rel=0.03), s.name


def test_int8_is_twice_fp16_at_the_full_rate_except_on_blackwell_ultra():
    for s in with_figures("int8_op_per_s", "fp16_flop_per_s"):
        full_rate = s.fp16_acc16_flop_per_s if is_geforce(s) else s.fp16_flop_per_s
        if s.architecture == "Blackwell Ultra":
            assert s.int8_op_per_s < 0.1 * full_rate
        else:
            assert s.int8_op_per_s == pytest.approx(2 * full_rate, rel=0.02), s.name


def test_geforce_parts_are_half_as_fast_with_fp32_accumulation():
    for s in filter(is_geforce, all_specs()):
        assert s.fp16_acc16_flop_per_s == pytest.approx(2 * s.fp16_flop_per_s, rel=0.005), s.name
        assert s.fp8_acc16_flop_per_s == pytest.approx(2 * s.fp8_flop_per_s, rel=0.005), s.name


def test_data_center_parts_are_as_fast_with_either_accumulation():
    for s in with_figures("fp16_acc16_flop_per_s", "fp16_flop_per_s"):
        if not is_geforce(s):
            assert s.fp16_acc16_flop_per_s == s.fp16_flop_per_s, s.name


def test_fp4_is_twice_fp8_and_three_times_on_blackwell_ultra():
    for s in with_figures("fp4_flop_per_s", "fp8_flop_per_s"):
        full_rate = s.fp8_acc16_flop_per_s if is_geforce(s) else s.fp8_flop_per_s
        factor = 3 if s.architecture == "Blackwell Ultra" else 2
        assert s.fp4_flop_per_s == pytest.approx(factor * full_rate, rel=0.04), s.name


def test_fp16_peaks_are_what_sms_and_clock_give_so_none_is_a_sparse_figure():
    checked = 0
    for s in with_figures("fp16_flop_per_s", "sm_count", "boost_mhz"):
        rate = FLOP_PER_CLOCK_AND_SM[s.compute_capability]
        if is_geforce(s) or s.name == "L40":
            rate /= 2
        assert s.fp16_flop_per_s == pytest.approx(s.sm_count * rate * s.boost_mhz * 1e6, rel=0.03), s.name
        checked += 1
    assert checked > 30


def test_fp32_peaks_are_what_sms_and_clock_give():
    for s in with_figures("fp32_flop_per_s", "sm_count", "boost_mhz"):
        if s.architecture == "Hopper":
            continue  # its tensor cores boost less than the rest of the chip
        cores = 64 if s.compute_capability in {(7, 0), (7, 5), (8, 0)} else 128
        assert s.fp32_flop_per_s == pytest.approx(s.sm_count * cores * 2 * s.boost_mhz * 1e6, rel=0.03), s.name


@pytest.mark.parametrize(
    ("name", "field", "dense", "printed"),
    [
        ("H100 SXM 80 GB", "fp16_flop_per_s", 989.5e12, 1979e12),
        ("H200 SXM 141 GB", "fp8_flop_per_s", 1979e12, 3958e12),
        ("L4", "int8_op_per_s", 242.5e12, 485e12),
        ("B200", "fp4_flop_per_s", 9e15, 18e15),
        ("GeForce RTX 5080", "fp4_flop_per_s", 900.5e12, 1801e12),
    ],
)
def test_figures_printed_with_sparsity_are_halved_and_marked(name, field, dense, printed):
    assert getattr(spec(name), field) == dense == printed / 2
    assert field in spec(name).halved


def test_figures_printed_dense_are_left_alone():
    b300 = spec("B300")
    assert b300.fp4_flop_per_s == 14e15
    assert "fp4_flop_per_s" not in b300.halved
    assert spec("A100 SXM 80 GB").fp16_flop_per_s == 312e12


def test_nvlink_is_per_direction():
    assert spec("H100 SXM 80 GB").nvlink_bytes_per_s == 450e9
    assert spec("A100 SXM 80 GB").nvlink_bytes_per_s == 300e9
    assert spec("B200").nvlink_bytes_per_s == 900e9
    assert spec("A40").nvlink_bytes_per_s == 56.25e9
    assert spec("A40").nvlink_bridge


def test_form_factors_of_one_name_differ():
    bandwidths = {s.name: s.mem_bytes_per_s for s in matching("a100")}
    assert bandwidths == {
        "A100 SXM 40 GB": 1555e9,
        "A100 SXM 80 GB": 2039e9,
        "A100 PCIe 40 GB": 1555e9,
        "A100 PCIe 80 GB": 1935e9,
    }


def test_the_table_has_a_line_for_every_gpu_and_fits_a_wide_terminal():
    lines = gpus_text.table(all_specs()).split("\n\n")[0].splitlines()
    assert len(lines) == 1 + len(all_specs())
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= 120


def test_unknown_and_lacking_are_told_apart_and_neither_is_zero():
    (line,) = [row for row in gpus_text.table(matching("l20")).splitlines() if row.startswith("L20")]
    assert line.split() == ["L20", "48", "GB", "864", "GB/s", "119.5", "–", "239", "no", "–", "no", "4", "x16"]


def test_details_name_the_source_beside_each_figure_and_mark_halved_ones():
    text = gpus_text.details(spec("H200 SXM 141 GB"))
    (fp8,) = [line for line in text.splitlines() if line.strip().startswith("FP8")]
    assert fp8.split() == ["FP8", "1979", "TFLOP/s", "½", "h200-ds"]
    assert "FP4" not in text
    head, sources = text.split("\n\nSources\n")
    assert "  h200-ncu: Device attributes of an H200" in sources
    named = {line.split(":")[0].strip() for line in sources.splitlines()}
    assert named == {source.key for name, source in spec("H200 SXM 141 GB").sources.items() if name in MAIN_FIGURES}
    assert all(key in head for key in named)


def test_details_of_a_slice_can_be_printed():
    assert "Computed as a share of A30." in gpus_text.details(scaled(spec("A30"), 1, 1))


def test_json_has_every_figure_in_si_units_with_its_source():
    plain = json.loads(json.dumps([gpus_text.as_dict(s) for s in all_specs()]))
    h100 = next(row for row in plain if row["name"] == "H100 SXM 80 GB")
    assert h100["bf16_flop_per_s"] == 989.5e12
    assert h100["nvlink_bytes_per_s"] == 450e9
    assert h100["compute_capability"] == "9.0"
    assert h100["fp4_flop_per_s"] is None
    assert h100["lacks"] == ["fp4_flop_per_s"]
    assert "bf16_flop_per_s" in h100["halved"]
    assert h100["sources"]["bf16_flop_per_s"]["url"].startswith("https://www.nvidia.com/")


def test_the_document_is_what_the_table_says():
    assert DOC.read_text(encoding="utf-8") == gpus_text.markdown(all_specs()), "run: python tools/gpus_doc.py"


def test_importing_the_module_reads_nothing():
    code = """
import sys, gputop_llm.gpus as g
print({"tomllib", "tomli"} & {*sys.modules}, g.all_specs.cache_info().misses)
"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["set()", "0"]
