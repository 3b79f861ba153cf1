"""Why figures are unknown, as lines of text."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_llm.printable import printable


def unknown(missing: Mapping[str, str]) -> list[str]:
    """A line for each reason, with all the figures that it holds for: "unknown temp_c, fan_pct: not supported"."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in missing.items():
        by_reason.setdefault(reason, []).append(name)
    return [f"unknown {', '.join(names)}: {printable(reason)}" for reason, names in by_reason.items()]
