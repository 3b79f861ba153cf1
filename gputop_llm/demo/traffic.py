"""What clients send: streams of requests, each with its own times and lengths; all chance comes from the seed."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gputop_llm.demo.requests import Arrival

WARM_UP_S = 60.0
"""Traffic begins this long before scenario time 0, at the rate of time 0: the first scrape finds histograms filled."""

_PREFIXES_PER_STREAM = 100


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


def always(tokens: int) -> Lengths:
    """The same count for every request."""
    return Lengths(tokens, 0.0, tokens, tokens)


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests of one kind.

    `rates` are (from second, requests per second); they repeat every `period_s` seconds. Requests come at
    random (Poisson), or at even intervals if `even`. A share of them begins with one of `prefixes` shared
    beginnings of `prefix_blocks` KV blocks. They end by themselves (`stop_share`) or at their max_tokens, or
    all for the reason `ends`. `rank` is the data-parallel rank that they are routed to, None for every rank.
    """

    name: str
    rates: tuple[tuple[float, float], ...]
    prompt: Lengths
    output: Lengths
    period_s: float = 3600.0
    even: bool = False
    prefixes: int = 8
    prefix_blocks: int = 56
    prefix_share: float = 0.65
    stop_share: float = 0.8
    ends: str | None = None
    rank: int | None = None

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

    def at(self, *rates: tuple[float, float], every_s: float = 3600.0) -> Stream:
        """The same requests at other rates."""
        return replace(self, rates=rates, period_s=every_s)

    def arrivals(self, dice: random.Random, block_size: int, position: int, load: float) -> Iterator[Arrival]:
        """Yields its requests for ever, by time.

        Args:
            position: its place among the streams of an engine, which tells its prefixes from theirs.
            load: scales how often they come.
        """
        at_s = -WARM_UP_S
        while True:
            rate, until_s = self.rate_at(at_s)
            # Where the rate changes the wait is drawn anew, which Poisson allows.
            next_s = at_s + self._wait_s(rate * load, dice)
            if next_s >= until_s:
                at_s = until_s
                continue
            at_s = next_s
            prefix = None
            if self.prefix_share and dice.random() < self.prefix_share:
                prefix = position * _PREFIXES_PER_STREAM + dice.randrange(self.prefixes)
            yield self._request(at_s, dice, prefix, block_size)

    def _wait_s(self, rate: float, dice: random.Random) -> float:
        if rate <= 0:
            return math.inf
        return 1 / rate if self.even else dice.expovariate(rate)

    def _request(self, at_s: float, dice: random.Random, prefix: int | None, block_size: int) -> Arrival:
        prompt, output = self.prompt.draw(dice), self.output.draw(dice)
        stops = dice.random() < self.stop_share
        return Arrival(
            at_s=at_s,
            prompt_tokens=prompt,
            output_tokens=output,
            max_tokens=max(4096, output) if stops else output,
            prefix=prefix,
            prefix_tokens=0 if prefix is None else self.prefix_blocks * block_size,
            finish_reason=self.ends or ("stop" if stops else "length"),
        )


CHAT = Stream(
    name="chat",
    rates=((0.0, 4.4),),
    prompt=Lengths(median=1700, sigma=0.45, low=1000, high=8000),
    output=Lengths(median=900, sigma=0.35, low=40, high=2500),
)
