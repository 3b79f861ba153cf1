"""A verdict read back from its JSON object (`verdict_json`): what a bundle says need not be worked out again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.report.verdict_json import SCHEMA


def verdict_of(told: Mapping[str, Any]) -> Verdict | None:
    """The verdict that an object tells; None where it is of another schema, or damaged."""
    if told.get("schema") != SCHEMA:
        return None
    try:
        return Verdict(
            judged=told["judged"] is True,
            headline=str(told["headline"]),
            findings=tuple(map(_finding, told["findings"])),
            tables={str(name): tuple(map(dict, rows)) for name, rows in told["tables"].items()},
            facts=tuple(map(_fact, told["facts"])),
            notes=tuple(map(str, told["notes"])),
            healthy=told["healthy"],
            capture=dict(told["capture"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _finding(told: Mapping[str, Any]) -> Finding:
    return Finding(
        id=str(told["id"]),
        weight=Weight[told["weight"].upper()],
        headline=str(told["headline"]),
        facts=tuple(map(_fact, told["facts"])),
        cause=str(told["cause"]),
        advice=tuple(Advice(str(one["text"]), dict(one["flags"])) for one in told["advice"]),
        recoverable_pct=_number(told["recoverable_pct"]),
        recoverable_formula=str(told["recoverable_formula"]),
        confidence=str(told["confidence"]),
        refuted_by=str(told["refuted_by"]),
        next_capture=_text(told["next_capture"]),
        subject=_text(told["subject"]),
        of=str(told["recoverable_of"]),
        concerns_pct=_number(told["concerns_pct"]),
    )


def _fact(told: Mapping[str, Any]) -> Fact:
    return Fact(
        name=str(told["name"]),
        value=_number(told["value"]),
        unit=str(told["unit"]),
        formula=str(told["formula"]),
        rows=str(told["rows"]),
        text=_text(told["text"]),
        plus_minus=_number(told["plus_minus"]),
    )


def _number(told: Any) -> float | None:
    return None if told is None else float(told)


def _text(told: Any) -> str | None:
    return None if told is None else str(told)
