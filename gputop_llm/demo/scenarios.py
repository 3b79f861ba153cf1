"""The table of scenarios, and how a user finds one."""

from __future__ import annotations

import textwrap

from gputop_llm.demo import scenarios_engine, scenarios_gpu, scenarios_health, scenarios_traffic
from gputop_llm.demo.choice import check_scenario
from gputop_llm.demo.requests import Limits
from gputop_llm.demo.script import Scenario
from gputop_llm.demo.traffic import CHAT, Lengths, Stream

MAIN = (
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
SYMPTOMS = (
    *scenarios_traffic.SCENARIOS,
    *scenarios_engine.SCENARIOS,
    *scenarios_gpu.SCENARIOS,
    *scenarios_health.SCENARIOS,
)
SCENARIOS = {script.name: script for script in (*MAIN, *SYMPTOMS)}


def scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UsageError: there is none.
    """
    check_scenario(name)
    return SCENARIOS[name]


def listing() -> str:
    """All scenarios for people: a line each, the near misses by name alone."""
    raising = [script for script in SYMPTOMS if script.raises]
    near = [script.name.removesuffix("-near-miss") for script in SYMPTOMS if script.nearly]
    width = max(len(script.name) for script in (*MAIN, *raising))
    lines = [f"{script.name:{width}}  {script.about}" for script in MAIN]
    lines += ["", "Each of these raises one symptom, from 0:20 on for less than a minute, and again every 2:30:"]
    lines += [f"{script.name:{width}}  {script.about}" for script in raising]
    lines += ["", "NAME-near-miss does nearly the same, and must raise nothing. NAME is one of:"]
    lines += textwrap.wrap(", ".join(near), 100, break_on_hyphens=False)
    return "\n".join(lines) + "\n"
