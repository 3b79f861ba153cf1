"""How a launch fills the GPU: waves, and the blocks that fit on one SM."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.ncu import names
from gputop_llm.ncu.model import KernelReport

_SAID = re.compile(r"only (\d+(?:\.\d+)?) full waves")


@dataclass(frozen=True, slots=True)
class Waves:
    """How often the grid fills the GPU: below 1 it never does. `source` says how it is known."""

    value: float
    source: str


def waves_of(kernel: KernelReport) -> Waves | None:
    """Waves per SM: recorded, else blocks ÷ (SMs x blocks that fit on one), else what NVIDIA's rule says of it."""
    recorded = kernel.first(names.WAVES)
    blocks, sms, fit = kernel.blocks, kernel.sm_count, blocks_per_sm(kernel)
    if blocks and sms and fit and (recorded is None or abs(recorded - blocks / (sms * fit)) < 0.01):
        # Some versions print two digits only.
        return Waves(blocks / (sms * fit), "blocks ÷ (SMs × blocks that fit on one SM)")
    if recorded is not None:
        return Waves(recorded, names.WAVES[0])
    for rule in kernel.rules:
        if match := _SAID.search(rule.message):
            return Waves(float(match[1]), f"told by NVIDIA's rule {rule.identifier}")
    return None


def blocks_per_sm(kernel: KernelReport) -> int | None:
    """Blocks that fit on one SM at once: the smallest of the limits."""
    known = _limits(kernel)
    return min(known.values()) if known else None


def limiters(kernel: KernelReport) -> tuple[str, ...]:
    """What stops another block on an SM: every limit that is the smallest."""
    known = _limits(kernel)
    smallest = min(known.values(), default=None)
    return tuple(name for name, limit in known.items() if limit == smallest)


def _limits(kernel: KernelReport) -> dict[str, int]:
    found = {label: kernel.metrics.get(metric) for label, metric in names.LIMITS.items()}
    return {label: round(limit) for label, limit in found.items() if limit}
