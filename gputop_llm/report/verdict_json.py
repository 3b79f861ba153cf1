"""A verdict as a JSON object: the documented, stable form (docs/verdict.md).

Null is unknown, never 0; there is no NaN. Within a schema number names may be added, but none is removed, renamed or
given another meaning.
"""

from __future__ import annotations

import json
from typing import Any

from gputop_llm import __version__
from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Verdict
from gputop_llm.report.jsonform import plain

SCHEMA = "gputop-llm/verdict/1"


def verdict_text(verdict: Verdict) -> str:
    """The verdict as indented JSON in ASCII."""
    return json.dumps(verdict_object(verdict), allow_nan=False, indent=2)


def verdict_object(verdict: Verdict) -> dict[str, Any]:
    """The verdict as plain objects that any JSON writer takes. Findings stand in the order of their rank."""
    return {
        "schema": SCHEMA,
        "version": __version__,
        "judged": verdict.judged,
        "healthy": verdict.healthy,
        "headline": plain(verdict.headline),
        "capture": plain(verdict.capture),
        "facts": [_fact(fact) for fact in verdict.facts],
        "findings": [_finding(finding) for finding in verdict.findings],
        "tables": plain(verdict.tables),
        "notes": plain(verdict.notes),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "weight": finding.weight.name.lower(),
        "headline": plain(finding.headline),
        "subject": plain(finding.subject),
        "recoverable_pct": plain(finding.recoverable_pct),
        "recoverable_of": finding.of,
        "concerns_pct": plain(finding.concerns_pct),
        "recoverable_formula": plain(finding.recoverable_formula),
        "cause": plain(finding.cause),
        "confidence": plain(finding.confidence),
        "refuted_by": plain(finding.refuted_by),
        "next_capture": plain(finding.next_capture),
        "advice": [_advice(advice) for advice in finding.advice],
        "facts": [_fact(fact) for fact in finding.facts],
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {"text": plain(advice.text), "flags": plain(advice.flags)}


def _fact(fact: Fact) -> dict[str, Any]:
    return {
        "name": plain(fact.name),
        "value": plain(None if fact.value is None else float(fact.value)),
        "unit": fact.unit,
        "plus_minus": plain(None if fact.plus_minus is None else float(fact.plus_minus)),
        "formula": plain(fact.formula),
        "rows": plain(fact.rows),
        "text": plain(fact.text),
    }
