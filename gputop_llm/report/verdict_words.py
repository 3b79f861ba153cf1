"""Parts of a verdict in words, as the terminal and the Markdown page both show them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Verdict, Weight
from gputop_llm.units import DASH

WEIGHTS = {1: "note", 2: "finding", 3: "severe"}

TABLES: Mapping[str, str] = {
    "what_if": "What the profiled kernels could give",
    "launches": "Profiled kernels",
    "roofline": "Roofline",
    "coverage": "GPU coverage",
    "phases": "Phases",
    "steps": "Steps",
    "families": "Kernel families",
    "kernels": "Hot kernels",
    "idle": "Idle time by cause",
    "gaps": "Longest gaps",
    "communication": "Communication",
    "streams": "Streams",
    "copies": "Copies",
    "threads": "Host threads",
    "operators": "Operators",
    "operators_by_shapes": "Operators by input shapes",
}


def figure(value: float | None) -> str:
    """A number with at least three significant digits and no more decimals than help; "–" for None."""
    if value is None or not math.isfinite(value):
        return DASH
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 1 else min(6, 2 - math.floor(math.log10(size)))
    return f"{value:.{digits}f}"


def amount(fact: Fact) -> str:
    """The value of a fact with its unit and error: "52.2 % ± 3.1"."""
    text = f"{figure(fact.value)} {fact.unit}".strip() if fact.value is not None else DASH
    return f"{text} ± {figure(fact.plus_minus)}" if fact.plus_minus else text


def recoverable(finding: Finding) -> str | None:
    """What fixing a finding could give, with the formula; None for a note that nobody would fix."""
    pct, formula = finding.recoverable_pct, finding.recoverable_formula
    if pct is None:
        return None if finding.weight is Weight.NOTE else f"unknown ({formula})"
    return f"up to {pct:.1f} % of the {finding.of} ({formula})" if pct else f"nothing ({formula})"


def advised(advice: Advice, verdict: Verdict) -> str:
    """What to do, with the flag of the engine that was captured, else with those of all engines."""
    engine = verdict.capture.get("engine")
    if isinstance(engine, str) and engine in advice.flags:
        return f"{advice.text}: {advice.flags[engine]}"
    if advice.flags:
        return f"{advice.text} ({'; '.join(f'{name}: {flag}' for name, flag in advice.flags.items())})"
    return advice.text


def cell(value: object) -> str:
    """A cell of a table."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return figure(float(value))
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)


def column(name: str) -> str:
    """A column's name with its unit set apart: "busy_pct" → "busy %"."""
    for suffix, unit in _UNITS:
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix).replace('_', ' ')} {unit}".strip()
    return name.replace("_", " ")


_UNITS = (
    ("bytes_per_s", "bytes/s"),
    ("_per_s", "/s"),
    ("_pct", "%"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_ns", "ns"),
)


def captured(verdict: Verdict) -> str:
    """What was read: tool, engine, window."""
    capture = verdict.capture
    window = capture.get("window_ms")
    parts = [
        capture.get("tool") or capture.get("format"),
        f"schema {capture['schema']}" if capture.get("schema") else None,
        capture.get("engine_name"),
        f"window {figure(window)} ms" if isinstance(window, (int, float)) else None,
    ]
    return " · ".join(str(part) for part in parts if part)
