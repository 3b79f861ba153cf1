"""A symptom: something that is wrong (or worth knowing), with the numbers that prove it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from gputop_llm.model.advice import Advice as Advice


class Severity(IntEnum):
    """How bad. A note is nothing wrong: it tells what the limit is."""

    NOTE = 1
    WARNING = 2
    CRITICAL = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """One number that was looked at.

    `value` is None where it is unknown, then `missing` says why. `unit` is one of "%", "s", "/s", "B",
    "B/s", "tok/s", "W", "MHz", "°C", "" (a count). `text` replaces the number where it is no number, or
    has bounds ("0.3–0.5 s"). `window_s` is None for a figure of the moment. `threshold` is the limit that
    the rule compared with, `threshold_origin` where that limit came from ("default", "SLO --slo-ttft", "baseline", a
    config file).
    """

    name: str
    value: float | None
    unit: str
    source: str
    window_s: float | None = None
    text: str | None = None
    threshold: float | None = None
    threshold_origin: str | None = None
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause, and what in the present data speaks for and against it."""

    text: str
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """What has the symptom: `key` is stable ("gpu:1", "engine:<target key>", "…/rank:1"), `label` is for people."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Symptom:
    """One symptom at one tick.

    What the rule says: everything up to `chart`. What the state and the grouping add: the rest.
    `confidence` is "high", "medium" or "low", from how many independent signals agree (`agreeing` of `signals`).
    `next_capture` is the capture that would prove or refute it: "nsys", "kineto", "native", "ncu", "py-spy", or None.
    `chart` is the history series that shows it, `chart_threshold` the line to draw in it.
    `root` is the key of the symptom that explains this one; None for a root.
    `since_s` is the wall time from which on its condition held, `trend` where its chart goes: "rising", "steady" or
    "falling", None when that can't be told.
    `held_back` says why it is not raised although its condition holds ("warming up").
    """

    id: str
    subject: Subject
    severity: Severity
    headline: str
    evidence: tuple[Evidence, ...]
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]
    refuted_by: str
    next_capture: str | None = None
    agreeing: int = 1
    signals: int = 1
    chart: str | None = None
    chart_threshold: float | None = None
    since_s: float | None = None
    trend: str | None = None
    root: str | None = None
    held_back: str | None = None

    @property
    def key(self) -> str:
        """Names this symptom of this subject for as long as it lasts."""
        return f"{self.id}@{self.subject.key}"

    @property
    def confidence(self) -> str:
        """How sure: "high" with three agreeing signals or all of at least two, "medium" with two, else "low"."""
        if self.agreeing >= 3 or (self.agreeing >= 2 and self.agreeing == self.signals):
            return "high"
        return "medium" if self.agreeing >= 2 else "low"


@dataclass(frozen=True, slots=True)
class CantTell:
    """A rule that can't judge a subject, and what it would need."""

    id: str
    subject: Subject
    needs: str


def alike(unknown: Iterable[CantTell]) -> list[tuple[tuple[str, ...], tuple[Subject, ...]]]:
    """(rules, subjects): each of these rules can't judge any of these subjects."""
    of_rule: dict[str, list[Subject]] = {}
    for one in unknown:
        of_rule.setdefault(one.id, []).append(one.subject)
    of_subjects: dict[tuple[Subject, ...], list[str]] = {}
    for rule, subjects in of_rule.items():
        of_subjects.setdefault(tuple(dict.fromkeys(subjects)), []).append(rule)
    return [(tuple(rules), subjects) for subjects, rules in of_subjects.items()]


@dataclass(frozen=True, slots=True)
class Held:
    """A time during which a symptom was raised. `until_s` is None while it still is; wall times in seconds."""

    id: str
    subject: Subject
    severity: Severity
    headline: str
    since_s: float
    until_s: float | None = None

    @property
    def key(self) -> str:
        """The key of the symptom."""
        return f"{self.id}@{self.subject.key}"


@dataclass(frozen=True, slots=True)
class SymptomReport:
    """All that the rules say at one tick.

    `active` is in the order to show: each root (worst first) followed by what it explains.
    `pending` are conditions that hold, but not yet for as long as it takes to be raised.
    `log` has when each symptom was raised within the last hour, oldest first.
    `judged` counts the answers that were not "can't tell".
    """

    active: tuple[Symptom, ...] = ()
    held_back: tuple[Symptom, ...] = ()
    cant_tell: tuple[CantTell, ...] = ()
    overridden: tuple[str, ...] = ()
    pending: tuple[Symptom, ...] = ()
    log: tuple[Held, ...] = ()
    judged: int = 0
