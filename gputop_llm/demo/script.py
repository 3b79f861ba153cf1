"""A scenario: who sends what to an engine, what else happens, and what a monitor should make of it."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from gputop_llm.demo.cause import Cause
from gputop_llm.demo.pace import USUAL, Pace
from gputop_llm.demo.requests import Arrival, Limits
from gputop_llm.demo.traffic import Stream


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens to one engine. Scenario time 0 is when the demo starts.

    `about` is the line that the user reads; it promises what the tests check.

    Args:
        pace: the engine's pace while no cause changes it.
        cause: what happens beside the traffic.
        gpus: how many GPUs each engine needs at least.
        ranks: data-parallel ranks.
        up_s: for how long the engines have been up, idle, when the demo starts.
        raises: id of the symptom that this is made to raise.
        nearly: id of the symptom that this only just does not raise.
        when: from when to when the cause of that symptom is there, in seconds.
        also: ids of symptoms that physics makes of it, beside those that follow from `raises`.
        shows_s: how long it takes until the figures show the cause.
        lingers_s: how long they show it when it has ended.
    """

    name: str
    about: str
    streams: tuple[Stream, ...]
    limits: Limits = Limits()  # noqa: RUF009  # frozen
    pace: Pace = USUAL
    cause: Cause | None = None
    gpus: int = 1
    ranks: int = 1
    up_s: float = 3600.0
    raises: str | None = None
    nearly: str | None = None
    when: tuple[float, float] = (0.0, 0.0)
    also: tuple[str, ...] = ()
    shows_s: float = 12.0
    lingers_s: float = 12.0

    def pace_at(self, at_s: float) -> tuple[Pace, float]:
        """The pace of a step that begins at `at_s`, and when that pace ends."""
        cause = self.cause
        if cause is None or cause.pace is None:
            return self.pace, math.inf
        return cause.pace if cause.holds(at_s) else self.pace, cause.changes_after(at_s)


def arrivals(script: Scenario, seed: int, engine: int, load: float = 1.0, rank: int = 0) -> Iterator[Arrival]:
    """Yields the requests for one engine, or one data-parallel rank of it, for ever, by time.

    Args:
        load: scales how often they come.
    """
    # A text seeds the same on every platform and Python version.
    whose = f"{seed}/{engine}/{rank}" if script.ranks > 1 else f"{seed}/{engine}"
    streams = [
        stream.arrivals(random.Random(f"{whose}/{stream.name}"), script.limits.block_size, position, load)
        for position, stream in enumerate(script.streams)
        if stream.rank in (None, rank)
    ]
    return heapq.merge(*streams, key=_when)


def _when(arrival: Arrival) -> float:
    return arrival.at_s
