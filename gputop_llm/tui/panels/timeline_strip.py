"""When a symptom held, as one row of cells: the higher a cell, the worse it was in that stretch of time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gputop_llm.model.symptom import Held, Severity
from gputop_llm.tui.draw import Line

SPANS_S = (300.0, 600.0, 1200.0, 1800.0, 3600.0)

_UNWATCHED, _QUIET = (" ", ""), ("─", "track")
_CELLS = {Severity.NOTE: ("▂", "good"), Severity.WARNING: ("▅", "warn"), Severity.CRITICAL: ("█", "warn")}


@dataclass(frozen=True, slots=True)
class Axis:
    """`cells` equal stretches of wall time from `first_s` to now; nothing was watched before `begun_s`."""

    cells: int
    cell_s: float
    first_s: float
    begun_s: float

    @property
    def span_s(self) -> float:
        """How much time all cells cover."""
        return self.cells * self.cell_s

    def at(self, wall_s: float) -> int:
        """The cell of that time; may lie outside."""
        return int((wall_s - self.first_s) // self.cell_s)


def span_for(known_s: float) -> float:
    """The shortest of the usual spans that shows so many seconds; an hour at most."""
    return next((span for span in SPANS_S if span >= known_s), SPANS_S[-1])


def axis_of(now_s: float, known_s: float, cells: int) -> Axis:
    """An axis that ends now. Cells are aligned to the clock, so that a strip moves a cell at a time."""
    cell_s = span_for(known_s) / max(cells, 1)
    first_s = (now_s // cell_s - cells + 1) * cell_s
    return Axis(cells, cell_s, first_s, now_s - known_s)


def strip(held: Iterable[Held], axis: Axis) -> Line:
    """One run per stretch of equal cells."""
    begun = max(0, axis.at(axis.begun_s))
    cells = [_UNWATCHED if at < begun else _QUIET for at in range(axis.cells)]
    for one in sorted(held, key=lambda h: h.severity):
        last = axis.cells - 1 if one.until_s is None else min(axis.cells - 1, axis.at(one.until_s))
        for at in range(max(0, axis.at(one.since_s)), last + 1):
            cells[at] = _CELLS[one.severity]
    line: Line = []
    for text, role in cells:
        if line and line[-1][1] == role:
            line[-1] = (line[-1][0] + text, role)
        else:
            line.append((text, role))
    return line
