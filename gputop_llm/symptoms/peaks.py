"""What the GPUs of an engine can do at most, for one of them; from the table of GPUs, else nominal from NVML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from gputop_llm import gpus
from gputop_llm.errors import UsageError
from gputop_llm.model import Gpu, MigInstance
from gputop_llm.symptoms.view import EngineView

_VGPU = re.compile(r"-\d+[ABCQ]$")
_SLICE = re.compile(r"\b(?:(\d)c\.)?(\d)g\.\d+gb\b")


@dataclass(frozen=True, slots=True)
class Peaks:
    """One GPU, or the MIG slice that the engine has of it. `spec` is None where the table lacks the GPU."""

    name: str
    spec: gpus.GpuSpec | None
    bytes_per_s: float | None
    bandwidth_source: str


def peaks_of(engine: EngineView) -> Peaks | str:
    """The peaks of each of the engine's GPUs, or why they are unknown."""
    if not engine.gpus:
        return "which GPUs the engine runs on is not known"
    first = engine.gpus[0].now
    if len(engine.gpus) > 1 and len({gpu.now.name for gpu in engine.gpus}) > 1:
        return "the engine's GPUs are of different kinds"
    if first.name is None:
        return first.missing.get("name", "the GPU's name is not known")
    if first.mig_enabled:
        return _slice(engine, first)
    return _whole(first.name, first.mem_total_bytes, first.mem_clock_max_mhz, first.mem_bus_width_bits)


@lru_cache(maxsize=64)
def _whole(name: str, mem_bytes: int | None, clock_mhz: float | None, bus_bits: int | None) -> Peaks | str:
    if _VGPU.search(name):
        return f"{name} is a vGPU: its share of the card is not known"
    spec = gpus.find(name, mem_bytes)
    if spec is not None and spec.mem_bytes_per_s is not None:
        return Peaks(name, spec, spec.mem_bytes_per_s, _source(spec, "mem_bytes_per_s"))
    nominal = gpus.nominal_from_nvml(clock_mhz, bus_bits)
    if nominal is None:
        return Peaks(name, spec, None, f"{name} is not in the table of GPUs, and NVML tells no bandwidth")
    return Peaks(name, spec, nominal.bytes_per_s, nominal.source)


def peak_source(spec: gpus.GpuSpec, dtype: str) -> str:
    """Where the peak of a data type comes from."""
    name = gpus.PEAK_FIELDS[dtype]
    halved = ", half of the figure with sparsity" if name in spec.halved else ""
    return _source(spec, name) + halved


def _source(spec: gpus.GpuSpec, name: str) -> str:
    source = spec.sources.get(name)
    return f"table of GPUs, {spec.name}" + (f" ({source.key})" if source else "")


def _slice(engine: EngineView, gpu: Gpu) -> Peaks | str:
    spec = gpus.find(gpu.name, gpu.mem_total_bytes)
    instance = _instance(engine, gpu)
    if spec is None or instance is None or spec.mig_memory_slices is None:
        return "MIG: the share of the card that the engine has is not known"
    found = _SLICE.search(instance.name or "")
    if found is None or instance.mem_total_bytes is None or instance.sm_count is None:
        return "MIG: the size of the engine's slice is not known"
    memory = max(1, round(spec.mig_memory_slices * instance.mem_total_bytes / spec.mem_bytes))
    try:
        part = gpus.scaled(spec, int(found[1] or found[2]), memory, instance.sm_count)
    except UsageError as error:
        return f"MIG: {error.sentence()}"
    return Peaks(part.name, part, part.mem_bytes_per_s, f"share of the table's {spec.name}")


def _instance(engine: EngineView, gpu: Gpu) -> MigInstance | None:
    processes = engine.target.processes if engine.target else ()
    used = {p.mig_instance for p in processes if gpu.index in p.gpus and p.mig_instance is not None}
    # A compute instance may have a part of the slice only; with several, which one the engine has can't be told.
    found = [one for one in gpu.mig_instances if one.gpu_instance in used]
    return found[0] if len(used) == len(found) == 1 else None
