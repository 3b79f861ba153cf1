"""The table of scenarios, and how a user finds one."""

from __future__ import annotations

from gputop_llm.demo.requests import Limits
from gputop_llm.demo.script import Scenario
from gputop_llm.demo.traffic import Lengths, Stream
from gputop_llm.errors import UsageError

CHAT = Stream(
    name="chat",
    rates=((0.0, 4.4),),
    prompt=Lengths(median=1700, sigma=0.45, low=1000, high=8000),
    output=Lengths(median=900, sigma=0.35, low=40, high=2500),
)

_MAIN = (
    Scenario(
        name="healthy",
        about="steady chat traffic: nothing waits, KV cache near 40 %, TTFT p50 40-100 ms, ITL p50 10-25 ms",
        streams=(CHAT,),
    ),
    Scenario(
        name="overload",
        about="from 0:20 to 2:00 more arrives than can be served: the queue grows, the KV cache fills, "
        "requests are preempted, TTFT explodes; then it eases, and all repeats every 4 minutes",
        streams=(CHAT.at((0.0, 4.4), (20.0, 13.0), (34.0, 6.6), (120.0, 1.0), (190.0, 4.4), every_s=240.0),),
    ),
    Scenario(
        name="long-prompts",
        about="every 4 s a very long prompt is prefilled in big chunks beside the decodes: "
        "ITL p99 is many times its p50 while next to nothing waits",
        streams=(
            CHAT.at((0.0, 2.6)),
            Stream(
                name="burst",
                rates=((0.0, 0.25),),
                prompt=Lengths(median=26_000, sigma=0.15, low=20_000, high=36_000),
                output=Lengths(median=200, sigma=0.3, low=50, high=600),
                even=True,
                prefix_share=0.0,
            ),
        ),
        limits=Limits(max_num_batched_tokens=8192),
    ),
)
SCENARIOS = {script.name: script for script in _MAIN}


def scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UsageError: there is none.
    """
    found = SCENARIOS.get(name)
    if found is None:
        main = ", ".join(script.name for script in _MAIN)
        raise UsageError(f"no demo scenario {name!r}", "", f"choose one of: {main}, … (all: gputop-llm demo --list)")
    return found


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
