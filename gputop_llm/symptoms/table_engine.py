"""The thresholds of the rules that read the engine's own page: a part of the table (table.py)."""

from __future__ import annotations

from gputop_llm.symptoms.limits import MEASURED, RULE_OF_THUMB, Threshold

ENGINE: tuple[Threshold, ...] = (
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
    Threshold(
        "prefix-cache-cold.kv_pct", 90.0, 90.0, RULE_OF_THUMB, "running requests leave less than a tenth for prefixes"
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
        "hundreds of steps; later by what an engine's gauges lag (SGLang: 30 s), unless a GPU spins",
    ),
    Threshold(
        "stalled.working_s",
        60.0,
        2.0,
        RULE_OF_THUMB,
        "instead, while GPUs compute or the KV cache fills (a very long prompt), or while requests wait and none runs",
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
    Threshold("errors-rising.failures", 2.0, 1.0, RULE_OF_THUMB, "in the window: one failure is no rate"),
    Threshold("errors-rising.critical_pct", 10.0, 10.0, RULE_OF_THUMB, "so much, and it is critical"),
    Threshold(
        "rank-imbalance.ratio", 2.0, 1.6, RULE_OF_THUMB, "the most loaded rank has twice what the least loaded has"
    ),
    Threshold(
        "rank-imbalance.requests",
        4.0,
        2.5,
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
)
