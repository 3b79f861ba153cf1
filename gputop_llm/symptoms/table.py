"""Every threshold of every rule, with the reason for it: the one table to read, argue with, and override.

A value is vendor-documented, measured (the reason says where), or a rule of thumb.
"""

from __future__ import annotations

from gputop_llm.symptoms.limits import MEASURED, RULE_OF_THUMB, Hold, Threshold
from gputop_llm.symptoms.table_engine import ENGINE

THRESHOLDS: tuple[Threshold, ...] = (
    *ENGINE,
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
    Threshold("comm-bound.util_pct", 90.0, 85.0, RULE_OF_THUMB, "a GPU that waits in a collective reads busy"),
    Threshold("comm-bound.sm_active_pct", 50.0, 60.0, RULE_OF_THUMB, "collectives spin on a few SMs, the others rest"),
    Threshold(
        "comm-bound.link_pct",
        10.0,
        5.0,
        RULE_OF_THUMB,
        "of the link's capacity: decode's messages are short, most of the time goes into their latency",
    ),
    Threshold(
        "comm-bound.spread_pct", 30.0, 20.0, RULE_OF_THUMB, "ranks that work in step differ by a few points at most"
    ),
    Threshold("comm-bound.running", 0.0, 0.0, RULE_OF_THUMB, "idle ranks wait for nothing"),
    Threshold("comm-bound.clock_pct", 5.0, 5.0, RULE_OF_THUMB, "names a cause only: a rank that is clocked lower"),
    Threshold(
        "copy-bound.link_pct", 30.0, 20.0, RULE_OF_THUMB, "a server that keeps all in GPU memory moves next to nothing"
    ),
    Threshold("copy-bound.generation_tokens_per_s", 0.0, 0.0, RULE_OF_THUMB, "loading a model fills the link, rightly"),
    Threshold(
        "memory-spike.jump_pct",
        5.0,
        3.0,
        RULE_OF_THUMB,
        "of the total within 10 s; a server that preallocates moves less",
    ),
    Threshold("memory-spike.full_pct", 97.0, 96.0, RULE_OF_THUMB, "the next allocation of a few GiB fails"),
    Threshold(
        "memory-spike.growth_pct",
        0.5,
        0.25,
        RULE_OF_THUMB,
        "of the total within two minutes: less isn't growing, however full it is",
    ),
    Threshold(
        "memory-spike.settle_s",
        120.0,
        120.0,
        RULE_OF_THUMB,
        "an engine takes its memory while it starts; as warming-up",
    ),
    Threshold("noisy-neighbour.sm_pct", 5.0, 3.0, RULE_OF_THUMB, "a display or a monitor stays under it"),
    Threshold(
        "noisy-neighbour.growth_pct",
        1.0,
        0.5,
        RULE_OF_THUMB,
        "of the total within two minutes: more than a CUDA context",
    ),
    # -- host ------------------------------------------------------------------------------------
    Threshold(
        "host-bound.thread_pct",
        90.0,
        80.0,
        MEASURED,
        "H200, vLLM 0.24: 97 % of a core while the GPU waited half the time",
    ),
    Threshold(
        "host-bound.sm_active_pct",
        60.0,
        70.0,
        RULE_OF_THUMB,
        "a thread that spins while the GPU works is no bottleneck",
    ),
    Threshold(
        "host-bound.spinning_util_pct",
        90.0,
        95.0,
        RULE_OF_THUMB,
        "where workers are processes of their own: they fill a core while they wait for a GPU that is busy",
    ),
    Threshold("host-bound.running", 0.0, 0.0, RULE_OF_THUMB, "an idle engine may spin, and slows nobody"),
    Threshold(
        "host-bound.process_pct",
        130.0,
        130.0,
        RULE_OF_THUMB,
        "names a cause only: a process with more than this has threads that run side by side, so no GIL stops them",
    ),
    Threshold(
        "cpu-throttled.throttled_pct",
        5.0,
        1.0,
        RULE_OF_THUMB,
        "of the quota's periods of 100 ms: one in twenty stops the engine every two seconds",
    ),
    Threshold(
        "cpu-throttled.steal_pct", 5.0, 2.0, RULE_OF_THUMB, "of all cores' time, taken by other virtual machines"
    ),
    Threshold(
        "cpu-throttled.run_wait_pct",
        20.0,
        10.0,
        RULE_OF_THUMB,
        "of the time the main thread could run and had no CPU: a fifth of each step at worst",
    ),
    # -- GPU health: power, heat, link, faults ---------------------------------------------------
    Threshold("power-capped.share_pct", 30.0, 15.0, RULE_OF_THUMB, "of the window; a burst now and then costs little"),
    Threshold("power-capped.clock_below_pct", 5.0, 3.0, RULE_OF_THUMB, "below the maximum; two or three clock steps"),
    Threshold(
        "power-capped.near_limit_pct", 90.0, 90.0, RULE_OF_THUMB, "names a cause only: the power drawn is the limit's"
    ),
    Threshold(
        "power-capped.below_tdp_pct", 5.0, 5.0, RULE_OF_THUMB, "names a cause only: the limit was set under the board's"
    ),
    Threshold(
        "thermal-throttled.share_pct", 30.0, 15.0, RULE_OF_THUMB, "of the window; a burst now and then costs little"
    ),
    Threshold(
        "thermal-throttled.clock_below_pct", 5.0, 3.0, RULE_OF_THUMB, "below the maximum; two or three clock steps"
    ),
    Threshold(
        "thermal-throttled.near_slowdown_c", 5.0, 5.0, RULE_OF_THUMB, "names a cause only: so close under the threshold"
    ),
    Threshold(
        "thermal-throttled.hotter_c", 10.0, 10.0, RULE_OF_THUMB, "names a cause only: than the coolest GPU of the node"
    ),
    Threshold(
        "hw-slowdown.share_pct", 30.0, 15.0, RULE_OF_THUMB, "of the window; it may show for a moment at clock changes"
    ),
    Threshold(
        "hw-slowdown.clock_below_pct", 5.0, 3.0, RULE_OF_THUMB, "below the maximum; NVML: it halves the clocks, or more"
    ),
    Threshold(
        "link-degraded.util_pct", 20.0, 20.0, RULE_OF_THUMB, "an idle GPU lowers its link's generation by design"
    ),
    Threshold(
        "link-degraded.replays",
        4.0,
        0.0,
        RULE_OF_THUMB,
        "in two minutes; a single replay is repaired and costs nothing",
    ),
    Threshold("link-degraded.nvlink_errors", 0.0, 0.0, RULE_OF_THUMB, "in two minutes; a sound NVLink has none"),
    Threshold(
        "gpu-fault.xid_s", 600.0, 600.0, RULE_OF_THUMB, "an Xid that only ends an application explains what follows it"
    ),
    Threshold(
        "gpu-fault.hard_xid_s",
        3600.0,
        3600.0,
        RULE_OF_THUMB,
        "an Xid that asks for a reset or a reboot; whether that was done can't be seen",
    ),
)

HOLDS: tuple[Hold, ...] = (
    # These three measure their own time.
    Hold("stalled", 0.0, 5.0),
    Hold("warming-up", 0.0, 0.0),
    Hold("metrics-stale", 0.0, 5.0),
    # A jump is over within seconds; it is to be seen all the same.
    Hold("memory-spike", 2.0, 30.0),
    # Failures come one by one: a pause between two of them is no end.
    Hold("errors-rising", 10.0, 30.0),
    # Links are judged under load only: they are not to come and go with it.
    Hold("link-degraded", 10.0, 60.0),
    # An event is a fact; three readings in a row are enough for a GPU that doesn't answer.
    Hold("gpu-fault", 2.0, 10.0),
)
