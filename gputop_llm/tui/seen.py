"""What symptoms looked like at their worst: that evidence outlives them by an hour."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model import Frame
from gputop_llm.model.symptom import Held, Symptom

KEPT_S = 3600.0
MOST = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A symptom at one frame. `held` are the times at which it was raised within the last hour, oldest first.

    `symptom` is None when only those times are known; of one that cleared it is what was seen at its worst: the last
    readings before it cleared prove little. `state` is "raised", "held back", "pending" or "cleared".
    """

    key: str
    symptom: Symptom | None
    state: str
    held: tuple[Held, ...] = ()
    cleared_s: float | None = None


class Seen:
    """Takes each frame as it comes, shown or not."""

    def __init__(self) -> None:
        # As it is now, and at its worst.
        self._raised: dict[str, tuple[Symptom, Symptom]] = {}
        self._cleared: dict[str, tuple[Symptom, float]] = {}

    def take(self, frame: Frame) -> None:
        """Remembers what is raised in the frame, and notices what no longer is."""
        report = frame.symptoms
        if report is None:
            return
        now = {}
        for symptom in report.active:
            _, worst = self._raised.get(symptom.key, (symptom, symptom))
            if (symptom.severity, symptom.agreeing) >= (worst.severity, worst.agreeing):
                worst = symptom
            now[symptom.key] = (symptom, worst)
        for key, (_, gone) in self._raised.items():
            if key not in now:
                self._cleared.pop(key, None)
                self._cleared[key] = (gone, frame.at_s)
        for key in now:
            self._cleared.pop(key, None)
        self._raised = now
        for key in [key for key, (_, at_s) in self._cleared.items() if frame.at_s - at_s > KEPT_S]:
            del self._cleared[key]
        while len(self._cleared) > MOST:
            del self._cleared[next(iter(self._cleared))]

    def find(self, key: str, frame: Frame) -> Found | None:
        """What is known of a symptom at that frame; None when it is neither there nor remembered."""
        report = frame.symptoms
        held = tuple(h for h in report.log if h.key == key) if report else ()
        if report is not None:
            for state, symptoms in (
                ("raised", report.active),
                ("held back", report.held_back),
                ("pending", report.pending),
            ):
                for symptom in symptoms:
                    if symptom.key == key:
                        return Found(key, symptom, state, held)
        ended_s = held[-1].until_s if held else None
        if key in self._cleared:
            worst, at_s = self._cleared[key]
            return Found(key, worst, "cleared", held, at_s if ended_s is None else ended_s)
        if key in self._raised and report is None:
            # This frame was not judged: what the last one said may still hold.
            return Found(key, self._raised[key][0], "raised", held)
        return (
            Found(key, self._raised[key][1] if key in self._raised else None, "cleared", held, ended_s)
            if held
            else None
        )
