"""The table of GPUs as text, JSON and Markdown (docs/gpus.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from gputop_llm.gpus import PEAK_FIELDS, GpuSpec, Source
from gputop_llm.units import DASH

_LACKING = "no"
_COLUMNS = ("memory", "bandwidth", "FP16", "FP8", "INT8", "FP4", "TDP", "NVLink", "PCIe")

_LABELS = {
    "fp64_tensor": "FP64 tensor",
    "fp32": "FP32, no tensor cores",
    "tf32": "TF32",
    "fp16": "FP16",
    "fp16_acc16": "FP16, FP16 accumulation",
    "bf16": "BF16",
    "fp8": "FP8",
    "fp8_acc16": "FP8, FP16 accumulation",
    "int8": "INT8",
    "fp4": "FP4",
}

LEGEND = (
    f"Peaks are dense (never the figure with sparsity), in TFLOP/s (INT8: TOP/s), with FP32 accumulation. "
    f"BF16 equals FP16 from Ampere on; older parts have none. "
    f"NVLink is per direction, * through an optional bridge. "
    f"{DASH}: no source found; {_LACKING}: the part has none."
)

_INTRO = """\
# GPUs

What NVIDIA GPUs can do at most. `gputop-llm gpus` prints this table, and MBU, MFU and the rooflines take their
limits from it. It is made from `gputop_llm/data/gpus.toml` by `python tools/gpus_doc.py`; don't edit it here.

- Peaks are **dense**, at the boost clock that the source assumes. Data sheets often print the figure with 2:4
  sparsity, which is twice as high and which no LLM engine reaches; such figures are halved and marked ½.
- They are with **FP32 accumulation**, as the engines' GEMMs run. GeForce parts do FP16 and FP8 twice as fast with FP16
  accumulation; those figures stand beside them.
- A GPU can pass its nominal peak a little: GeForce cards boost above the clock that their figures stand for. A GPU at
  its power limit stays below it (an L4 far below).
- Bandwidth is in 10^9 bytes per second. Memory is NVIDIA's "GB", which are 2^30 bytes; NVML shows up to 7 % less,
  where ECC or the driver takes a part.
- NVLink is **per direction**; NVIDIA states the sum of both.
- MIG slices, vGPUs, laptop parts and boards whose memory doesn't fit get none of these figures: their NVML names
  differ, and they have less than the card. For a MIG slice its share is computed; for other GPUs bandwidth comes from
  NVML (memory clock x 2 x bus width / 8) and is called nominal.
- Each figure names its source. Most are NVIDIA's own documents, some of them read in published transcriptions; "as
  reported" and "board data" are others' words, and "derived" is computed from figures of the named document.
