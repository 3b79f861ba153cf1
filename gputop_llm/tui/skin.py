"""How roles look in this terminal: 256 colours, 16, or none; Unicode or ASCII.

The terminal's own background and text colour are kept: the accents are chosen to
be readable on dark and light ones alike. No meaning hangs on a colour alone.
"""

from __future__ import annotations

from rich.cells import cell_len
from rich.style import Style

# role: (bold, dim, reverse, 256-colour number, 16-colour name). Blue and orange are told apart by everyone.
_ROLES: dict[str, tuple[bool, bool, bool, int | None, str | None]] = {
    "": (False, False, False, None, None),
    "strong": (True, False, False, None, None),
    "title": (True, False, False, None, None),
    "dim": (False, True, False, 245, None),
    "rule": (False, True, False, 242, None),
    "track": (False, True, False, 242, None),
    "busy": (False, False, False, None, None),
    "work": (False, False, False, 33, "cyan"),
    "mem": (False, False, False, 67, None),
    "warn": (True, False, False, 202, "yellow"),
    "good": (False, False, False, 33, "cyan"),
    "key": (True, False, False, None, None),
    "badge": (True, False, True, 202, "yellow"),
    "selected": (False, False, True, None, None),
    # The picture of a timeline: each cause and phase has a letter too.
    "named": (False, False, True, None, None),
    "cause-sync": (True, False, False, 202, "yellow"),
    "cause-alloc": (True, False, False, 133, "magenta"),
    "cause-launch": (False, False, False, 33, "cyan"),
    "cause-rank": (True, False, False, 99, "magenta"),
    "cause-none": (False, True, False, 250, None),
    "cause-os": (False, False, False, 67, "blue"),
    "cause-framework": (False, False, False, 71, "green"),
    "cause-host": (False, False, False, 172, "red"),
    "cause-queued": (False, True, False, 245, None),
    "phase-decode": (False, False, False, 67, "blue"),
    "phase-prefill": (True, False, False, 172, "yellow"),
    "phase-mixed": (True, False, False, 133, "magenta"),
}

_TABLE = str.maketrans(
    {
        "━": "=", "╸": "=", "─": "-", "│": "|", "█": "#", "▌": "|",
        "▁": "_", "▂": ".", "▃": ":", "▄": "-", "▅": "=", "▆": "+", "▇": "*",
        "▲": "!", "▼": "v", "↑": "^", "↓": "v", "→": ">", "←": "<", "▸": ">", "●": "*", "○": "o", "◆": "+",
        "·": "|", "–": "-", "—": "-", "…": "~", "≤": "<", "≥": ">", "×": "x", "°": " ",
        "µ": "u", "μ": "u", "“": '"', "”": '"', "’": "'", "Δ": "d",
        "÷": "/", "−": "-", "±": "~", "∪": "U", "Σ": "S",
    }
)  # fmt: skip


def _braille_as_ascii() -> dict[int, str]:
    """Each braille pattern as the character that has its weight at about the same height."""
    rows = ((0, 0x09), (1, 0x12), (2, 0x24), (3, 0xC0))
    by_span = {(0, 0): "'", (1, 1): "-", (2, 2): "-", (3, 3): "_"}
    table = {}
    for pattern in range(256):
        used = [row for row, bits in rows if pattern & bits]
        if not used:
            table[0x2800 + pattern] = " "
            continue
        span = (used[0], used[-1])
        tall = span[1] - span[0] >= 2
        table[0x2800 + pattern] = by_span.get(span) or ("|" if tall else ("'" if span[0] == 0 else "."))
    return table


_TABLE.update(_braille_as_ascii())


def to_ascii(text: str) -> str:
    """The text in ASCII, of the same width in cells; what has no counterpart becomes "?"."""
    text = text.translate(_TABLE)
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * cell_len(c) for c in text)


class Skin:
    """Styles by role, and whether only ASCII may be drawn.

    Args:
        colours: how many colours the terminal shows: 256 or more, 16, or 0 for none.
        ascii_only: draw nothing but ASCII.
    """

    def __init__(self, colours: int, ascii_only: bool) -> None:
        self.colours = colours
        self.ascii_only = ascii_only
        self.styles = {role: self._style(role) for role in _ROLES}

    def _style(self, role: str) -> Style | None:
        bold, dim, reverse, colour_256, colour_16 = _ROLES[role]
        if self.colours >= 256:
            colour = None if colour_256 is None else f"color({colour_256})"
            dim = dim and colour is None
        else:
            colour = colour_16 if self.colours >= 16 else None
        if not (bold or dim or reverse or colour):
            return None
        # False would be written out as "not bold"; None leaves it unsaid.
        return Style(color=colour, bold=bold or None, dim=dim or None, reverse=reverse or None)

    def shown(self, text: str) -> str:
        """The text as it is drawn."""
        return to_ascii(text) if self.ascii_only and not text.isascii() else text
