"""The history of a symptom's figure, with the threshold drawn in and the times at which it held below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gputop_llm.model import Frame
from gputop_llm.model.symptom import Held
from gputop_llm.tui.charts import chart
from gputop_llm.tui.draw import Line, fit, pad
from gputop_llm.tui.panels.engine import nice_top
from gputop_llm.tui.panels.symptom_words import figure, series_unit
from gputop_llm.tui.panels.timeline_strip import Axis, span_for, strip
from gputop_llm.tui.trails import Trails

SCALE = 11
_SMALL_PCT = 10.0
_BLANK = 0x2800
# Both dots of a braille cell, from bottom to top.
_DASHES = (0xC0, 0x24, 0x12, 0x09)


def span_of(trails: Trails, lasted_s: float) -> float:
    """How much history shows a symptom of that age, and what was before it."""
    return span_for(min(trails.known_s, 1.5 * lasted_s))


def history_chart(
    frame: Frame,
    trails: Trails,
    series: str,
    threshold: float | None,
    held: Iterable[Held],
    span_s: float,
    width: int,
    height: int,
) -> tuple[list[Line], float]:
    """`height` lines of chart and one of when the symptom held, and how many seconds they show.

    No lines where nothing is known of the series.
    """
    cells = max(1, width - SCALE)
    slots = trails.stretch(2 * cells, span_s)
    values = trails.pairs(series, cells, slots)
    shown_s = trails.span_s(2 * cells, slots)
    if all(value is None for value in values):
        return [], shown_s
    unit = series_unit(series)
    # A limit of a few percent would lie on the floor of a scale of all of them.
    small = threshold is not None and threshold < _SMALL_PCT
    top = 100.0 if unit == "%" and not small else nice_top([*values, threshold])
    rows = with_threshold(chart(values, height, top), threshold, top)
    marks = {0: figure(top, unit), height - 1: figure(0.0, unit)}
    level = None if threshold is None else _level(threshold, height, top)
    if level is not None and threshold is not None:
        marks.setdefault(height - 1 - level // 4, figure(threshold, unit))
    lines = [
        fit([(pad(marks.get(at, ""), SCALE - 1, right=True) + " ", "dim"), *row], width) for at, row in enumerate(rows)
    ]
    return [*lines, held_line(frame, trails, held, span_s, width)], shown_s


def held_line(frame: Frame, trails: Trails, held: Iterable[Held], span_s: float, width: int) -> Line:
    """When the symptom held, on the chart's scale of time."""
    cells = max(1, width - SCALE)
    slots = trails.stretch(2 * cells, span_s)
    begin_s = trails.begin_mono_s(cells, slots) + frame.at_s - frame.mono_s
    axis = Axis(cells, trails.span_s(2, slots), begin_s, frame.at_s - trails.known_s)
    return fit([(pad("held", SCALE - 1, right=True) + " ", "dim"), *strip(held, axis)], width)


def with_threshold(rows: Sequence[str], threshold: float | None, top: float) -> list[Line]:
    """The rows of a chart with a dashed line where the threshold is; the figure's own line stays whole."""
    lines: list[Line] = [[(row, "work")] for row in rows]
    level = None if threshold is None else _level(threshold, len(rows), top)
    if level is None:
        return lines
    at = len(rows) - 1 - level // 4
    dash = chr(_BLANK + _DASHES[level % 4])
    line: Line = []
    for column, char in enumerate(rows[at]):
        text, role = (char, "work") if char not in (" ", chr(_BLANK)) else (dash if column % 2 == 0 else " ", "warn")
        if line and line[-1][1] == role:
            line[-1] = (line[-1][0] + text, role)
        else:
            line.append((text, role))
    lines[at] = line
    return lines


def _level(value: float, height: int, top: float) -> int | None:
    """The row of dots that stands for a value; None when it is off the scale."""
    if top <= 0 or not 0 <= value <= top:
        return None
    return round(value / top * (4 * height - 1))
