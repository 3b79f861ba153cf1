"""A finding: what a capture proves, how much fixing it can give, and what would refute it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from gputop_llm.model.advice import Advice


class Weight(IntEnum):
    """How much a finding matters. A NOTE names a fact that nobody needs to fix."""

    NOTE = 1
    FINDING = 2
    SEVERE = 3


@dataclass(frozen=True, slots=True)
class Fact:
    """One number of the evidence.

    `formula` says how it was worked out, `rows` where from ("1,970 copy rows").
    `plus_minus` is the known error, in the same unit.
    """

    name: str
    value: float | None
    unit: str
    formula: str = ""
    rows: str = ""
    text: str | None = None
    plus_minus: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `recoverable_pct` is the upper bound of what fixing it could give, as a share of the window
    (or, with `of` = "kernel", of that kernel's time), by `recoverable_formula`; None when it can't be told.

    `concerns_pct` is the share of the window that a finding is about, where what fixing it gives can't be told: it then
    ranks by that.
    `subject` names the device, rank, stream, phase or kernel where it isn't the whole capture.
    `next_capture` as in a symptom.
    """

    id: str
    weight: Weight
    headline: str
    facts: tuple[Fact, ...]
    cause: str
    advice: tuple[Advice, ...]
    recoverable_pct: float | None
    recoverable_formula: str
    confidence: str
    refuted_by: str
    next_capture: str | None = None
    subject: str | None = None
    of: str = "window"
    concerns_pct: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a capture says. `judged` is false when it can't be judged; `headline` then says why and what to do.

    `healthy` is true when nothing of it is worth fixing; None when it can't be judged. `capture` says what was read:
    "format", "files", "tool", "schema", "engine", "engine_name", "window_from", "window_ms".
    `tables` hold what the page shows beside the findings (coverage by device, idle causes, hot kernels, steps,
    copies, operators…): name → list of rows, each a mapping of column to value with the unit in its name.
    """

    judged: bool
    headline: str
    findings: tuple[Finding, ...] = ()
    tables: Mapping[str, tuple[Mapping[str, object], ...]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    notes: tuple[str, ...] = ()
    healthy: bool | None = None
    capture: Mapping[str, object] = field(default_factory=dict)
