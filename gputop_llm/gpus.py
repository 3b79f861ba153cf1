"""What NVIDIA GPUs can do at most, each figure with its source; and which of them an NVML name means.

The figures live in data/gpus.toml as their sources print them. Here they become plain SI
numbers: dense, per GPU and, for NVLink, per direction. Nothing is read before the first question.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gputop_llm.errors import UsageError

_TABLE = Path(__file__).with_name("data") / "gpus.toml"

# NVML shows less than the nominal memory: inline ECC takes 1/16, GB10 keeps some for the CPU.
# A board with more memory than the nominal is another board (or a modified one).
_MEM_SHARE_MIN = 0.90
_MEM_SHARE_MAX = 1.02

PEAK_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "fp64_tensor": "fp64_tensor_flop_per_s",
        "fp32": "fp32_flop_per_s",
        "tf32": "tf32_flop_per_s",
        "fp16": "fp16_flop_per_s",
        "fp16_acc16": "fp16_acc16_flop_per_s",
        "bf16": "bf16_flop_per_s",
        "fp8": "fp8_flop_per_s",
        "fp8_acc16": "fp8_acc16_flop_per_s",
        "int8": "int8_op_per_s",
        "fp4": "fp4_flop_per_s",
    }
)
"""The field of `GpuSpec` that holds the dense peak of a data type."""

# Other figures: key in the file, field, factor from the printed unit.
_FIGURES = (
    ("mem_gb", "mem_bytes", 2**30),
    ("bandwidth_gb_s", "mem_bytes_per_s", 1e9),
    ("l2_mb", "l2_bytes", 2**20),
    ("sm", "sm_count", 1),
    ("boost_mhz", "boost_mhz", 1),
    ("tdp_w", "tdp_w", 1),
    ("nvlink_total_gb_s", "nvlink_bytes_per_s", 0.5e9),
)
_WHOLE = {"mem_bytes", "l2_bytes", "sm_count"}
_FP64_TENSOR_PARTS = {(8, 0), (9, 0), (10, 0), (10, 3)}


@dataclass(frozen=True, slots=True)
class Source:
    """Where a figure comes from: a document's title, and its address ("" if none is known)."""

    key: str
    title: str
    url: str


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU in one form factor. A figure is None where no source was found, or where the part lacks it (`lacks`).

    Peaks are dense, in FLOP/s (INT8: OP/s), at the boost clock, with FP32 accumulation;
    the `_acc16` ones with FP16 accumulation, which GeForce parts do twice as fast.
    Bandwidths are in bytes per second, NVLink's per direction (NVIDIA states the sum of both).
    `nvlink_bridge`: only cards joined by a bridge have it.
    `sources` names every figure's source; `halved` the figures whose source prints only
    the value with sparsity, twice the dense one.
    """

    name: str
    nvml_names: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    mem_bytes: int
    mem_bytes_per_s: float | None = None
    fp64_tensor_flop_per_s: float | None = None
    fp32_flop_per_s: float | None = None
    tf32_flop_per_s: float | None = None
    fp16_flop_per_s: float | None = None
    fp16_acc16_flop_per_s: float | None = None
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    fp8_acc16_flop_per_s: float | None = None
    int8_op_per_s: float | None = None
    fp4_flop_per_s: float | None = None
    l2_bytes: int | None = None
    sm_count: int | None = None
    boost_mhz: float | None = None
    tdp_w: float | None = None
    nvlink_bytes_per_s: float | None = None
    nvlink_bridge: bool = False
    pcie_gen: int | None = None
    pcie_width: int | None = None
    mig_compute_slices: int | None = None
    mig_memory_slices: int | None = None
    note: str = ""
    lacks: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()
    sources: Mapping[str, Source] = field(default_factory=dict)

    def peak_per_s(self, dtype: str) -> float | None:
        """The dense peak of a data type (a key of PEAK_FIELDS) in FLOP/s or OP/s; None if unknown or lacking."""
        value: float | None = getattr(self, PEAK_FIELDS[dtype])
        return value


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A memory bandwidth in bytes per second, and how it was come by."""

    bytes_per_s: float
    source: str


