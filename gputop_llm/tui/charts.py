"""Lines over time, as characters: one row of blocks, or several rows of braille.

The scale is given by the caller (0–100 for anything in percent) and never
stretched to the data: a flat 100 and a flat 0 must not look alike. All but the
newest cell stays as it is until the chart moves, so that part is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

_LEVELS = "▁▂▃▄▅▆▇█"
# Dots of a braille cell from bottom to top, left and right column.
_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)
_REMEMBERED = 256

_Values = tuple["float | None", ...]


def spark(values: Sequence[float | None], top: float) -> str:
    """One row, one value per cell; blank where nothing is known."""
    return _spark(tuple(values[:-1]), top) + _block(values[-1], top) if values else ""


def chart(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """`height` rows from top to bottom, two values per cell; neighbours are joined by a line."""
    settled = max(0, (len(values) - 1) // 2 * 2)
    old = _braille(tuple(values[:settled]), None, height, top)
    new = _braille(tuple(values[settled:]), values[settled - 1] if settled else None, height, top)
    return [left + right for left, right in zip(old, new, strict=True)]


@lru_cache(_REMEMBERED)
def _spark(values: _Values, top: float) -> str:
    return "".join(_block(v, top) for v in values)


def _block(value: float | None, top: float) -> str:
    if value is None:
        return " "
    return _LEVELS[min(7, max(0, int(value * 8.0 / top)))] if top > 0 else _LEVELS[0]


@lru_cache(_REMEMBERED)
def _braille(values: _Values, before: float | None, height: int, top: float) -> tuple[str, ...]:
    """Rows for some values; `before` is the value in front of them."""
    dots = height * 4
    scale = (dots - 1) / top if top > 0 else 0.0

    def level_of(value: float | None) -> int | None:
        return None if value is None else min(dots - 1, max(0, round(value * scale)))

    grid = [[0] * ((len(values) + 1) // 2) for _ in range(height)]
    last = level_of(before)
    for at, value in enumerate(values):
        level = level_of(value)
        if level is not None:
            start = level if last is None else _joint(last, level)
            column, bits = at // 2, (_RIGHT if at % 2 else _LEFT)
            for dot in range(min(start, level), max(start, level) + 1):
                grid[height - 1 - dot // 4][column] |= bits[dot % 4]
        last = level
    return tuple("".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in grid)


def _joint(before: int, level: int) -> int:
    """Where the vertical stroke up or down to `level` begins: next to where the last dot was."""
    if level > before:
        return before + 1
    return before - 1 if level < before else level
