"""One engine of the simulated node: its data-parallel ranks at work, its page, and what it cost lately."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from itertools import dropwhile
from typing import NamedTuple

from gputop_llm.demo.batching import Engine
from gputop_llm.demo.gpu_physics import SLICE_S
from gputop_llm.demo.host_physics import Busy, Drive, engine_busy, engine_loads
from gputop_llm.demo.identity import EngineIdentity
from gputop_llm.demo.metrics_text import MetricsPage, cache_config
from gputop_llm.demo.requests import Arrival
from gputop_llm.demo.roofline import H200, StepCost, Work
from gputop_llm.demo.script import Scenario, arrivals
from gputop_llm.model import ProcessLoad

_WINDOW_SLICES = 4


class _Mark(NamedTuple):
    """A rank's sums at one moment of the grid."""

    at_s: float
    work: Work
    finished: int


class _Rank:
    """One engine core with the marks that tell what it did lately."""

    def __init__(self, engine: Engine, start_s: float) -> None:
        self.engine = engine
        self._marks: deque[_Mark] = deque([self._mark(start_s)], maxlen=_WINDOW_SLICES + 1)

    def advance(self, to_s: float) -> Work:
        self.engine.advance(to_s)
        self._marks.append(self._mark(to_s))
        return self._marks[-1].work.since(self._marks[-2].work)

    def drive(self) -> Drive:
        first, last = self._marks[0], self._marks[-1]
        return Drive(last.work.since(first.work), last.finished - first.finished, max(SLICE_S, last.at_s - first.at_s))

    def _mark(self, at_s: float) -> _Mark:
        return _Mark(at_s, self.engine.work(), self.engine.seen.finished)


class Served:
    """One engine under a scenario's traffic.

    Args:
        script: what it is sent, and what happens to it.
        seed: decides everything random.
        identity: who it is.
        start_s: scenario time at which it begins to serve, idle; what is sent before is lost.
    """

    def __init__(self, script: Scenario, seed: int, identity: EngineIdentity, start_s: float) -> None:
        self.identity = identity
        self.start_s = start_s
        model, limits = identity.model, script.limits
        self._ranks = [
            _Rank(
                Engine(
                    limits,
                    StepCost(model, H200, identity.tp),
                    _from(start_s, arrivals(script, seed, identity.number, identity.load, rank)),
                    start_s,
                    script.pace_at,
                    random.Random(f"{seed}/{identity.number}/{rank}/drafts"),
                ),
                start_s,
            )
            for rank in range(identity.ranks)
        ]
        config = cache_config(limits, model.kv_bytes_per_token)
        self._page = MetricsPage(model.name, config, identity.started_s, identity.ranks, limits.spec_tokens)
        self._api_cpu_s = 25.0
        self._dice = random.Random(f"{seed}/{identity.number}/host")
        self._jitter = 1.0
        self._busy: tuple[Busy, ...] | None = None

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine of each data-parallel rank."""
        return tuple(rank.engine for rank in self._ranks)

    def advance(self, to_s: float) -> dict[int, Work]:
        """Runs to the next moment of the grid; returns what was done in the slice on each GPU."""
        works = [rank.advance(to_s) for rank in self._ranks]
        self._jitter = self._dice.gauss(1.0, 0.02)
        self._busy = None
        self._api_cpu_s += SLICE_S / 100 * self.busy()[0].cpu_pct
        return {gpu: works[self._rank_on(gpu)] for gpu in self.identity.gpus}

    def catch_up(self, to_s: float) -> None:
        """Runs the engines alone, to a moment between two of the grid."""
        for engine in self.engines:
            engine.advance(to_s)

    def drive(self, gpu: int) -> Drive:
        """What was done in the last second on a GPU of it."""
        return self._ranks[self._rank_on(gpu)].drive()

    def busy(self) -> tuple[Busy, ...]:
        """What its processes did in the last second, the API server first."""
        if self._busy is None:
            self._busy = engine_busy(self.identity, [rank.drive() for rank in self._ranks], self._jitter)
        return self._busy

    def loads(self) -> tuple[ProcessLoad, ...]:
        """CPU of its processes in the last second."""
        return engine_loads(self.identity, self.busy())

    def metrics(self) -> str:
        """Its `/metrics` page."""
        return self._page.render([engine.seen for engine in self.engines], self._api_cpu_s)

    def _rank_on(self, gpu: int) -> int:
        return self.identity.gpus.index(gpu) // self.identity.tp


def _from(start_s: float, sent: Iterator[Arrival]) -> Iterator[Arrival]:
    return dropwhile(lambda arrival: arrival.at_s < start_s, sent)
