"""Whether a profile was taken under the conditions of the live run: was L2 warm, was other work in the counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gputop_llm.ncu import names
from gputop_llm.ncu.model import GemmShape, KernelReport

#: L2 fetched less than this part of what was asked of it: what the kernel read was there before it began.
_FETCHED_NOTHING = 0.01
#: Below this use of L2 the shares of it say nothing.
_L2_WORTH_PCT = 5.0
#: DRAM moved less than this part of what the shape needs.
_LESS_THAN_NEEDED = 0.5
#: A share of a whole that is above it was counted over different work. Rounding stays far below this.
_IMPOSSIBLE_PCT = 105.0
_SHARES = ("hit_rate.pct", "success_rate.pct", "achieved_rate.pct")
_OF_L2 = ("lts__", "lrc__")


@dataclass(frozen=True, slots=True)
class Warm:
    """L2 held the data before the kernel began. `fetched_pct` is what it fetched of what it was asked for."""

    hit_pct: float | None
    fetched_pct: float | None
    dram_bytes: float | None
    needed_bytes: float | None
    flag: str | None


@dataclass(frozen=True, slots=True)
class Foreign:
    """Counters that can't be this kernel's alone: shares above 100 %, by their metric."""

    impossible: Mapping[str, float]


def warm_l2(kernel: KernelReport, options: Mapping[str, str], shape: GemmShape | None) -> Warm | None:
    """Evidence that L2 was warm; None where there is none. That caches were not flushed alone is none."""
    asked, filled = kernel.first(names.L2_ASKED), kernel.first(names.L2_FILLED)
    fetched = None
    if asked is not None and filled is not None and asked >= _L2_WORTH_PCT:
        fetched = filled / asked
    moved, needed = kernel.dram_bytes, shape.least_bytes if shape is not None else None
    too_few = moved is not None and needed is not None and moved < _LESS_THAN_NEEDED * needed
    if not too_few and (fetched is None or fetched >= _FETCHED_NOTHING):
        return None
    cache = options.get("cache-control")
    return Warm(
        hit_pct=kernel.first(names.L2_HIT),
        fetched_pct=None if fetched is None else 100.0 * fetched,
        dram_bytes=moved,
        needed_bytes=needed,
        flag=f"--cache-control {cache}" if cache else None,
    )


def foreign_work(kernel: KernelReport) -> Foreign | None:
    """Counters that show other work beside the kernel; None where none does, which is no proof that there was none.

    Shares of an L2 that was hardly used are left out: alone on an H200 they read up to 203 % of some thousand sectors.
    """
    unused = kernel.l2_pct is not None and kernel.l2_pct < _L2_WORTH_PCT
    found = {
        n: v
        for n, v in kernel.metrics.items()
        if n.endswith(_SHARES) and v > _IMPOSSIBLE_PCT and not (unused and n.startswith(_OF_L2))
    }
    return Foreign(found) if found else None
