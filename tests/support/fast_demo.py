"""A demo scenario run in-process and fast-forwarded, through all that a real run passes but sockets and threads.

The simulator's pages go through the parser, the mapping and the window of a real engine, its readings through
the wire; frames are made of them once a second, and the rules see the newest two minutes of frames.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gputop_llm.demo.node import SimulatedNode
from gputop_llm.demo.scenarios import scenario
from gputop_llm.demo.script import Scenario
from gputop_llm.demo.wire import Answer, encode
from gputop_llm.model import EngineFrame, EngineReading, EngineWindow, Frame, Part, Target, TargetList
from gputop_llm.sampling.poller import MAX_DUTY, MAX_FAILING_PERIOD_S
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.session import DISCOVERY_PERIOD_S
from gputop_llm.sources import engines
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.sources.promtext import TextParser
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.symptoms.engine import SymptomEngine
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS
from tests.support.clock import ManualClock

T = TypeVar("T")

LIMITS = Limits(THRESHOLDS, HOLDS)
TICK_S = 1.0
FRAMES_S = 120.0
_PORT = 8000
_QUICK_S = 0.004


class Scraper:
    """Asks one engine's page as the poller would: at a period that slow and failing answers stretch."""

    def __init__(self, node: SimulatedNode, clock: ManualClock) -> None:
        self._node = node
        self._clock = clock
        self._parser = TextParser(engines.NEEDED)
        self._tracker = EngineTracker()
        self._part: Part[EngineReading] = Part(period_s=TICK_S)
        self._window: EngineWindow | None = None
        self._began_s: float | None = None
        self._ends_s = 0.0
        self._due_s = clock.mono()
        self._answer = node.page(0)
        self._failures = 0

    def frame(self, target: Target) -> EngineFrame:
        """What is known of the engine now."""
        now_s = self._clock.mono()
        if self._began_s is None and now_s >= self._due_s:
            self._began_s, self._answer = now_s, self._node.page(0)
            self._ends_s = now_s + min(max(_QUICK_S, self._answer.delay_s), MetricsSource.deadline_s)
        if self._began_s is not None and now_s + TICK_S / 2 >= self._ends_s:
            self._end(self._began_s)
        return EngineFrame(target.key, target.urls[0], self._part.aged(now_s), self._window)

    def _end(self, began_s: float) -> None:
        took_s = self._ends_s - began_s
        error = self._error()
        self._failures = 0 if error is None else self._failures + 1
        period_s = max(TICK_S, took_s / MAX_DUTY)
        if self._failures > 2:
            period_s = max(period_s, min(TICK_S * 2.0 ** (self._failures - 2), MAX_FAILING_PERIOD_S))
        part = self._part
        value, at_s, at_mono_s = part.value, part.at_s, part.at_mono_s
        if error is None:
            value = engines.read(self._parser.parse(self._answer.text), self._answer.text, "0.32.0")
            at_s, at_mono_s = self._clock.wall(), self._clock.mono()
            self._window = self._tracker.push(value, at_mono_s)
        self._part = Part(value, at_s, at_mono_s, 0.0, took_s, error, period_s, part.polls + 1)
        self._began_s, self._due_s = None, began_s + period_s

    def _error(self) -> str | None:
        if not self._answer.status:
            return "cannot read the engine: the server closed the connection without an answer"
        if self._answer.delay_s >= MetricsSource.deadline_s:
            return f"cannot read the engine: no answer within {MetricsSource.deadline_s:g} s"
        if self._answer.status != 200:
            return f"cannot read the engine: it answers with status {self._answer.status}"
        return None


def frames(script: Scenario, seed: int, until_s: float) -> Iterator[tuple[float, Frame]]:
    """(scenario time, frame) of each second from 0 to `until_s`."""
    clock = ManualClock()
    node = SimulatedNode(script, seed, 1, 1, clock.wall())
    scrapers: dict[str, Scraper] = {}
    found: Part[TargetList] = Part()
    discovered_s = -DISCOVERY_PERIOD_S
    at_s, seq = 0.0, 0
    while at_s <= until_s:
        node.advance(at_s)
        answer = Answer(encode(node.reading([_PORT])))
        if at_s - discovered_s >= DISCOVERY_PERIOD_S:
            discovered_s, found = at_s, _fresh(answer.targets(), clock)
        targets = found.value.targets if found.value else ()
        watched = [t for t in targets if t.urls]
        scrapers = {t.key: scrapers.get(t.key) or Scraper(node, clock) for t in watched}
        seq += 1
        yield (
            at_s,
            Frame(
                seq=seq,
                at_s=clock.wall(),
                mono_s=clock.mono(),
                period_s=TICK_S,
                gpus=_fresh(answer.gpus(), clock),
                host=_fresh(answer.host(), clock),
                targets=found.aged(clock.mono()),
                engines=tuple(scrapers[t.key].frame(t) for t in watched),
                focus=watched[0].key if watched else None,
                simulated=node.label,
            ),
        )
        clock.step(TICK_S)
        at_s += TICK_S


def _fresh(value: T, clock: ManualClock) -> Part[T]:
    return Part(value, clock.wall(), clock.mono(), 0.0, _QUICK_S, None, TICK_S, 1)


@dataclass
class Episode:
    """One symptom from its raise to its clearing (None: not cleared by the end), in scenario seconds.

    `root_at` has the times at which it was a root; `under` counts the others by the root that it was shown under.
    """

    id: str
    subject: str
    raised_s: float
    cleared_s: float | None = None
    headline: str = ""
    root_at: list[float] = field(default_factory=list)
    under: dict[str, int] = field(default_factory=dict)

    @property
    def root(self) -> str | None:
        """Id of the root that it was mostly shown under; None if it never was."""
        return max(self.under, key=lambda root: self.under[root], default=None)


def run(name: str, seed: int = 7, until_s: float | None = None) -> list[Episode]:
    """Every symptom of a scenario, by the time of its raise."""
    script = scenario(name)
    return episodes(frames(script, seed, length_s(script) if until_s is None else until_s))


def length_s(script: Scenario) -> float:
    """Until when a scenario is run: long enough for everything to clear, and well before all begins again."""
    _, clear_s = LIMITS.hold(script.raises or script.nearly or "")
    return script.when[1] + script.lingers_s + clear_s + 15.0 if script.when[1] else 130.0


def episodes(ticks: Iterable[tuple[float, Frame]], overrides: Mapping[str, float] | None = None) -> list[Episode]:
    """What the rules say to these frames, with some thresholds moved."""
    rules = SymptomEngine(RULES, Limits(THRESHOLDS, HOLDS, overrides))
    kept: deque[Frame] = deque()
    found: list[Episode] = []
    active: dict[str, Episode] = {}
    for at_s, frame in ticks:
        kept.append(frame)
        while frame.mono_s - kept[0].mono_s > FRAMES_S:
            kept.popleft()
        shown = {s.key: s for s in rules.update(tuple(kept)).active}
        for key in [key for key in active if key not in shown]:
            active.pop(key).cleared_s = at_s
        for key, symptom in shown.items():
            if key not in active:
                active[key] = Episode(symptom.id, symptom.subject.label, at_s, headline=symptom.headline)
                found.append(active[key])
            if symptom.root is None:
                active[key].root_at.append(at_s)
            else:
                root = shown[symptom.root].id
                active[key].under[root] = active[key].under.get(root, 0) + 1
    return found


def ids(found: Sequence[Episode]) -> set[str]:
    """The symptoms of a run."""
    return {episode.id for episode in found}