@cache
def all_specs() -> tuple[GpuSpec, ...]:
    """Every GPU of the table, oldest architecture first."""
    table = _read()
    sources = {key: Source(key, row["title"], row.get("url", "")) for key, row in table["sources"].items()}
    return tuple(_spec(row, sources) for row in table["gpu"])


@lru_cache(maxsize=64)
def find(name: str | None, mem_total_bytes: int | None = None) -> GpuSpec | None:
    """The GPU that NVML calls `name`; None for anything else.

    The whole name must match: MIG slices, vGPUs and laptop parts carry a longer one and have
    less than the card of their name. With `mem_total_bytes` (NVML's total) the memory must fit
    too, so that a partial or modified board isn't taken for the standard one. A GPU of the demo
    ("NVIDIA H200 (simulated)") is found as the one that it stands for.
    """
    plain = _plain((name or "").removesuffix(" (simulated)"))
    found = [spec for spec in _by_nvml_name().get(plain, ()) if _memory_fits(spec, mem_total_bytes)]
    return found[0] if len(found) == 1 else None


def matching(query: str) -> tuple[GpuSpec, ...]:
    """The GPUs whose name or NVML name has every word of `query`, in the table's order."""
    words = query.lower().split()
    return tuple(
        spec for spec in all_specs() if all(word in " ".join((spec.name, *spec.nvml_names)).lower() for word in words)
    )


def scaled(spec: GpuSpec, compute_slices: int, memory_slices: int, sm_count: int | None = None) -> GpuSpec:
    """The share of `spec` that a MIG slice has: peaks by compute slices, memory, its bandwidth and L2 by memory slices.

    Pass the slice's `sm_count` (NVML) where it is known: an A100 spreads 98 of its 108 SMs over
    seven slices and an H100 gives a 3g slice 60 of 132, so that the count of slices is not exact.
    Power and NVLink are None: a slice has no limit of its own and no peer access.

    Raises:
        UsageError: the GPU has no MIG, or not as many slices.
    """
    compute_all, memory_all = spec.mig_compute_slices, spec.mig_memory_slices
    if not compute_all or not memory_all:
        raise UsageError(f"cannot scale {spec.name} to a slice", "it has no MIG", "")
    if not (1 <= compute_slices <= compute_all and 1 <= memory_slices <= memory_all):
        raise UsageError(
            f"cannot scale {spec.name} to {compute_slices} compute and {memory_slices} memory slices",
            f"it has {compute_all} and {memory_all}",
            "",
        )
    memory = memory_slices / memory_all
    compute = sm_count / spec.sm_count if sm_count and spec.sm_count else compute_slices / compute_all
    peaks: dict[str, Any] = {name: _times(getattr(spec, name), compute) for name in PEAK_FIELDS.values()}
    gone = {"tdp_w", "nvlink_bytes_per_s", "mig_compute_slices", "mig_memory_slices", "sm_count"}
    return replace(
        spec,
        **peaks,
        name=f"{spec.name}, {compute_slices}/{compute_all} compute, {memory_slices}/{memory_all} memory",
        nvml_names=(),
        mem_bytes=round(spec.mem_bytes * memory),
        mem_bytes_per_s=_times(spec.mem_bytes_per_s, memory),
        l2_bytes=None if spec.l2_bytes is None else round(spec.l2_bytes * memory),
        sm_count=sm_count,
        tdp_w=None,
        nvlink_bytes_per_s=None,
        mig_compute_slices=None,
        mig_memory_slices=None,
        note=f"Computed as a share of {spec.name}.",
        lacks=spec.lacks | {"nvlink_bytes_per_s"},
        sources=MappingProxyType({name: source for name, source in spec.sources.items() if name not in gone}),
    )


