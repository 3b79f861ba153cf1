"""GPU-side rules on frames: all of them at once, real readings of NVML, and noise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from gputop_llm.model import Frame, GpuNode, ThrottleReason
from gputop_llm.sources.nvml import NvmlSource
from gputop_llm.symptoms.rules import (
    clocks,
    comm,
    copies,
    cpu,
    fault,
    gpu_limits,
    gpu_work,
    host,
    link,
    memory,
    neighbours,
)
from tests.support.clock import ManualClock
from tests.support.fake_nvml import CASES, FakeNvml
from tests.support.symptom_frames import busy, reports

MODULES = (gpu_work, gpu_limits, host, cpu, comm, copies, memory, neighbours, clocks, link, fault)
RULES = tuple(rule for module in MODULES for rule in module.RULES)
BY_ID = {rule.id: rule for rule in RULES}
GIB = 1024**3

# As GPM and NVML said of an H200 under a small model: busy by utilisation, a quarter of the SMs at work.
QUIET = {
    "util_pct": 98.0,
    "mem_util_pct": 12.0,
    "power_w": 262.0,
    "gpm.sm_active_pct": 25.0,
    "gpm.sm_occupancy_pct": 3.6,
    "gpm.tensor_pct": 3.1,
    "gpm.dram_bw_pct": 17.8,
}


def readings(nvml: FakeNvml, ticks: int, folder: Path = CASES) -> list[GpuNode]:
    """What the NVML source reads, once a second."""
    clock = ManualClock()
    source = NvmlSource(nvml, clock, meminfo_path=folder / "meminfo.txt", version_path=folder / "none")
    nodes = []
    for _ in range(ticks):
        nodes.append(source.poll())
        nvml.advance()
        clock.step(1.0)
    source.close()
    return nodes


def case(number: int, ticks: int = 30) -> list[GpuNode]:
    """A field case as the NVML source reads it; its ticks are repeated."""
    (folder,) = CASES.glob(f"{number:02d}-*")
    found: list[GpuNode] = []
    while len(found) < ticks:
        nvml = FakeNvml.from_case(folder)
        found += readings(nvml, max(len(nvml.devices[0].get("ticks", ())), 1), folder)
    return found[:ticks]


def on(nodes: Sequence[GpuNode], **more: Any) -> list[Frame]:
    """A busy engine on GPUs that say this; the first GPU is the engine's."""
    frames = busy(len(nodes), **more)
    return [replace(f, gpus=replace(f.gpus, value=node)) for f, node in zip(frames, nodes, strict=True)]


def noisy(middle: float, spread: float, seed: int = 7) -> Callable[[int], float]:
    """A figure that jumps about within ±`spread` from second to second."""
    dice = random.Random(seed)
    values: dict[int, float] = {}

    def at(second: int) -> float:
        return values.setdefault(second, middle + dice.uniform(-spread, spread))

    return at


def changes(rule: str, frames: Sequence[Frame]) -> int:
    """How often a symptom comes and goes."""
    shown = [any(s.id == rule for s in report.active) for report in reports((BY_ID[rule],), frames)]
    return sum(a != b for a, b in pairwise(shown))


def throttle(**share_pct: float) -> tuple[ThrottleReason, ...]:
    """Clock reasons by NVML's counters; those that aren't named don't hold."""
    names = ("sw_power_cap", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake")
    bits = ("idle", "app_clocks", "hw_slowdown", "display_clocks")
    return (
        *(ThrottleReason(n, share_pct.get(n, 0.0) > 0, share_pct.get(n, 0.0), "counter") for n in names),
        *(ThrottleReason(n, bool(share_pct.get(n)), None, "bit") for n in bits),
    )


def everything_raised(frames: Sequence[Frame]) -> set[str]:
    """The ids of all that the GPU-side rules say at the end."""
    return {symptom.id for symptom in reports(RULES, frames)[-1].active}


def problems(frames: Sequence[Frame]) -> set[str]:
    """As `everything_raised`, without notes on what is normal."""
    return everything_raised(frames) - {"bandwidth-bound", "compute-bound"}
