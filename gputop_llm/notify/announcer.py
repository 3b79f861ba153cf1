"""Which changes of the symptoms are worth telling, and when: one event per root, and never a flood.

A root speaks for what it explains. A symptom that flaps, or many at once, make few events that always
end with the truth: a change that comes too soon waits, and is dropped when it is undone meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from gputop_llm.model.symptom import Severity, Symptom, SymptomReport

EACH_S = 60.0
"""Least seconds between two events of one symptom."""
MOST = 10
"""Most events within a minute."""
_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Event:
    """A symptom was raised, or cleared.

    `explains` are the keys of what it explains. `dropped` counts changes that no event told of, since the event before.
    """

    raised: bool
    symptom: Symptom
    at_s: float
    explains: tuple[str, ...] = ()
    dropped: int = 0


@dataclass
class _Told:
    """What the world knows of one symptom, and what is the case."""

    symptom: Symptom
    told: bool = False
    told_at: float = -math.inf
    on: bool = False
    changes: int = 0


class Announcer:
    """Makes events of reports. Notes are no events. Not for several threads."""

    def __init__(self) -> None:
        self._known: dict[str, _Told] = {}
        self._sent: deque[float] = deque()
        self._dropped = 0

    def update(self, report: SymptomReport, mono_s: float, at_s: float) -> list[Event]:
        """The events that are due: what was raised, worst first, and what was cleared."""
        for symptom in report.active:
            known = self._known.get(symptom.key)
            # What has been told stays told, also when something else turns out to explain it.
            if known is None and (symptom.root is not None or symptom.severity < Severity.WARNING):
                continue
            if known is None:
                known = self._known[symptom.key] = _Told(symptom)
            known.symptom = symptom
        active = {s.key for s in report.active}
        for key, known in self._known.items():
            if known.on != (key in active):
                known.on = not known.on
                known.changes += 1
            if known.on == known.told:
                self._dropped += known.changes
                known.changes = 0
        events = self._due(report, mono_s, at_s)
        for key in [k for k, v in self._known.items() if not (v.on or v.told) and mono_s - v.told_at > EACH_S]:
            del self._known[key]
        return events

    def _due(self, report: SymptomReport, mono_s: float, at_s: float) -> list[Event]:
        while self._sent and mono_s - self._sent[0] >= _MINUTE_S:
            self._sent.popleft()
        due = [v for v in self._known.values() if v.on != v.told and mono_s - v.told_at >= EACH_S]
        due.sort(key=lambda v: (not v.on, -v.symptom.severity))
        events = []
        for known in due[: MOST - len(self._sent)]:
            explains = tuple(s.key for s in report.active if known.on and s.root == known.symptom.key)
            events.append(Event(known.on, known.symptom, at_s, explains, self._dropped + known.changes - 1))
            known.told, known.told_at, known.changes = known.on, mono_s, 0
            self._dropped = 0
            self._sent.append(mono_s)
        return events
