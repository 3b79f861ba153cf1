"""Lines over time, as characters: one row of blocks, or several rows of braille.

The scale is given by the caller (0–100 for anything in percent) and never
stretched to the data: a flat 100 and a flat 0 must not look alike.
"""

from __future__ import annotations

from collections.abc import Sequence

_LEVELS = "▁▂▃▄▅▆▇█"
# Dots of a braille cell from bottom to top, left and right column.
_LEFT = (0x40, 0x04, 0x02, 0x01)
_RIGHT = (0x80, 0x20, 0x10, 0x08)


def spark(values: Sequence[float | None], top: float) -> str:
    """One row, one value per cell; blank where nothing is known."""
    if top <= 0:
        return "".join(" " if v is None else _LEVELS[0] for v in values)
    scale = 8.0 / top
    return "".join(" " if v is None else _LEVELS[min(7, max(0, int(v * scale)))] for v in values)


def chart(values: Sequence[float | None], height: int, top: float) -> list[str]:
    """`height` rows from top to bottom, two values per cell; neighbours are joined by a line."""
    dots = height * 4
    scale = (dots - 1) / top if top > 0 else 0.0
    levels = [None if v is None else min(dots - 1, max(0, round(v * scale))) for v in values]
    width = (len(levels) + 1) // 2
    grid = [[0] * width for _ in range(height)]
    before: int | None = None
    for at, level in enumerate(levels):
        if level is not None:
            start = level if before is None else _joint(before, level)
            column, bits = at // 2, (_RIGHT if at % 2 else _LEFT)
            for dot in range(min(start, level), max(start, level) + 1):
                grid[height - 1 - dot // 4][column] |= bits[dot % 4]
        before = level
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in grid]


def _joint(before: int, level: int) -> int:
    """Where the vertical stroke up or down to `level` begins: next to where the last dot was."""
    if level > before:
        return before + 1
    return before - 1 if level < before else level
