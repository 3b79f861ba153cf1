"""When each symptom held: the source of the timeline strip."""

from __future__ import annotations

from collections.abc import Iterable

from gputop_llm.model.symptom import Held, Symptom

KEPT_S = 3600.0
MOST = 100


class SymptomLog:
    """Times of raised symptoms, in bounded memory: those of the last hour, at most `MOST` of them.

    Not for several threads.
    """

    def __init__(self) -> None:
        self._open: dict[str, Held] = {}
        self._ended: list[Held] = []

    def update(self, raised: Iterable[Symptom], at_s: float) -> tuple[Held, ...]:
        """Takes what is raised at wall time `at_s`; returns all kept times, oldest first."""
        now: dict[str, Held] = {}
        for symptom in raised:
            before = self._open.pop(symptom.key, None)
            if before is not None and (before.severity, before.headline) == (symptom.severity, symptom.headline):
                now[symptom.key] = before
                continue
            now[symptom.key] = Held(
                id=symptom.id,
                subject=symptom.subject,
                # The worst that it was.
                severity=max(symptom.severity, before.severity) if before else symptom.severity,
                # Of the time that it was worst, the newest.
                headline=before.headline if before and before.severity > symptom.severity else symptom.headline,
                since_s=before.since_s if before else min(at_s, at_s if symptom.since_s is None else symptom.since_s),
            )
        for gone in self._open.values():
            self._ended.append(
                Held(gone.id, gone.subject, gone.severity, gone.headline, gone.since_s, max(at_s, gone.since_s))
            )
        self._open = now
        self._ended = [h for h in self._ended[-MOST:] if h.until_s is not None and at_s - h.until_s <= KEPT_S]
        return tuple(sorted((*self._ended, *now.values()), key=lambda h: h.since_s)[-MOST:])
