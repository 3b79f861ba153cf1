"""Where a launch stands on the roofline: how fast it could be at most, by what it computes and what it moves."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm import gpus
from gputop_llm.ncu import names
from gputop_llm.ncu.model import GemmShape, KernelReport

_DTYPES = {
    "bf16": "bf16", "fp16": "fp16", "tf32": "tf32", "fp8": "fp8", "fp64": "fp64_tensor", "int8": "int8", "fp4": "fp4",
}  # fmt: skip
_FP32_OPS = (("ffma", 2.0), ("fadd", 1.0), ("fmul", 1.0))
_SASS = ("smsp__sass_thread_inst_executed_op_", "sm__sass_thread_inst_executed_op_")


@dataclass(frozen=True, slots=True)
class Point:
    """A launch on the roofline. What isn't known is None; times in ns, rates per second.

    `dtype` is a key of `gpus.PEAK_FIELDS`. `memory_floor_ns` = bytes ÷ peak bandwidth, `compute_floor_ns` = FLOP ÷
    peak; `bytes_needed` are the least that the shape needs, where it is known: they then stand for the bytes.
    `roof` is the nearer one, in words.
    """

    flop: float | None
    flop_source: str
    dtype: str | None
    bytes_moved: float | None
    bytes_needed: float | None
    peak_bytes_per_s: float | None
    peak_bytes_source: str
    peak_flop_per_s: float | None
    peak_flop_source: str
    memory_floor_ns: float | None
    compute_floor_ns: float | None
    floor_ns: float | None
    roof: str | None

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of DRAM traffic."""
        return self.flop / self.bytes_moved if self.flop is not None and self.bytes_moved else None

    def headroom_pct(self, duration_ns: float | None) -> float | None:
        """The share of the kernel's time above its floor."""
        if duration_ns is None or not duration_ns or self.floor_ns is None:
            return None
        return max(0.0, 100.0 * (1.0 - self.floor_ns / duration_ns))


def point_of(kernel: KernelReport, shape: GemmShape | None = None, bytes_valid: bool = True) -> Point:
    """The point of a launch. `bytes_valid` is false where the DRAM traffic isn't that of the live run (a warm L2)."""
    duration, moved = kernel.duration_ns, kernel.dram_bytes
    bandwidth, bandwidth_source = _bandwidth(kernel)
    flop, flop_source, dtype = _flop(kernel, shape)
    peak, peak_source = _peak_flop(kernel, dtype, flop, duration)
    need = shape.least_bytes if shape is not None else None
    # Where no shape tells what is needed, what was moved stands for it.
    by_bytes = need if need is not None else moved if bytes_valid else None
    memory_floor = by_bytes / bandwidth * 1e9 if by_bytes is not None and bandwidth else None
    if memory_floor is None and need is None and bytes_valid and duration is not None and kernel.dram_pct is not None:
        memory_floor = duration * kernel.dram_pct / 100
    compute_floor = flop / peak * 1e9 if flop is not None and peak else None
    # Without the bytes the compute roof alone would promise too much.
    floor = None if memory_floor is None else max(memory_floor, compute_floor or 0.0)
    return Point(
        flop=flop,
        flop_source=flop_source,
        dtype=dtype,
        bytes_moved=moved,
        bytes_needed=need,
        peak_bytes_per_s=bandwidth,
        peak_bytes_source=bandwidth_source,
        peak_flop_per_s=peak,
        peak_flop_source=peak_source,
        memory_floor_ns=memory_floor,
        compute_floor_ns=compute_floor,
        floor_ns=floor,
        roof=None if floor is None else "DRAM" if floor == memory_floor else f"{dtype} compute",
    )


def _bandwidth(kernel: KernelReport) -> tuple[float | None, str]:
    rate, pct = kernel.first(names.DRAM_RATE), kernel.dram_pct
    clock = kernel.metrics.get("device__attribute_memory_clock_rate")
    width = kernel.metrics.get("device__attribute_global_memory_bus_width")
    if clock and width and (nominal := gpus.nominal_from_nvml(clock / 1e3, width)) is not None:
        return nominal.bytes_per_s, "the report's memory clock × 2 × bus width ÷ 8"
    if rate and pct:
        return rate / (pct / 100), "the report's bytes per second ÷ its share of the peak"
    spec = gpus.find(kernel.device_name)
    if spec is not None and spec.mem_bytes_per_s is not None:
        return spec.mem_bytes_per_s, f"data sheet of {spec.name}"
    return None, ""


def _flop(kernel: KernelReport, shape: GemmShape | None) -> tuple[float | None, str, str | None]:
    counted, dtype = _tensor_ops(kernel)
    if shape is not None:
        return shape.flop, "2 m n k", dtype or ("bf16" if shape.bytes_each == 2 else None)
    if counted:
        return counted, "operations of the tensor pipe, counted", dtype
    vector = _vector_ops(kernel)
    if vector:
        return vector, "FP32 instructions: add + multiply + 2 × fused", "fp32"
    return None, "", None


def _tensor_ops(kernel: KernelReport) -> tuple[float | None, str | None]:
    """Counted operations, and the type with most of them. Totals and their parts both have counters: parts are left."""
    start, end = names.TENSOR_OPS, names.TENSOR_OPS_END
    found = {n[len(start) : -len(end)]: v for n, v in kernel.metrics.items() if n.startswith(start) and n.endswith(end)}
    own = {n: v for n, v in found.items() if not any(n != other and n.startswith(other + "_") for other in found)}
    if not own:
        return None, None
    most = max(own, key=lambda name: own[name])
    return sum(own.values()), _DTYPES.get(most.partition("_")[0])


def _vector_ops(kernel: KernelReport) -> float | None:
    total = 0.0
    for op, weight in _FP32_OPS:
        count = kernel.first(f"{start}{op}_pred_on.sum" for start in _SASS)
        if count is None:
            rate = kernel.metrics.get(f"{_SASS[0]}{op}_pred_on.sum.per_cycle_elapsed")
            cycles = kernel.metrics.get("smsp__cycles_elapsed.avg")
            count = None if rate is None or cycles is None else rate * cycles
        if count is None:
            return None
        total += weight * count
    return total


def _peak_flop(
    kernel: KernelReport, dtype: str | None, flop: float | None, duration_ns: float | None
) -> tuple[float | None, str]:
    if dtype is None:
        return None, ""
    spec = gpus.find(kernel.device_name)
    peak = spec.peak_per_s(dtype) if spec is not None else None
    if spec is not None and peak is not None:
        return peak, f"data sheet of {spec.name}, dense {dtype}"
    pct = kernel.first(names.TENSOR_PCT[:1])
    if dtype != "fp32" and flop and duration_ns and pct:
        return flop / (duration_ns / 1e9) / (pct / 100), "achieved ÷ the tensor pipe's share of its peak"
    return None, ""
