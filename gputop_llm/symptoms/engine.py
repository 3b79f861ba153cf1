"""Runs all rules over the newest frames, once per tick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from gputop_llm.model import Frame
from gputop_llm.model.symptom import SymptomReport
from gputop_llm.symptoms.checks import Check
from gputop_llm.symptoms.compose import compose
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.state import SymptomState
from gputop_llm.symptoms.view import Baseline, NodeView, no_baseline

# While an engine warms up only these are raised: they are as true then as later.
NOT_HELD_BACK = frozenset(
    {"warming-up", "gpu-fault", "noisy-neighbour", "hw-slowdown", "thermal-throttled", "metrics-stale", "memory-spike"}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the bottleneck map: pure, all subjects at once."""

    id: str
    title: str
    run: Callable[[NodeView, Limits], Iterable[Check]]


class SymptomEngine:
    """Keeps the state between ticks; otherwise a function of the frames.

    Args:
        rules: the rows.
        limits: the thresholds in force.
        baseline: the recent healthy past of an engine's figures.
    """

    def __init__(self, rules: Sequence[Rule], limits: Limits, baseline: Baseline = no_baseline) -> None:
        self._rules = rules
        self._limits = limits
        self._baseline = baseline
        self._state = SymptomState(limits)

    def update(self, frames: Sequence[Frame]) -> SymptomReport:
        """The report for the newest frame (the last one).

        Args:
            frames: the newest two minutes, oldest first; at least one.
        """
        view = NodeView(frames, self._baseline)
        checks = [check for rule in self._rules for check in rule.run(view, self._limits)]
        raised, cant_tell = self._state.update(checks, view.now.mono_s, view.now.at_s)
        scopes = view.scopes
        warming = {engine for s in raised if s.id == "warming-up" for engine in scopes.get(s.subject.key, ())}
        active, held_back = [], []
        for symptom in raised:
            engines = scopes.get(symptom.subject.key, frozenset())
            if symptom.id not in NOT_HELD_BACK and engines and engines <= warming:
                held_back.append(replace(symptom, held_back="the engine is warming up"))
            else:
                active.append(symptom)
        return SymptomReport(compose(active, scopes), tuple(held_back), tuple(cant_tell), self._limits.overridden)