def nominal_from_nvml(mem_clock_mhz: float | None, bus_width_bits: float | None) -> Bandwidth | None:
    """The memory bandwidth that NVML's (maximum) memory clock and bus width give; None without both.

    Two transfers per clock, for HBM and for GDDR as NVML counts its clock: clock x 2 x width / 8.
    """
    if not mem_clock_mhz or not bus_width_bits:
        return None
    return Bandwidth(mem_clock_mhz * 1e6 * 2 * bus_width_bits / 8, "nominal: NVML memory clock x 2 x bus width / 8")


def _read() -> dict[str, Any]:
    # tomli is the same parser under its older name; it is installed for Python 3.10 only.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    table: dict[str, Any] = toml.loads(_TABLE.read_text(encoding="utf-8"))
    return table


@cache
def _by_nvml_name() -> dict[str, tuple[GpuSpec, ...]]:
    index: dict[str, tuple[GpuSpec, ...]] = {}
    for spec in all_specs():
        for name in spec.nvml_names:
            index[_plain(name)] = (*index.get(_plain(name), ()), spec)
    return index


def _plain(name: str) -> str:
    """A name as it is compared: older drivers leave "NVIDIA" out, and only some parts carry "Tesla"."""
    return " ".join(name.lower().split()).removeprefix("nvidia ").removeprefix("tesla ")


def _memory_fits(spec: GpuSpec, total_bytes: int | None) -> bool:
    return total_bytes is None or _MEM_SHARE_MIN <= total_bytes / spec.mem_bytes <= _MEM_SHARE_MAX


def _spec(row: Mapping[str, Any], sources: Mapping[str, Source]) -> GpuSpec:
    figures: dict[str, Any] = {}
    origin: dict[str, Source] = {}
    other = row.get("from", {})

    def put(key: str, name: str, value: float | None) -> None:
        if value is not None:
            figures[name] = value
            origin[name] = sources[other.get(key, row["source"])]

    for key, name, factor in _FIGURES:
        if key in row:
            put(key, name, round(row[key] * factor) if name in _WHOLE else row[key] * factor)
    for key, name in PEAK_FIELDS.items():
        put(key, name, _times(row.get("dense", {}).get(key), 1e12))
        put(key, name, _times(row.get("sparse", {}).get(key), 0.5e12))
    for key, names, separator, default in (
        ("pcie", ("pcie_gen", "pcie_width"), "x", row["source"]),
        ("mig", ("mig_compute_slices", "mig_memory_slices"), "/", "mig-guide"),
    ):
        if key in row:
            figures |= zip(names, map(int, row[key].split(separator)), strict=True)
            origin |= dict.fromkeys(names, sources[other.get(key, default)])
    major, minor = map(int, row["cc"].split("."))
    origin["compute_capability"] = sources["cuda-cc"]
    return GpuSpec(
        name=row["name"],
        nvml_names=tuple(row["nvml"]),
        architecture=row["arch"],
        compute_capability=(major, minor),
        nvlink_bridge=row.get("nvlink_bridge", False),
        note=row.get("note", ""),
        lacks=_lacks((major, minor), row.get("lacks", ())),
        halved=frozenset(PEAK_FIELDS[key] for key in row.get("sparse", ())),
        sources=MappingProxyType(origin),
        **figures,
    )


def _lacks(compute_capability: tuple[int, int], links: list[str]) -> frozenset[str]:
    """The fields that the part has no hardware for, from its generation and the table's `lacks`."""
    lacking = {
        name for link in links for name in (("pcie_gen", "pcie_width") if link == "pcie" else (f"{link}_bytes_per_s",))
    }
    for first, dtypes in (
        ((7, 5), ("int8",)),
        ((8, 0), ("tf32", "bf16")),
        ((8, 9), ("fp8", "fp8_acc16")),
        ((10, 0), ("fp4",)),
    ):
        if compute_capability < first:
            lacking |= {PEAK_FIELDS[dtype] for dtype in dtypes}
    if compute_capability not in _FP64_TENSOR_PARTS:
        lacking.add(PEAK_FIELDS["fp64_tensor"])
    return frozenset(lacking)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
