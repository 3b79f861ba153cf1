"""The few figures of a profiled kernel that somebody who changes it looks at each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from gputop_llm.ncu import names
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.model import KernelReport
from gputop_llm.printable import printable
from gputop_llm.timeline.launch_shape import Extents
from gputop_llm.verdict.kernel_names import short_name

#: The class of what has no counters.
NOT_JUDGED = "not judged"
#: Newer versions count what spilling does; older ones, in the full set, all local memory.
_SPILLS = ("derived__local_spilling_requests", "sass__inst_executed_register_spilling")
_LOCAL = tuple(f"smsp__sass_inst_executed_op_local_{way}.sum" for way in ("ld", "st"))


@dataclass(frozen=True, slots=True)
class Figures:
    """One kernel with one launch shape. What isn't known is None; times in ns, shares in % of the peak.

    `durations_ns` are those of all its launches; the rest is of the launch with the median one. `spills` are requests
    (or instructions) of spilled values.
    """

    name: str
    full_name: str
    kind: str
    durations_ns: tuple[float, ...]
    grid: Extents | None = None
    block: Extents | None = None
    sm_pct: float | None = None
    memory_pct: float | None = None
    dram_pct: float | None = None
    l2_pct: float | None = None
    occupancy_pct: float | None = None
    theoretical_pct: float | None = None
    waves: float | None = None
    registers: float | None = None
    spills: float | None = None
    clock_hz: float | None = None

    @property
    def median_ns(self) -> float | None:
        return median(self.durations_ns) if self.durations_ns else None

    def as_object(self) -> dict[str, object]:
        """For JSON: times in µs."""
        times = self.durations_ns
        return {
            "kernel": printable(self.name),
            "full_name": printable(self.full_name),
            "class": self.kind,
            "launches": len(times),
            "median_us": None if self.median_ns is None else self.median_ns / 1e3,
            "shortest_us": times[0] / 1e3 if times else None,
            "longest_us": times[-1] / 1e3 if times else None,
            "grid": list(self.grid) if self.grid else None,
            "block": list(self.block) if self.block else None,
            "sm_pct": self.sm_pct,
            "memory_pct": self.memory_pct,
            "dram_pct": self.dram_pct,
            "l2_pct": self.l2_pct,
            "occupancy_pct": self.occupancy_pct,
            "theoretical_pct": self.theoretical_pct,
            "waves": self.waves,
            "registers": self.registers,
            "spills": self.spills,
            "clock_hz": self.clock_hz,
        }

    @property
    def launch(self) -> str:
        """Grid and block as an engineer says them; "" where neither is known."""
        if self.grid is None or self.block is None:
            return ""
        return f"{'×'.join(map(str, self.grid))} blocks of {'×'.join(str(n) for n in self.block if n != 1) or '1'}"


def figures_of(group: Group) -> Figures:
    """The figures of a group of launches."""
    seen = group.seen
    kernel = seen.kernel
    known = (launch.duration_ns for launch in group.launches)
    return Figures(
        name=seen.name,
        full_name=kernel.full_name,
        kind=seen.kind.value,
        durations_ns=tuple(sorted(one for one in known if one is not None)),
        grid=kernel.grid,
        block=kernel.block,
        sm_pct=kernel.sm_pct,
        memory_pct=kernel.memory_pct,
        dram_pct=kernel.dram_pct,
        l2_pct=kernel.l2_pct,
        occupancy_pct=kernel.first(names.ACHIEVED),
        theoretical_pct=kernel.first(names.THEORETICAL),
        waves=seen.waves.value if seen.waves else None,
        registers=kernel.first(names.REGISTERS),
        spills=_spills(kernel),
        clock_hz=kernel.first(names.SM_CLOCK),
    )


def of_times(name: str, durations_ns: Sequence[float], grid: Extents | None, block: Extents | None) -> Figures:
    """The figures of a kernel of which only times are known, and its launch shape."""
    return Figures(short_name(name), name, NOT_JUDGED, tuple(sorted(durations_ns)), grid, block)


def _spills(kernel: KernelReport) -> float | None:
    if (told := kernel.first(_SPILLS)) is not None:
        return told
    loads, stores = (kernel.first((name,)) for name in _LOCAL)
    return None if loads is None or stores is None else loads + stores
