"""What every rule gets, and how a finding about a kernel is put together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gputop_llm.model.finding import Fact
from gputop_llm.ncu.bound import Kind, kind_of
from gputop_llm.ncu.conditions import Foreign, Warm, foreign_work, warm_l2
from gputop_llm.ncu.launch import Waves, waves_of
from gputop_llm.ncu.model import GemmShape, KernelReport
from gputop_llm.ncu.roofline import Point, point_of
from gputop_llm.verdict.kernel_names import Family, family_of, short_name

_PRODUCT = re.compile(r"[Gg]em[mv]")
_NOT_DRAM = frozenset((Kind.COMPUTE, Kind.L1, Kind.L2))
_DULL = frozenset(("kernel", "type", ""))


@dataclass(frozen=True)
class Seen:
    """One launch with everything that several rules ask for. `shape` is the matrix product that it computes."""

    kernel: KernelReport
    options: Mapping[str, str]
    shape: GemmShape | None = None

    @cached_property
    def kind(self) -> Kind:
        return kind_of(self.kernel)

    @cached_property
    def waves(self) -> Waves | None:
        return waves_of(self.kernel)

    @cached_property
    def warm(self) -> Warm | None:
        return warm_l2(self.kernel, self.options, self.shape)

    @cached_property
    def foreign(self) -> Foreign | None:
        return foreign_work(self.kernel)

    @cached_property
    def point(self) -> Point:
        point = point_of(self.kernel, self.shape, bytes_valid=self.warm is None)
        return replace(point, floor_ns=None, roof=None) if self.floor_elsewhere(point) else point

    def floor_elsewhere(self, point: Point) -> bool:
        """Whether DRAM's floor says nothing of this launch: something else holds it, and its FLOP aren't known."""
        return self.kind in _NOT_DRAM and point.flop is None

    @cached_property
    def family(self) -> Family:
        known = family_of(self.kernel.full_name)
        # cuBLAS calls some of its kernels just "kernel": what they do stands in their arguments.
        return Family.GEMM if known is Family.OTHER and _PRODUCT.search(self.kernel.full_name) else known

    @cached_property
    def name(self) -> str:
        """As an engineer says it; the whole name where that says nothing."""
        short = short_name(self.kernel.full_name)
        return self.kernel.full_name if short in _DULL else short

    @property
    def above_roof_pct(self) -> float | None:
        """What of the time lies above the used share of the busiest unit: 100 − the higher of SM and memory."""
        sm, memory = self.kernel.sm_pct, self.kernel.memory_pct
        return None if sm is None or memory is None else max(0.0, 100.0 - max(sm, memory))

    def light(self) -> tuple[Fact, ...]:
        """The Speed of Light and its levels, unknown ones as such."""
        kernel = self.kernel
        return (
            Fact("SM", kernel.sm_pct, "%", "sm__throughput, of its peak"),
            Fact("memory", kernel.memory_pct, "%", "gpu__compute_memory_throughput, of its peak"),
            Fact("DRAM", kernel.dram_pct, "%", "DRAM throughput, of its peak"),
            Fact("L2", kernel.l2_pct, "%", "lts__throughput, of its peak"),
            Fact(
                "duration under ncu",
                None if kernel.duration_ns is None else kernel.duration_ns / 1e3,
                "µs",
                "gpu__time_duration",
                text="alone, serialised and replayed: not what it takes in the live run",
            ),
        )
