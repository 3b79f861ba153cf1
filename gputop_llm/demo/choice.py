"""What a user may ask of the demo: the names of the scenarios, and how many GPUs an engine gets.

The names stand here once more, because the scenarios themselves are the simulator's: to load them would cost the
monitor 10 ms of its start.
"""

from __future__ import annotations

from gputop_llm.errors import UsageError

MAIN = ("healthy", "overload", "long-prompts")
# Each of these raises a symptom; and NAME-near-miss does nearly the same.
WITH_NEAR_MISS = (
    "ttft-high", "tpot-high", "queue-growing", "scheduler-capped", "kv-pressure", "prefix-cache-cold",
    "spec-decode-weak", "errors-rising", "rank-imbalance", "underloaded", "stalled", "warming-up",
    "metrics-stale", "gpu-busy-not-working", "gpu-starved", "host-bound", "cpu-throttled", "bandwidth-bound",
    "compute-bound", "comm-bound", "comm-bound-straggler", "copy-bound", "memory-spike", "noisy-neighbour",
    "power-capped", "thermal-throttled", "hw-slowdown", "link-degraded", "gpu-fault", "cpu-throttled-steal",
    "errors-rising-http",
)  # fmt: skip
# These have no near miss of their own.
RAISING_ONLY = (
    "stalled-deadlock", "stalled-frozen", "stalled-dead-worker", "stalled-front-end", "stalled-ended",
    "stalled-orphan", "metrics-stale-hangs", "metrics-stale-slow",
    "metrics-stale-stands", "noisy-neighbour-growing", "link-degraded-replays", "gpu-fault-xid",
)  # fmt: skip
NAMES = frozenset((*MAIN, *WITH_NEAR_MISS, *(f"{name}-near-miss" for name in WITH_NEAR_MISS), *RAISING_ONLY))


def check_scenario(name: str) -> None:
    """Nothing, if there is such a scenario.

    Raises:
        UsageError: there is none.
    """
    if name not in NAMES:
        raise UsageError(
            f"no demo scenario {name!r}", "", f"choose one of: {', '.join(MAIN)}, … (all: gputop-llm demo --list)"
        )


def gpus_per_engine(gpus: int, engines: int) -> int:
    """How many GPUs each engine gets; 0 without engines. GPUs that can't be shared out evenly stay idle.

    Raises:
        UsageError: no GPU, or fewer than engines.
    """
    if gpus < 1 or engines < 0 or engines > gpus:
        raise UsageError(
            f"no demo with {gpus} GPU(s) and {engines} engine(s)", "", "there must be a GPU, and one for each engine"
        )
    return gpus // engines if engines else 0
