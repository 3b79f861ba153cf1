"""A capture that waits for a symptom: when it fires, how often, and when it gives up. Decides only; takes nothing.

A symptom fires once each time that it is raised: it must have cleared before it fires again.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from gputop_llm.errors import UsageError
from gputop_llm.model import Frame, Target
from gputop_llm.model.symptom import Symptom
from gputop_llm.units import size, uptime

#: After a capture that failed the symptom must still hold this long after; then it is tried again.
_AGAIN_AFTER_S = 30.0
_MOST_FAILURES = 3
_DAY_S = 86_400.0
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY_S}
_UNITS_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TIME = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT])(?:i?B)?", re.IGNORECASE)
_KNOWN = "captures=N, wait=12h, disk=2G"

State = Literal["waiting", "spent", "expired", "failed"]


@dataclass(frozen=True, slots=True)
class Budget:
    """What an armed capture may cost: so many captures, so long a wait, so many bytes of records in all (None: any)."""

    captures: int = 1
    wait_s: float = _DAY_S
    disk_bytes: int | None = None

    def words(self) -> str:
        """ "once, for at most 1d" """
        often = "once" if self.captures == 1 else f"{self.captures} times"
        disk = f", {size(self.disk_bytes)} of records" if self.disk_bytes is not None else ""
        return f"{often}, for at most {uptime(self.wait_s)}{disk}"


def budget_of(text: str) -> Budget:
    """ "captures=3,wait=12h,disk=2G"; what is left out keeps its default.

    Raises:
        UsageError: it can't be read.
    """
    found: dict[str, Any] = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if name == "captures" and value.isascii() and value.isdigit() and 1 <= int(value) <= 1000:
            found["captures"] = int(value)
        elif name == "wait" and (read := _TIME.fullmatch(value)) and float(read[1]) > 0:
            found["wait_s"] = float(read[1]) * _UNITS_S[read[2]]
        elif name == "disk" and (read := _SIZE.fullmatch(value)) and float(read[1]) > 0:
            found["disk_bytes"] = int(float(read[1]) * _UNITS_BYTES[read[2].upper()])
        else:
            raise UsageError(f"the budget can't be read: {part.strip()!r}", f"it is {_KNOWN}, any of them, with commas")
    return Budget(**found)


def symptom_named(name: str, known: Collection[str]) -> str:
    """The name of a symptom.

    Raises:
        UsageError: there is none of that name.
    """
    if name in known:
        return name
    raise UsageError(f"there is no symptom {name}", todo=f"name one of {', '.join(sorted(known))}")


class Armed:
    """One armed capture of one target.

    Args:
        symptom: the name of a symptom, of whatever subject of the target.
        held_s: how long its condition must have held, seconds; 0: as soon as it is raised.
        budget: of captures, time and bytes.
        since_mono_s: when it was armed, by the frames' clock.
    """

    def __init__(self, symptom: str, held_s: float, budget: Budget, since_mono_s: float) -> None:
        self.symptom = symptom
        self.held_s = held_s
        self.budget = budget
        self.state: State = "waiting"
        self.taken = 0
        self.bytes = 0
        self._since_s = since_mono_s
        self._fired: set[str] = set()
        self._failures = 0
        self._again_s = float("-inf")

    def look(self, frame: Frame) -> Symptom | None:
        """The symptom for which to capture now, if any. It counts as fired."""
        active = frame.symptoms.active if frame.symptoms is not None else ()
        holding = [one for one in active if one.id == self.symptom and concerns(one, frame.focused)]
        self._fired &= {one.key for one in holding}
        if self.state != "waiting":
            return None
        if frame.mono_s - self._since_s > self.budget.wait_s:
            self.state = "expired"
            return None
        for one in holding:
            held_s = frame.at_s - one.since_s if one.since_s is not None else 0.0
            if one.key not in self._fired and held_s >= self.held_s and frame.mono_s >= self._again_s:
                self._fired.add(one.key)
                return one
        return None

    def took(self, records_bytes: int) -> None:
        """A capture was taken."""
        self.taken += 1
        self.bytes += records_bytes
        if self.taken >= self.budget.captures or self.left_bytes() == 0:
            self.state = "spent"

    def failed(self, mono_s: float) -> None:
        """A capture could not be taken: it is tried again a little later, if the symptom still holds then."""
        self._failures += 1
        self._fired.clear()
        self._again_s = mono_s + _AGAIN_AFTER_S
        if self._failures >= _MOST_FAILURES:
            self.state = "failed"

    def left_bytes(self) -> int | None:
        """What captures may still write; None for any."""
        return None if self.budget.disk_bytes is None else max(0, self.budget.disk_bytes - self.bytes)

    def words(self) -> str:
        """What it waits for."""
        held = f" for {uptime(self.held_s)}" if self.held_s else ""
        return f"waits until {self.symptom} holds{held}; {self.budget.words()}"


def concerns(symptom: Symptom, target: Target | None) -> bool:
    """Whether a symptom is of a target, its GPUs or the node; not of another engine or its GPUs."""
    kind, _, rest = symptom.subject.key.partition(":")
    if target is None:
        return False
    if kind == "engine":
        return rest == target.key or rest.startswith(f"{target.key}/")
    if kind == "gpu" and target.gpus:
        number = rest.partition("/")[0]
        return number.isdigit() and int(number) in target.gpus
    return True


def evidence_of(symptom: Symptom, held_s: float, at_s: float) -> dict[str, Any]:
    """What is written into a capture that a symptom fired: which, since when, and the numbers that proved it."""
    return {
        "symptom": symptom.id,
        "subject": symptom.subject.label,
        "severity": symptom.severity.name.lower(),
        "headline": symptom.headline,
        "since_s": symptom.since_s,
        "fired_s": at_s,
        "asked_to_hold_s": held_s,
        "confidence": symptom.confidence,
        "evidence": [
            {
                "name": one.name, "value": one.value, "unit": one.unit, "text": one.text, "threshold": one.threshold,
                "threshold_origin": one.threshold_origin, "window_s": one.window_s, "source": one.source,
                "missing": one.missing,
            }
            for one in symptom.evidence
        ],
    }  # fmt: skip
