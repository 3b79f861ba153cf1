"""Lines of styled text: what every panel builds and every widget shows. No widgets here.

A run is (text, role); a line is a list of runs; a role names a style of the skin
("dim", "warn"), never a colour. Text is never parsed for markup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, set_cell_size

Run = tuple[str, str]
Line = list[Run]

ELLIPSIS = "…"
GAP = " · "
BAR_FULL, BAR_HALF, BAR_TRACK = "━", "╸", "─"


@dataclass(frozen=True, slots=True)
class Block:
    """What a panel shows: its lines, and the keys of the rows that react to a click."""

    lines: Sequence[Line]
    keys: Mapping[int, str] = field(default_factory=dict)


def width_of(line: Iterable[Run]) -> int:
    """The width of a line in terminal cells."""
    return sum(cells(text) for text, _ in line)


def cells(text: str) -> int:
    """The width of a text in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


def fit(line: Iterable[Run], width: int) -> Line:
    """The line cut with "…" or padded with spaces to exactly `width` cells."""
    fitted: Line = []
    left = width
    for text, role in line:
        size = cells(text)
        if size <= left:
            if text:
                fitted.append((text, role))
                left -= size
            continue
        if left > 0:
            fitted.append((set_cell_size(text, left - 1) + ELLIPSIS, role))
        elif fitted:
            last, last_role = fitted[-1]
            fitted[-1] = (set_cell_size(last, cells(last) - 1) + ELLIPSIS, last_role)
        return fitted
    if left:
        fitted.append((" " * left, ""))
    return fitted


def pad(text: str, width: int, right: bool = False) -> str:
    """The text cut with "…" or padded to exactly `width` cells; `right` aligns it right."""
    size = cells(text)
    if size > width:
        return set_cell_size(text, width - 1) + ELLIPSIS if width > 0 else ""
    space = " " * (width - size)
    return space + text if right else text + space


def bar(pct: float | None, width: int, role: str) -> Line:
    """A bar on the fixed scale 0–100; an unknown value has no bar at all, so that it can't be taken for 0."""
    if pct is None:
        return [(" " * width, "")]
    halves = round(min(max(pct, 0.0), 100.0) / 100.0 * width * 2)
    # A little is not nothing.
    if pct > 0 and halves == 0:
        halves = 1
    full, half = divmod(halves, 2)
    line: Line = []
    if halves:
        line.append((BAR_FULL * full + BAR_HALF * half, role))
    if full + half < width:
        line.append((BAR_TRACK * (width - full - half), "track"))
    return line


_LEAST_WARNING = 20


def warned_rule(title: Sequence[Run], width: int, warning: Sequence[Run]) -> Line:
    """As `rule`, with a remark that is cut where there is little room, and never left out: the title is cut first."""
    if not warning:
        return rule(title, width)
    around = 7
    room = max(width - around - width_of(title), _LEAST_WARNING)
    cut = fit(warning, room) if width_of(warning) > room else warning
    left = width - around - width_of(cut)
    return rule(fit(title, left) if width_of(title) > left else title, width, cut)


def rule(title: Iterable[Run], width: int, right: Iterable[Run] = ()) -> Line:
    """A section's title inside a horizontal rule, with a remark at its right end where there is room for it."""
    left = [("─ ", "rule"), *title, (" ", "")]
    tail = list(right)
    tail_width = width_of(tail)
    if tail:
        tail = [(" ", ""), *tail, (" ─", "rule")]
        tail_width += 3
    middle = width - width_of(left) - tail_width
    if middle < 1 and tail:
        return rule(title, width)
    return fit([*left, ("─" * max(middle, 0), "rule"), *tail], width)


def joined(parts: Iterable[Sequence[Run]], width: int, gap: str = GAP) -> Line:
    """As many parts as fit into `width`, most important first, with a separator between them."""
    line: Line = []
    used = 0
    for part in parts:
        if not part:
            continue
        size = width_of(part) + (len(gap) if line else 0)
        if used + size > width:
            continue
        if line:
            line.append((gap, "dim"))
        line.extend(part)
        used += size
    return line


def beside(left: Sequence[Line], right: Sequence[Line], left_width: int, width: int, gap: int = 2) -> list[Line]:
    """Two columns of lines next to each other."""
    height = max(len(left), len(right))
    rows: list[Line] = []
    for at in range(height):
        first = fit(left[at] if at < len(left) else [], left_width)
        second = fit(right[at] if at < len(right) else [], width - left_width - gap)
        rows.append([*first, (" " * gap, ""), *second])
    return rows


def wrapped(text: str, width: int, role: str = "", indent: str = "") -> list[Line]:
    """A text broken at spaces (inside a word only when it is longer than a line)."""
    lines: list[Line] = []
    row = ""
    for word in text.split(" "):
        while cells(word) > width:
            if row:
                lines.append([(row, role)])
                row = indent
            # At least one character, or a wide one in a narrow column would be tried for ever.
            head = set_cell_size(word, max(width - cells(row), 1)).rstrip(" ") or word[0]
            lines.append([(row + head, role)])
            word, row = word[len(head) :], indent
        trial = f"{row} {word}" if row.strip() else row + word
        if cells(trial) <= width:
            row = trial
        else:
            lines.append([(row, role)])
            row = indent + word
    if row.strip():
        lines.append([(row, role)])
    return lines


def plain(lines: Iterable[Iterable[Run]]) -> str:
    """The lines as bare text."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
