"""The scripted scenarios: who sends what, when. One table; everything random comes from the seed.

Scenario time 0 is when the demo starts. Traffic begins `WARM_UP_S` earlier, at the rate of
time 0, so that the first scrape already finds histograms with something in them.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from gputop_llm.demo.requests import Arrival, Limits
from gputop_llm.errors import UsageError

WARM_UP_S = 60.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Token counts, log-normal around `median`, cut to `low`–`high`."""

    median: int
    sigma: float
    low: int
    high: int

    def draw(self, dice: random.Random) -> int:
        """One token count."""
        return min(self.high, max(self.low, round(dice.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class Burst:
    """`count` requests with prompts of their own, at once, every `every_s` seconds from `first_s` on."""

    first_s: float
    every_s: float
    count: int
    prompt: Lengths
    output: Lengths


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one engine is sent.

    `rates` are (from second, requests per second); they repeat every `period_s` seconds.
    `about` is the line that the user reads; it promises what the tests check.
    """

    name: str
    about: str
    rates: tuple[tuple[float, float], ...]
    period_s: float
    prompt: Lengths
    output: Lengths
    limits: Limits
    prefixes: int = 8
    prefix_blocks: int = 56
    prefix_share: float = 0.65
    stop_share: float = 0.8
    burst: Burst | None = None

    def rate_at(self, at_s: float) -> tuple[float, float]:
        """Requests per second at `at_s`, and when that rate ends."""
        if at_s < 0:
            return self.rates[0][1], 0.0
        begun = at_s - at_s % self.period_s
        into = at_s - begun
        ends = [start for start, _ in self.rates[1:]] + [self.period_s]
        for (_, rate), end in zip(self.rates, ends, strict=True):
            if into < end:
                return rate, begun + end
        raise AssertionError("unreachable: the last rate lasts to the end of the period")


_CHAT_PROMPT = Lengths(median=1700, sigma=0.45, low=1000, high=8000)
_CHAT_OUTPUT = Lengths(median=900, sigma=0.35, low=40, high=2500)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="healthy",
            about="steady chat traffic: nothing waits, KV cache near 40 %, TTFT p50 40-100 ms, ITL p50 10-25 ms",
            rates=((0.0, 4.4),),
            period_s=3600.0,
            prompt=_CHAT_PROMPT,
            output=_CHAT_OUTPUT,
            limits=Limits(),
        ),
        Scenario(
            name="overload",
            about="from 0:20 to 2:00 more arrives than can be served: the queue grows, the KV cache fills, "
            "requests are preempted, TTFT explodes; then it eases, and all repeats every 4 minutes",
            rates=((0.0, 4.4), (20.0, 13.0), (34.0, 6.6), (120.0, 1.0), (190.0, 4.4)),
            period_s=240.0,
            prompt=_CHAT_PROMPT,
            output=_CHAT_OUTPUT,
            limits=Limits(),
        ),
        Scenario(
            name="long-prompts",
            about="every 4 s a very long prompt is prefilled in big chunks beside the decodes: "
            "ITL p99 is many times its p50 while next to nothing waits",
            rates=((0.0, 2.6),),
            period_s=3600.0,
            prompt=_CHAT_PROMPT,
            output=_CHAT_OUTPUT,
            limits=Limits(max_num_batched_tokens=8192),
            burst=Burst(
                first_s=2.0,
                every_s=4.0,
                count=1,
                prompt=Lengths(median=26_000, sigma=0.15, low=20_000, high=36_000),
                output=Lengths(median=200, sigma=0.3, low=50, high=600),
            ),
        ),
    )
}


def scenario(name: str) -> Scenario:
    """The scenario of that name.

    Raises:
        UsageError: there is none; the sentence lists them.
    """
    found = SCENARIOS.get(name)
    if found is None:
        raise UsageError(f"no demo scenario {name!r}", "", f"choose one of: {', '.join(SCENARIOS)}")
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


def arrivals(script: Scenario, seed: int, engine: int, load: float = 1.0) -> Iterator[Arrival]:
    """Yields the requests for one engine, for ever, by time; `load` scales how often they come."""
    # A text seeds the same on every platform and Python version.
    chat = _chat(script, random.Random(f"{seed}/{engine}/chat"), load)
    if script.burst is None:
        return chat
    return heapq.merge(chat, _bursts(script, script.burst, random.Random(f"{seed}/{engine}/burst"), load), key=_when)


def _when(arrival: Arrival) -> float:
    return arrival.at_s


def _chat(script: Scenario, dice: random.Random, load: float) -> Iterator[Arrival]:
    """Poisson arrivals; a rate that changes is drawn anew from the change on, which Poisson allows."""
    at_s = -WARM_UP_S
    while True:
        rate, until_s = script.rate_at(at_s)
        next_s = at_s + dice.expovariate(rate * load)
        if next_s >= until_s:
            at_s = until_s
            continue
        at_s = next_s
        prefix = dice.randrange(script.prefixes) if dice.random() < script.prefix_share else None
        yield _request(script, at_s, script.prompt.draw(dice), script.output.draw(dice), dice, prefix)


def _bursts(script: Scenario, burst: Burst, dice: random.Random, load: float) -> Iterator[Arrival]:
    every_s = burst.every_s / load
    at_s = burst.first_s - every_s * math.floor((burst.first_s + WARM_UP_S) / every_s)
    while True:
        for _ in range(burst.count):
            yield _request(script, at_s, burst.prompt.draw(dice), burst.output.draw(dice), dice, None)
        at_s += every_s


def _request(
    script: Scenario, at_s: float, prompt: int, output: int, dice: random.Random, prefix: int | None
) -> Arrival:
    stops = dice.random() < script.stop_share
    return Arrival(
        at_s=at_s,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=max(4096, output) if stops else output,
        prefix=prefix,
        prefix_tokens=0 if prefix is None else script.prefix_blocks * script.limits.block_size,
        finish_reason="stop" if stops else "length",
    )
