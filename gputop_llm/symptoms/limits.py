"""Thresholds: their values, the reason for each, and where an overridden one came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gputop_llm.errors import UsageError

VENDOR = "vendor-documented"
MEASURED = "measured"
RULE_OF_THUMB = "rule of thumb"


@dataclass(frozen=True, slots=True)
class Threshold:
    """One number that a rule compares with.

    `name` is "<rule id>.<quantity with unit>". A condition begins to hold beyond `value` and ends only
    beyond `clear` (hysteresis); between them nothing changes. `clear` follows `value`
    in proportion when that is overridden.
    """

    name: str
    value: float
    clear: float
    tag: str
    why: str


@dataclass(frozen=True, slots=True)
class Hold:
    """How long a rule's condition must hold, and then be gone, before the symptom is raised and cleared."""

    rule: str
    for_s: float
    clear_s: float


class Limits:
    """The thresholds in force.

    Args:
        thresholds: the table.
        holds: hold and clear times by rule; others take `default_hold`.
        overrides: values by name, also "<rule id>.for_s" and "<rule id>.clear_s".
        origin: where the overrides came from, for the screen.
        origins: by name, where one of them came from elsewhere ("--slo-ttft").

    Raises:
        UsageError: an override has an unknown name, or is no time where it must be one.
    """

    default_hold = (10.0, 10.0)

    def __init__(
        self,
        thresholds: Iterable[Threshold],
        holds: Iterable[Hold] = (),
        overrides: Mapping[str, float] | None = None,
        origin: str = "config file",
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self._table = {t.name: t for t in thresholds}
        self._holds = {h.rule: (h.for_s, h.clear_s) for h in holds}
        self._overrides = dict(overrides or {})
        self._origins = {name: (origins or {}).get(name, origin) for name in self._overrides}
        rules = {name.split(".", 1)[0] for name in self._table} | set(self._holds)
        for name, value in self._overrides.items():
            rule, _, quantity = name.partition(".")
            if name not in self._table and not (rule in rules and quantity in ("for_s", "clear_s")):
                raise UsageError(
                    f"unknown threshold '{name}' in {self._origins[name]}", todo="the names are in docs/symptoms.md"
                )
            if quantity in ("for_s", "clear_s") and value < 0:
                raise UsageError(f"{self._origins[name]}: {name} is a time and can't be below 0 s: got {value:g}")
        self._in_force: dict[str, tuple[float, float]] = {}
        # Asked for several hundred times a tick.
        self._values = {name: self._overrides.get(name, t.value) for name, t in self._table.items()}
        self._clears = {name: self._clear(t) for name, t in self._table.items()}

    def _clear(self, threshold: Threshold) -> float:
        if threshold.name in self._overrides and threshold.value:
            return self._overrides[threshold.name] * threshold.clear / threshold.value
        return threshold.clear

    def value(self, name: str) -> float:
        """The value beyond which the condition holds."""
        return self._values[name]

    def clear(self, name: str) -> float:
        """The value beyond which the condition is gone."""
        return self._clears[name]

    def given(self, name: str) -> bool:
        """Whether the user gave this value: an SLO that is given wins over a baseline."""
        return name in self._overrides

    def origin(self, name: str) -> str:
        """ "default", or where the override came from."""
        return self._origins.get(name, "default")

    def hold(self, rule: str) -> tuple[float, float]:
        """(seconds to hold before it is raised, seconds to be gone before it is cleared)."""
        found = self._in_force.get(rule)
        if found is None:
            for_s, clear_s = self._holds.get(rule, self.default_hold)
            found = self._overrides.get(f"{rule}.for_s", for_s), self._overrides.get(f"{rule}.clear_s", clear_s)
            self._in_force[rule] = found
        return found

    @property
    def overridden(self) -> tuple[str, ...]:
        """What was overridden, in words: "ttft-high.p95_s = 0.5 (config file)"."""
        return tuple(f"{name} = {value:g} ({self._origins[name]})" for name, value in sorted(self._overrides.items()))

    def thresholds(self) -> tuple[Threshold, ...]:
        """The table, for documentation."""
        return tuple(self._table.values())
