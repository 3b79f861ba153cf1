"""Runs rules over frames, and looks things up in what they say. Tests have these from symptom_frames.py too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gputop_llm.model import Frame
from gputop_llm.model.symptom import CantTell, Symptom, SymptomReport
from gputop_llm.symptoms.checks import Check
from gputop_llm.symptoms.engine import Rule, SymptomEngine
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS
from gputop_llm.symptoms.view import Baseline, NodeView, no_baseline


def limits(overrides: Mapping[str, float] | None = None, origin: str = "config file") -> Limits:
    """The thresholds in force, some of them overridden."""
    return Limits(THRESHOLDS, HOLDS, overrides, origin)


def reports(
    rules: Iterable[Rule],
    frames: Sequence[Frame],
    in_force: Limits | None = None,
    baseline: Baseline | Mapping[str, float] = no_baseline,
) -> list[SymptomReport]:
    """One report per frame, each from the frames of two minutes, as in a session.

    Args:
        in_force: the thresholds, the table's by default.
        baseline: values by metric, the same for each engine.
    """
    ask: Baseline = baseline if callable(baseline) else lambda _engine, _live, metric: baseline.get(metric)
    engine = SymptomEngine(tuple(rules), in_force or limits(), ask)
    return [engine.update(frames[max(0, i - 119) : i + 1]) for i in range(len(frames))]


def raised_at(
    rule: str, rules: Iterable[Rule], frames: Sequence[Frame], subject: str | None = None, **more: Any
) -> float | None:
    """Seconds from the first frame until the symptom is raised (of any subject, unless one is given); None if never."""
    for frame, report in zip(frames, reports(rules, frames, **more), strict=True):
        if any(s.id == rule and subject in (None, s.subject.key) for s in report.active):
            return frame.mono_s - frames[0].mono_s
    return None


def times_raised(rule: str, rules: Iterable[Rule], frames: Sequence[Frame], **more: Any) -> int:
    """How often the symptom is raised: more than once is flapping."""
    held = [any(s.id == rule for s in report.active) for report in reports(rules, frames, **more)]
    return sum(now and not before for before, now in pairwise([False, *held]))


def symptom(rule: str, rules: Iterable[Rule], frames: Sequence[Frame], **more: Any) -> Symptom:
    """The only symptom of that rule after the last frame."""
    (found,) = [s for s in reports(rules, frames, **more)[-1].active if s.id == rule]
    return found


def cant_tell(rule: str, rules: Iterable[Rule], frames: Sequence[Frame], **more: Any) -> tuple[CantTell, ...]:
    """What that rule can't tell after the last frame."""
    return tuple(c for c in reports(rules, frames, **more)[-1].cant_tell if c.id == rule)


def checks(rule: Rule, frames: Sequence[Frame], in_force: Limits | None = None, **baseline: float) -> list[Check]:
    """What one rule says of the last frame alone, before any hold time."""
    view = NodeView(frames, lambda _engine, _live, metric: baseline.get(metric))
    return list(rule.run(view, in_force or limits()))


def number(found: Symptom, name: str) -> float | None:
    """The value of a piece of evidence, by its name (or a part of it that only one has)."""
    exact = [e for e in found.evidence if e.name == name]
    (one,) = exact or [e for e in found.evidence if name in e.name]
    return one.value


def cause(found: Symptom, text: str):
    """The only cause whose text has this in it."""
    (one,) = [c for c in found.causes if text in c.text]
    return one
