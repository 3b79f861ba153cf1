"""Every threshold of every rule, with the reason for it: the one table to read, argue with, and override.

A value is vendor-documented, measured (the reason says where), or a rule of thumb.
"""

from __future__ import annotations

from gputop_llm.symptoms.limits import MEASURED, RULE_OF_THUMB, Hold, Threshold

THRESHOLDS: tuple[Threshold, ...] = (
    # -- latency ---------------------------------------------------------------------------------
    # -- queue, KV cache, prefix cache, speculative decoding -------------------------------------
    Threshold(
        "kv-pressure.kv_pct", 95.0, 90.0, RULE_OF_THUMB, "admission stops when no block is free; 5 % is a few requests"
    ),
    Threshold("kv-pressure.preemptions_per_s", 0.0, 0.0, RULE_OF_THUMB, "each preemption throws computed KV away"),
    # -- life of the engine: stalled, warming up, stale metrics, errors --------------------------
    # -- GPU at work: busy, starved, bandwidth, compute, communication, copies, memory -----------
    Threshold(
        "gpu-busy-not-working.util_pct", 90.0, 85.0, RULE_OF_THUMB, "what readers of utilisation take for a busy GPU"
    ),
    Threshold(
        "gpu-busy-not-working.sm_active_pct",
        50.0,
        60.0,
        MEASURED,
        "H200, vLLM 0.24, 1 B model: 21–30 % while utilisation read near 100 %; half is well above that",
    ),
    Threshold(
        "gpu-busy-not-working.power_pct",
        45.0,
        55.0,
        MEASURED,
        "H200, vLLM 0.24, 1 B model: 35–40 % of the limit with a fifth to a third of the SMs at work",
    ),
    Threshold(
        "gpu-busy-not-working.mem_util_pct",
        20.0,
        30.0,
        RULE_OF_THUMB,
        "decode that works hard reads memory all the time",
    ),
    Threshold(
        "gpu-busy-not-working.occupancy_pct",
        25.0,
        25.0,
        RULE_OF_THUMB,
        "names a cause only: fewer warps than a quarter leave nothing to hide latency with",
    ),
    Threshold(
        "gpu-busy-not-working.batch",
        64.0,
        64.0,
        RULE_OF_THUMB,
        "names a cause only: so few sequences make thin matrices on a large GPU",
    ),
    Threshold("gpu-starved.running", 0.0, 0.0, RULE_OF_THUMB, "a GPU without requests has nothing to starve of"),
    Threshold(
        "gpu-starved.util_pct",
        60.0,
        70.0,
        MEASURED,
        "H200, vLLM 0.24, 1 B model, engine core at 97 % of a core: 40–55 %; a GPU that is fed has a kernel running",
    ),
    Threshold(
        "gpu-starved.iowait_pct", 5.0, 5.0, RULE_OF_THUMB, "names a cause only: one core in twenty waits for a disk"
    ),
    Threshold(
        "bandwidth-bound.dram_bw_pct", 75.0, 65.0, RULE_OF_THUMB, "of the peak; well-made kernels reach 80–90 % of it"
    ),
    Threshold(
        "bandwidth-bound.tensor_pct",
        30.0,
        40.0,
        RULE_OF_THUMB,
        "with more, arithmetic has as good a claim to be the limit",
    ),
    Threshold(
        "compute-bound.tensor_pct", 60.0, 50.0, RULE_OF_THUMB, "of the peak; well-made large GEMMs reach 70–80 % of it"
    ),
    # -- host ------------------------------------------------------------------------------------
    # -- GPU health: power, heat, link, faults ---------------------------------------------------
)

HOLDS: tuple[Hold, ...] = ()