"""


def table(specs: Sequence[GpuSpec]) -> str:
    """One line per GPU, with a head and a legend."""
    rows = [("GPU", *_COLUMNS), *(_row(spec) for spec in specs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([*lines, "", LEGEND])


def details(spec: GpuSpec) -> str:
    """All figures of one GPU, each with the key of its source, and the sources below."""
    lines = [spec.name, f"  {spec.architecture}; in NVML: {', '.join(spec.nvml_names) or DASH}"]
    shown = _figures(spec)
    label_width = max(len(label) for _, label, _ in shown)
    value_width = max(len(value) for _, _, value in shown)
    used: dict[str, Source] = {}
    for name, label, value in shown:
        source = spec.sources.get(name)
        lines.append(
            f"  {label.ljust(label_width)}  {value.ljust(value_width)}  {source.key if source else ''}".rstrip()
        )
        if source:
            used[source.key] = source
    if spec.note:
        lines.append(f"  {spec.note}")
    if spec.halved:
        lines.append("  ½: half of the figure that the source prints, which is with sparsity")
    lines += ["", "Sources", *(f"  {key}: {source.title} {source.url}".rstrip() for key, source in used.items())]
    return "\n".join(lines)


def as_dict(spec: GpuSpec) -> dict[str, Any]:
    """One GPU for JSON: the figures in SI units under the names of `GpuSpec`, null where unknown or lacking."""
    plain: dict[str, Any] = {f.name: getattr(spec, f.name) for f in fields(spec)}
    plain["nvml_names"] = list(spec.nvml_names)
    plain["compute_capability"] = "{}.{}".format(*spec.compute_capability)
    plain["lacks"] = sorted(spec.lacks)
    plain["halved"] = sorted(spec.halved)
    plain["sources"] = {name: {"title": s.title, "url": s.url} for name, s in spec.sources.items()}
    return plain


def markdown(specs: Sequence[GpuSpec]) -> str:
    """The whole of docs/gpus.md."""
    parts = [
        _INTRO,
        "## Table\n",
        _md_table(("GPU", *_COLUMNS), [_row(spec) for spec in specs]),
        f"{LEGEND}\n",
        "## Figures and sources\n",
    ]
    for spec in specs:
        names = ", ".join(f"`{name}`" for name in spec.nvml_names)
        rows = [
            (label, value, f"[{spec.sources[name].key}](#sources)" if name in spec.sources else "")
            for name, label, value in _figures(spec)
        ]
        parts += [
            f"### {spec.name}\n",
            f"{spec.architecture}; in NVML {names}. {spec.note}".rstrip() + "\n",
            _md_table(("figure", "value", "source"), rows),
        ]
    used = sorted({source.key: source for spec in specs for source in spec.sources.values()}.items())
    documents = [(key, f"[{source.title}]({source.url})" if source.url else source.title) for key, source in used]
    return "\n".join([*parts, "## Sources\n", _md_table(("key", "document"), documents)]).rstrip() + "\n"


def _row(spec: GpuSpec) -> tuple[str, ...]:
    return (
        spec.name,
        _memory(spec),
        _bandwidth(spec),
        *(_peak(spec, dtype) for dtype in ("fp16", "fp8", "int8", "fp4")),
        DASH if spec.tdp_w is None else f"{spec.tdp_w:.0f} W",
        _nvlink(spec),
        _pcie(spec),
    )


def _figures(spec: GpuSpec) -> list[tuple[str, str, str]]:
    """Field, label and value of every figure worth a line: not the ones that the part lacks."""
    rows = [
        ("compute_capability", "compute capability", "{}.{}".format(*spec.compute_capability)),
        ("mem_bytes", "memory", _memory(spec)),
        ("mem_bytes_per_s", "memory bandwidth", _bandwidth(spec)),
        ("l2_bytes", "L2 cache", DASH if spec.l2_bytes is None else f"{spec.l2_bytes / 2**20:g} MiB"),
        ("sm_count", "SMs", DASH if spec.sm_count is None else str(spec.sm_count)),
        ("boost_mhz", "boost clock of the peaks", DASH if spec.boost_mhz is None else f"{spec.boost_mhz:.0f} MHz"),
    ]
    for dtype, name in PEAK_FIELDS.items():
        half = " ½" if name in spec.halved else ""
        unit = "TOP/s" if dtype == "int8" else "TFLOP/s"
        if not (dtype.endswith("acc16") and spec.peak_per_s(dtype) is None):
            value = _peak(spec, dtype)
            rows.append((name, _LABELS[dtype], value if value == DASH else f"{value} {unit}{half}"))
    rows += [
        ("tdp_w", "board power", DASH if spec.tdp_w is None else f"{spec.tdp_w:.0f} W"),
        ("nvlink_bytes_per_s", "NVLink per direction", _nvlink(spec).replace("*", ", by a bridge")),
        ("pcie_gen", "PCIe", _pcie(spec)),
    ]
    if spec.mig_compute_slices:
        rows.append(
            ("mig_compute_slices", "MIG slices (compute/memory)", f"{spec.mig_compute_slices}/{spec.mig_memory_slices}")
        )
    return [row for row in rows if row[0] not in spec.lacks]


def _memory(spec: GpuSpec) -> str:
    return f"{spec.mem_bytes / 2**30:.4g} GB"


def _bandwidth(spec: GpuSpec) -> str:
    if spec.mem_bytes_per_s is None:
        return DASH
    gigabytes = spec.mem_bytes_per_s / 1e9
    return f"{gigabytes / 1000:.4g} TB/s" if gigabytes >= 1000 else f"{gigabytes:.4g} GB/s"


def _peak(spec: GpuSpec, dtype: str) -> str:
    value = spec.peak_per_s(dtype)
    if value is None:
        return _LACKING if PEAK_FIELDS[dtype] in spec.lacks else DASH
    return f"{value / 1e12:.5g}"


def _nvlink(spec: GpuSpec) -> str:
    if spec.nvlink_bytes_per_s is None:
        return _LACKING if "nvlink_bytes_per_s" in spec.lacks else DASH
    return f"{spec.nvlink_bytes_per_s / 1e9:g} GB/s" + ("*" if spec.nvlink_bridge else "")


def _pcie(spec: GpuSpec) -> str:
    if spec.pcie_gen is None:
        return _LACKING if "pcie_gen" in spec.lacks else DASH
    return f"{spec.pcie_gen} x{spec.pcie_width}"


def _md_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines) + "\n"
