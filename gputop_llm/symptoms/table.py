"""Every threshold of every rule, with the reason for it: the one table to read, argue with, and override.

A value is vendor-documented, measured (the reason says where), or a rule of thumb.
"""

from __future__ import annotations

from gputop_llm.symptoms.limits import MEASURED, RULE_OF_THUMB, Hold, Threshold

THRESHOLDS: tuple[Threshold, ...] = (
    # -- latency ---------------------------------------------------------------------------------
    Threshold("ttft-high.p95_s", 1.0, 0.8, RULE_OF_THUMB, "a second is what people notice; --slo-ttft sets your own"),
    Threshold("ttft-high.baseline_x", 2.0, 1.5, RULE_OF_THUMB, "twice the usual is no noise; off once an SLO is given"),
    Threshold(
        "ttft-high.mean_x", 1.1, 1.05, RULE_OF_THUMB, "the mean must follow: a p95 inside a wide bucket may jump alone"
    ),
    Threshold("ttft-high.observations", 3.0, 3.0, RULE_OF_THUMB, "the p95 of one or two requests is their maximum"),
    Threshold("ttft-high.critical_x", 3.0, 3.0, RULE_OF_THUMB, "so many times its limit, and it is critical"),
    Threshold(
        "ttft-high.queue_share_pct", 50.0, 50.0, RULE_OF_THUMB, "names a cause only: most of the wait is queueing"
    ),
    Threshold(
        "ttft-high.prompt_tokens", 4000.0, 4000.0, RULE_OF_THUMB, "names a cause only: a prefill of several chunks"
    ),
    Threshold(
        "ttft-high.clock_pct",
        95.0,
        95.0,
        RULE_OF_THUMB,
        "names a cause only: under this share of its maximum, the SM clock is low",
    ),
    Threshold(
        "tpot-high.p95_s", 0.1, 0.08, RULE_OF_THUMB, "ten tokens a second read fluently; --slo-tpot sets your own"
    ),
    Threshold("tpot-high.baseline_x", 1.5, 1.3, RULE_OF_THUMB, "decode is steady; off once an SLO is given"),
    Threshold(
        "tpot-high.mean_x", 1.1, 1.05, RULE_OF_THUMB, "the mean must follow: a p95 inside a wide bucket may jump alone"
    ),
    Threshold("tpot-high.observations", 20.0, 20.0, RULE_OF_THUMB, "one token in twenty makes the p95"),
    Threshold("tpot-high.critical_x", 3.0, 3.0, RULE_OF_THUMB, "so many times its limit, and it is critical"),
    Threshold(
        "tpot-high.spread_x",
        3.0,
        3.0,
        RULE_OF_THUMB,
        "names a cause only: p99 ÷ p50 of steps that a prefill makes longer",
    ),
    Threshold("tpot-high.dram_pct", 70.0, 70.0, RULE_OF_THUMB, "names a cause only: the batch is near the bandwidth"),
    Threshold(
        "tpot-high.batch_x", 1.3, 1.3, RULE_OF_THUMB, "names a cause only: the batch grew in the last two minutes"
    ),
    Threshold(
        "tpot-high.clock_pct",
        95.0,
        95.0,
        RULE_OF_THUMB,
        "names a cause only: under this share of its maximum, the SM clock is low",
    ),
    # -- queue, KV cache, prefix cache, speculative decoding -------------------------------------
    Threshold(
        "kv-pressure.kv_pct", 95.0, 90.0, RULE_OF_THUMB, "admission stops when no block is free; 5 % is a few requests"
    ),
    Threshold("kv-pressure.preemptions_per_s", 0.0, 0.0, RULE_OF_THUMB, "each preemption throws computed KV away"),
    Threshold(
        "kv-pressure.context_tokens",
        8000.0,
        8000.0,
        RULE_OF_THUMB,
        "names a cause only: prompt and output of a request",
    ),
    Threshold(
        "queue-growing.rise",
        2.0,
        0.0,
        RULE_OF_THUMB,
        "requests by which the queue grew in 20 s, less twice the error of the fitted line",
    ),
    Threshold(
        "queue-growing.excess_per_s",
        0.05,
        0.0,
        RULE_OF_THUMB,
        "arrivals less finishes over 10 s: a burst is over by then",
    ),
    Threshold("scheduler-capped.waiting", 0.0, 0.0, RULE_OF_THUMB, "at every scrape of the window somebody waited"),
    Threshold(
        "scheduler-capped.kv_pct", 80.0, 85.0, RULE_OF_THUMB, "with a fifth of the KV pool free, blocks aren't it"
    ),
    Threshold(
        "scheduler-capped.below_plateau_pct",
        5.0,
        10.0,
        RULE_OF_THUMB,
        "the mean of running below its maximum: at a cap it only dips as requests finish",
    ),
    Threshold(
        "scheduler-capped.sm_active_pct",
        80.0,
        80.0,
        RULE_OF_THUMB,
        "names a cause only: a GPU that has no more to give",
    ),
    Threshold(
        "prefix-cache-cold.hit_pct", 10.0, 15.0, RULE_OF_THUMB, "of the prompts' tokens: hardly anything is shared"
    ),
    Threshold("prefix-cache-cold.of_usual_pct", 50.0, 70.0, RULE_OF_THUMB, "of the usual hit rate: it fell by half"),
    Threshold(
        "prefix-cache-cold.usual_pct", 20.0, 20.0, RULE_OF_THUMB, "a hit rate that was never higher can't fall by much"
    ),
    Threshold("prefix-cache-cold.prompts", 10.0, 10.0, RULE_OF_THUMB, "in the window: fewer prompts share by chance"),
    Threshold(
        "spec-decode-weak.acceptance_pct", 50.0, 55.0, RULE_OF_THUMB, "half of the drafted tokens are computed in vain"
    ),
    Threshold(
        "spec-decode-weak.mean_length",
        1.5,
        1.6,
        RULE_OF_THUMB,
        "tokens per verified draft; 1 is what a step gives anyway",
    ),
    Threshold("spec-decode-weak.drafts", 50.0, 50.0, RULE_OF_THUMB, "in the window: fewer drafts accept by chance"),
    # -- life of the engine: stalled, warming up, stale metrics, errors --------------------------
    Threshold(
        "stalled.no_progress_s",
        10.0,
        2.0,
        RULE_OF_THUMB,
        "hundreds of steps of a running engine",
    ),
    Threshold(
        "stalled.working_s",
        60.0,
        2.0,
        RULE_OF_THUMB,
        "instead, while GPUs compute or the KV cache fills: a very long prompt is prefilled without a token",
    ),
    Threshold("stalled.tensor_pct", 5.0, 5.0, RULE_OF_THUMB, "tensor pipe: a kernel that spins multiplies no matrices"),
    Threshold(
        "stalled.power_pct",
        60.0,
        60.0,
        RULE_OF_THUMB,
        "without GPM: an H100 that spun in a collective was seen at 31 %, and at 74 % while it worked",
    ),
    Threshold("stalled.spin_util_pct", 90.0, 90.0, RULE_OF_THUMB, "a kernel that never ends reads 100 %"),
    Threshold("stalled.idle_util_pct", 10.0, 10.0, RULE_OF_THUMB, "no kernel runs"),
    Threshold("stalled.idle_cpu_pct", 10.0, 10.0, RULE_OF_THUMB, "of a core: the process waits for something"),
    Threshold("stalled.busy_cpu_pct", 90.0, 90.0, RULE_OF_THUMB, "of a core: a thread that never waits"),
    Threshold("errors-rising.share_pct", 1.0, 0.5, RULE_OF_THUMB, "one request in a hundred"),
    Threshold("errors-rising.failures", 2.0, 2.0, RULE_OF_THUMB, "in the window: one failure is no rate"),
    Threshold("errors-rising.critical_pct", 10.0, 10.0, RULE_OF_THUMB, "so much, and it is critical"),
    Threshold(
        "rank-imbalance.ratio", 2.0, 1.6, RULE_OF_THUMB, "the most loaded rank has twice what the least loaded has"
    ),
    Threshold(
        "rank-imbalance.requests",
        4.0,
        4.0,
        RULE_OF_THUMB,
        "and so many more, as a mean over 10 s: small numbers differ anyway",
    ),
    Threshold("underloaded.running", 8.0, 12.0, RULE_OF_THUMB, "a batch that leaves most of a GPU unused"),
    Threshold(
        "underloaded.of_cap_pct",
        25.0,
        35.0,
        RULE_OF_THUMB,
        "and of the engine's own limit, where its command line tells it",
    ),
    Threshold(
        "warming-up.age_s", 120.0, 120.0, RULE_OF_THUMB, "compiling, graph capture and cold caches are over by then"
    ),
    Threshold(
        "warming-up.no_token_s",
        600.0,
        600.0,
        RULE_OF_THUMB,
        "the longest that an engine without a first token counts as starting",
    ),
    Threshold("metrics-stale.age_s", 10.0, 10.0, RULE_OF_THUMB, "ten scrapes were missed"),
    Threshold(
        "metrics-stale.took_s",
        1.0,
        0.5,
        MEASURED,
        "real vLLM 0.32: 4–10 ms, and 0.82–0.97 s when its API server had no time left",
    ),
    Threshold(
        "metrics-stale.frozen_s", 30.0, 30.0, RULE_OF_THUMB, "nothing runs and nothing counts, as the engine tells it"
    ),
    Threshold("metrics-stale.frozen_util_pct", 90.0, 80.0, RULE_OF_THUMB, "while its GPU is never without a kernel"),
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
    # -- GPU health: power, heat, link, faults ---------------------------------------------------
)

HOLDS: tuple[Hold, ...] = (
    # These three measure their own time.
    Hold("stalled", 0.0, 5.0),
    Hold("warming-up", 0.0, 0.0),
    Hold("metrics-stale", 0.0, 5.0),
)
