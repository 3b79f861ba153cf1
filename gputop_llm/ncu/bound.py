"""What limits a launch, from NVIDIA's Speed of Light and nothing else; only what that makes relevant is looked at next.

Thresholds are NVIDIA's own: at 60 % of a unit's peak and above it counts as used well, from 80 % on as near its roof.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from gputop_llm.ncu import names
from gputop_llm.ncu.launch import waves_of
from gputop_llm.ncu.model import KernelReport

USED_PCT = 60.0
NEAR_ROOF_PCT = 80.0
#: A kernel that is over sooner, and used next to nothing, is all beginning and end.
SHORT_NS = 2_000.0
_SHORT_PCT = 10.0
#: A level that is this near to the whole memory figure is what it stands for.
_EXPLAINS = 0.9
_BUSIEST_PIPE = re.compile(
    r"(?:^|\. )(\S[\w/ ()]{1,40}?) is the (?:highest|most)[- ]utilized pipeline \((\d+(?:\.\d+)?)%\)"
)


class Kind(Enum):
    """The class of a launch; the value is what the reader sees."""

    DRAM = "DRAM-bound"
    L2 = "L2-bound"
    L1 = "L1-bound"
    MEMORY = "memory-bound"
    COMPUTE = "compute-bound"
    LATENCY = "latency-bound"
    SHORT = "too short to judge"
    UNKNOWN = "can't tell"


MEMORY_KINDS = frozenset((Kind.DRAM, Kind.L2, Kind.L1, Kind.MEMORY))


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe of the SM and how much of its peak was used."""

    name: str
    pct: float


def kind_of(kernel: KernelReport) -> Kind:
    """The class: memory where that side is used well and above the SMs, compute where they are, else latency."""
    sm, memory = kernel.sm_pct, kernel.memory_pct
    if sm is None or memory is None:
        return Kind.UNKNOWN
    if _is_short(kernel, max(sm, memory)):
        return Kind.SHORT
    if memory >= USED_PCT and memory >= sm:
        return _level(kernel, memory)
    return Kind.COMPUTE if sm >= USED_PCT else Kind.LATENCY


def _is_short(kernel: KernelReport, used_pct: float) -> bool:
    duration, waves = kernel.duration_ns, waves_of(kernel)
    if duration is None or duration >= SHORT_NS or used_pct >= _SHORT_PCT:
        return False
    return waves is None or waves.value < 1


def _level(kernel: KernelReport, memory_pct: float) -> Kind:
    dram, l2 = kernel.dram_pct, kernel.l2_pct
    if dram is not None and dram >= _EXPLAINS * memory_pct:
        return Kind.DRAM
    if l2 is not None and l2 >= _EXPLAINS * memory_pct:
        return Kind.L2
    return Kind.MEMORY if dram is None or l2 is None else Kind.L1


def busiest_pipe(kernel: KernelReport) -> Pipe | None:
    """The pipe with the highest share of its peak; by NVIDIA's rule where no pipe was recorded."""
    found = []
    for pipe, starts in names.PIPES.items():
        known = kernel.first(start + end for end in names.PIPE_ENDS for start in starts)
        if known is not None:
            found.append(Pipe(pipe, known))
    if found:
        return max(found, key=lambda pipe: pipe.pct)
    for rule in kernel.rules:
        if match := _BUSIEST_PIPE.search(rule.message):
            return Pipe(match[1], float(match[2]))
    return None
