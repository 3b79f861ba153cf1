"""How close an engine is to what its GPUs can do at most: two estimates, each with its inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LimitInput:
    """One number that went into an estimate. `value` is None where it is unknown; `text` adds what a number can't say.

    `unit` is one of "B", "B/s", "FLOP/s", "/s", "tok/s", "tok", "%", "" (a count).
    """

    name: str
    value: float | None
    unit: str
    source: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class LimitEstimate:
    """A share of a physical limit in percent.

    `value_pct` is None exactly when `unknown` says why. `at_least`: a part that can't be known is left out, so that
    the true value is higher. `floor_tpot_s` is the shortest time per output token that the limit allows with the
    present batch (decode only). `notes` say what the estimate leaves out.
    """

    name: str
    formula: str
    value_pct: float | None = None
    inputs: tuple[LimitInput, ...] = ()
    floor_tpot_s: float | None = None
    at_least: bool = False
    notes: tuple[str, ...] = ()
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """MBU (decode, of the memory bandwidth) and MFU (prefill, of the arithmetic) of one engine."""

    mbu: LimitEstimate
    mfu: LimitEstimate
