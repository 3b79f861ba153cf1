"""One profiled kernel launch as the rules see it, whatever file it came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gputop_llm.ncu import names


@dataclass(frozen=True, slots=True)
class NvidiaRule:
    """What one of NVIDIA's own rules said, as it was stored at capture.

    `speedup_pct` is its estimate; `whole_kernel` whether that is of the whole kernel's time ("global") or only of the
    part that the rule looks at ("local"). `advises` is false for mere information.
    """

    identifier: str
    section: str
    title: str
    message: str
    advises: bool
    speedup_pct: float | None = None
    whole_kernel: bool | None = None


@dataclass(frozen=True, slots=True)
class GemmShape:
    """A matrix product of `m` x `k` with `k` x `n`, elements of `bytes_each` bytes; of a linear layer `m` is tokens."""

    m: int
    n: int
    k: int
    bytes_each: float = 2.0

    @property
    def least_bytes(self) -> float:
        """Each input read once and the result written once: (m k + k n + m n) x bytes of an element."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * self.bytes_each

    @property
    def flop(self) -> float:
        """2 m n k."""
        return 2.0 * self.m * self.n * self.k


@dataclass(frozen=True)
class KernelReport:
    """One launch. `metrics` are in base units (ns, bytes, bytes/s, Hz, % from 0 to 100) under ncu's own names.

    What was in the file without a value ("n/a", empty, nan, "(!) …") is in `missing`, and never 0. `grid` and `block`
    are x, y, z; `compute_capability` as (9, 0). `workload` is "kernel", "graph", "range" or "command list".
    """

    name: str
    full_name: str
    metrics: Mapping[str, float]
    number: int = 0
    missing: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[NvidiaRule, ...] = ()
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    compute_capability: tuple[int, int] | None = None
    workload: str = "kernel"

    def first(self, metrics: Iterable[str]) -> float | None:
        """The first of these metrics that has a value."""
        return next((self.metrics[name] for name in metrics if name in self.metrics), None)

    @property
    def duration_ns(self) -> float | None:
        return self.first(names.DURATION)

    @property
    def sm_pct(self) -> float | None:
        """The compute side of NVIDIA's Speed of Light."""
        return self.first(names.SM)

    @property
    def memory_pct(self) -> float | None:
        """The memory side of it; where only its levels were collected, the highest of DRAM and L2."""
        known = self.first(names.MEMORY)
        if known is not None or set(names.MEMORY) & self.missing:
            return known
        # One level alone tells too little: the other may be the one that is full.
        dram, l2 = self.dram_pct, self.l2_pct
        return None if dram is None or l2 is None else max(dram, l2)

    @property
    def dram_pct(self) -> float | None:
        return self.first(names.DRAM)

    @property
    def l2_pct(self) -> float | None:
        return self.first(names.L2)

    @property
    def dram_bytes(self) -> float | None:
        """Bytes between L2 and DRAM: counted, or read plus written, or the rate x the duration."""
        if (counted := self.first(names.DRAM_BYTES)) is not None:
            return counted
        read, written = self.first(names.DRAM_READ), self.first(names.DRAM_WRITE)
        if read is not None and written is not None:
            return read + written
        rate, duration = self.first(names.DRAM_RATE), self.duration_ns
        return None if rate is None or duration is None else rate * duration / 1e9

    @property
    def blocks(self) -> int | None:
        """Blocks of the grid."""
        if self.grid is not None:
            return self.grid[0] * self.grid[1] * self.grid[2]
        size = self.first(("launch__grid_size",))
        return None if size is None else round(size)

    @property
    def threads(self) -> int | None:
        """Threads of a block."""
        if self.block is not None:
            return self.block[0] * self.block[1] * self.block[2]
        size = self.first(("launch__block_size",))
        return None if size is None else round(size)

    @property
    def sm_count(self) -> int | None:
        count = self.first(("launch__sm_count", "device__attribute_multiprocessor_count"))
        return None if count is None else round(count)

    @property
    def device_name(self) -> str | None:
        return self.texts.get("device__attribute_display_name")

    @property
    def same(self) -> tuple[object, ...]:
        """Launches that agree in this are the same kernel with the same shape."""
        return self.full_name, self.grid, self.block
