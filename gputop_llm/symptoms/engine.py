"""Runs all rules over the newest frames, once per tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gputop_llm.model import EngineLive, Frame
from gputop_llm.model.symptom import CantTell, Subject, Symptom, SymptomReport
from gputop_llm.symptoms.checks import Check
from gputop_llm.symptoms.compose import Composer
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.log import SymptomLog
from gputop_llm.symptoms.log_evidence import with_log
from gputop_llm.symptoms.names import engine_key
from gputop_llm.symptoms.state import FORGET_S, SymptomState
from gputop_llm.symptoms.timeline import Timeline
from gputop_llm.symptoms.trend import POINTS, trend
from gputop_llm.symptoms.view import Baseline, EngineView, NodeView, no_baseline

log = logging.getLogger(__name__)

# While an engine warms up only these are raised: they are as true then as later.
NOT_HELD_BACK = frozenset(
    {"warming-up", "gpu-fault", "noisy-neighbour", "hw-slowdown", "thermal-throttled", "metrics-stale"}
)

# An engine that is no target for so long is gone for good: then `stalled` says so, if it was serving.
GONE_S = 10.0

# (name of a history series, number of newest slots) → values, oldest first.
Series = Callable[[str, int], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the bottleneck map: pure, all subjects at once."""

    id: str
    title: str
    run: Callable[[NodeView, Limits], Iterable[Check]]


class Learner(Protocol):
    """A baseline that learns from the frames that the rules find healthy."""

    def __call__(self, engine: EngineView, live: EngineLive, metric: str) -> float | None:
        """The healthy past of a figure, None while it isn't known."""
        ...

    def follow(self, view: NodeView) -> None:
        """Takes notice of the newest load; before the rules."""
        ...

    def learn(self, view: NodeView, suspected: Mapping[str, Collection[str]]) -> None:
        """Learns from the newest frame; after the rules.

        Args:
            suspected: engine subject → rules whose condition holds there, raised or not yet.
        """
        ...


class SymptomEngine:
    """Keeps the state between ticks; otherwise a function of the frames.

    Args:
        rules: the rows.
        limits: the thresholds in force.
        baseline: the recent healthy past of an engine's figures.
        learner: a baseline that is also to learn; then it is the baseline.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        limits: Limits,
        baseline: Baseline = no_baseline,
        learner: Learner | None = None,
    ) -> None:
        self._rules = rules
        self._limits = limits
        self._learner = learner
        self._baseline = baseline if learner is None else learner
        self._state = SymptomState(limits)
        self._composer = Composer()
        self._log = SymptomLog()
        self._timeline = Timeline()
        self._seen: dict[str, float] = {}
        self._trends: dict[str, tuple[Symptom, Symptom]] = {}
        self._failed: set[str] = set()

    def update(self, frames: Sequence[Frame], series: Series | None = None) -> SymptomReport:
        """The report for the newest frame (the last one).

        Args:
            frames: the newest two minutes, oldest first; at least one.
            series: the history, for trends.
        """
        view = NodeView(frames, self._baseline, self._timeline.move(frames))
        if self._learner is not None:
            self._learner.follow(view)
        checks, failures = self._checks(view)
        scopes = view.scopes
        raised, cant_tell = self._state.update(checks, view.now.mono_s, view.now.at_s, scopes, self._gone(view))
        warming = {engine for s in raised if s.id == "warming-up" for engine in scopes.get(s.subject.key, ())}
        certain = {(check.rule, check.subject.key) for check in checks if check.certain}
        active, held_back = [], []
        for symptom in raised:
            engines = scopes.get(symptom.subject.key, frozenset())
            as_true = symptom.id in NOT_HELD_BACK or (symptom.id, symptom.subject.key) in certain
            if not as_true and engines and engines <= warming:
                held_back.append(replace(symptom, held_back="the engine is warming up"))
            else:
                active.append(symptom)
        active = self._with_trends(active, series)
        active = [with_log(symptom, view.now, scopes.get(symptom.subject.key, ())) for symptom in active]
        if self._learner is not None:
            self._learner.learn(view, self._suspected(view))
        return SymptomReport(
            active=self._composer.compose(active, scopes),
            held_back=tuple(held_back),
            cant_tell=(*cant_tell, *failures),
            overridden=self._limits.overridden,
            pending=self._state.pending(),
            log=self._log.update(active, view.now.at_s),
            judged=len(checks) - len(cant_tell),
        )

    def _gone(self, view: NodeView) -> set[str]:
        """Engines, scraped or not, that have been no target for `GONE_S`."""
        now = view.now.mono_s
        if view.now.targets.value is None:
            return set()
        self._seen.update((engine_key(target), now) for target in view.now.targets.value.targets)
        self._seen.update((engine.subject.key, now) for engine in view.engines)
        gone = {key for key, at in self._seen.items() if now - at >= GONE_S}
        self._seen = {key: at for key, at in self._seen.items() if now - at < FORGET_S + GONE_S}
        return gone

    def _checks(self, view: NodeView) -> tuple[list[Check], list[CantTell]]:
        """What the rules say. A rule with a bug says nothing, and stops no other."""
        checks: list[Check] = []
        failures: list[CantTell] = []
        for rule in self._rules:
            try:
                checks += rule.run(view, self._limits)
            except Exception as failure:  # the others must go on
                if rule.id not in self._failed:
                    self._failed.add(rule.id)
                    log.exception("the rule %s failed", rule.id)
                why = f"the rule failed: {type(failure).__name__} (the log has the details)"
                failures.append(CantTell(rule.id, Subject("node", "the node"), why))
        return checks, failures

    def _suspected(self, view: NodeView) -> dict[str, set[str]]:
        """Engine → rules whose condition holds there; what holds for the node holds for each engine."""
        found: dict[str, set[str]] = {engine.subject.key: set() for engine in view.engines}
        for rule, subject in self._state.suspected():
            for engine in view.scopes.get(subject, found):
                if engine in found:
                    found[engine].add(rule)
        return found

    def _with_trends(self, symptoms: Sequence[Symptom], series: Series | None) -> list[Symptom]:
        """The symptoms with where their figures go; worked out when their evidence is."""
        if series is None:
            return list(symptoms)
        known, self._trends = self._trends, {}
        for symptom in symptoms:
            before = known.get(symptom.key)
            if before is not None and before[0] is symptom:
                self._trends[symptom.key] = before
            elif symptom.chart is None:
                self._trends[symptom.key] = (symptom, symptom)
            else:
                found = trend(series(symptom.chart, POINTS))
                self._trends[symptom.key] = (symptom, replace(symptom, trend=found))
        return [judged for _, judged in self._trends.values()]
