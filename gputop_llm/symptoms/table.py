"""Every threshold of every rule, with the reason for it: the one table to read, argue with, and override.

A value is vendor-documented, measured (the reason says where), or a rule of thumb.
"""

from __future__ import annotations

from gputop_llm.symptoms.limits import RULE_OF_THUMB, Hold, Threshold

THRESHOLDS: tuple[Threshold, ...] = (
    # -- latency ---------------------------------------------------------------------------------
    # -- queue, KV cache, prefix cache, speculative decoding -------------------------------------
    Threshold(
        "kv-pressure.kv_pct", 95.0, 90.0, RULE_OF_THUMB, "admission stops when no block is free; 5 % is a few requests"
    ),
    Threshold("kv-pressure.preemptions_per_s", 0.0, 0.0, RULE_OF_THUMB, "each preemption throws computed KV away"),
    # -- life of the engine: stalled, warming up, stale metrics, errors --------------------------
    # -- GPU at work: busy, starved, bandwidth, compute, communication, copies, memory -----------
    # -- host ------------------------------------------------------------------------------------
    # -- GPU health: power, heat, link, faults ---------------------------------------------------
)

HOLDS: tuple[Hold, ...] = ()
