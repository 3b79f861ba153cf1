"""The overview's place for symptoms, and what happened lately."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, fit, rule
from gputop_llm.tui.panels.common import clock_text


def symptoms_panel(events: Sequence[tuple[float, str]], width: int, height: int) -> Block:
    """Symptoms (none are known yet), then events, newest first."""
    title: Line = [("Symptoms", "title")]
    nothing: Line = [("no rules yet", "dim")]
    if height == 1:
        return Block([rule([*title, (" ", ""), *nothing], width)])
    lines: list[Line] = [rule(title, width), nothing]
    lines += [fit([(f"{clock_text(at)} ", "dim"), (printable(text), "")], width) for at, text in reversed(events)]
    return Block(lines[:height])
