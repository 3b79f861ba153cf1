"""All rules, in the order of the bottleneck map."""

from __future__ import annotations

from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.rules import (
    caches,
    clocks,
    comm,
    copies,
    cpu,
    errors,
    fault,
    gpu_limits,
    gpu_work,
    host,
    kv,
    latency,
    life,
    link,
    memory,
    neighbours,
    queue,
    ranks,
    stale,
    stalled,
    tpot,
)

RULES: tuple[Rule, ...] = (
    *latency.RULES,
    *tpot.RULES,
    *queue.RULES,
    *kv.RULES,
    *caches.RULES,
    *gpu_work.RULES,
    *host.RULES,
    *cpu.RULES,
    *gpu_limits.RULES,
    *comm.RULES,
    *copies.RULES,
    *memory.RULES,
    *neighbours.RULES,
    *clocks.RULES,
    *link.RULES,
    *fault.RULES,
    *stalled.RULES,
    *ranks.RULES,
    *life.RULES,
    *errors.RULES,
    *stale.RULES,
)
