"""What goes wrong in a scenario beside its traffic, and when: a table of what changes while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from gputop_llm.demo.pace import Pace
from gputop_llm.demo.wire import NodeReading

LOADING_S = 7.0
"""How long an engine that starts anew is there before it serves."""


class Moment(NamedTuple):
    """A moment of a cause: whether it holds, how long it has held in all so far, and when it (last) began.

    `began_wall_s` is wall time.
    """

    holds: bool
    held_s: float
    began_wall_s: float


Edit = Callable[[NodeReading, Moment], NodeReading]
"""A reading as the cause makes it."""


class Page(Enum):
    """How an engine's metrics page answers; one that stands says for ever what it said first, gone is no page."""

    ANSWERS = "answers"
    FAILS = "fails"
    HANGS = "hangs"
    SLOW = "slow"
    STANDS = "stands"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Cause:
    """Holds from second `from_s` to `to_s`, and again every `every_s` seconds.

    Args:
        pace: the pace of the engines' steps while it holds.
        page: how their pages answer while it holds.
        readings: change what GPUs, host and discovery say while it holds.
        counters: the same, from its beginning on: what was counted stays counted.
        restart: the engines begin anew when it begins, and are loading for the first `LOADING_S` of it.
        restart_after: the same when it ends.
    """

    from_s: float
    to_s: float
    every_s: float
    pace: Pace | None = None
    page: Page = Page.ANSWERS
    readings: tuple[Edit, ...] = ()
    counters: tuple[Edit, ...] = ()
    restart: bool = False
    restart_after: bool = False

    def holds(self, at_s: float) -> bool:
        """Whether it holds at scenario time `at_s`."""
        return at_s >= 0 and self.from_s <= at_s % self.every_s < self.to_s

    def changes_after(self, at_s: float) -> float:
        """When it next begins or ends."""
        begun = max(0.0, at_s - at_s % self.every_s)
        into = at_s - begun
        return begun + next(edge for edge in (self.from_s, self.to_s, self.every_s + self.from_s) if into < edge)

    def edited(self, reading: NodeReading, at_s: float, started_s: float) -> NodeReading:
        """The reading of scenario time `at_s`; `started_s` is the wall time of scenario time 0."""
        moment = self._moment(at_s, started_s)
        if moment.held_s > 0 or moment.holds:
            for edit in self.counters:
                reading = edit(reading, moment)
        if moment.holds:
            for edit in self.readings:
                reading = edit(reading, moment)
        return reading

    def _moment(self, at_s: float, started_s: float) -> Moment:
        rounds, into = divmod(max(0.0, at_s), self.every_s)
        lasts_s = self.to_s - self.from_s
        held_s = rounds * lasts_s + min(max(0.0, into - self.from_s), lasts_s)
        last_round = rounds if into >= self.from_s else rounds - 1
        return Moment(self.holds(at_s), held_s, started_s + last_round * self.every_s + self.from_s)
