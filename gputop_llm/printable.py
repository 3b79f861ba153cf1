"""Foreign text made safe to show: model names, command lines, server answers, error texts.

Nothing that a name holds may move the cursor, change colours, hide, or reorder
what stands beside it. Such characters are shown as the escape that a programmer
would write, so that names that differ stay different.
"""

from __future__ import annotations

import unicodedata

# Controls, format characters (zero width, bidirectional overrides), surrogates, private use, line separators.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def printable(text: str, limit: int = 2000) -> str:
    """The text on one line with every invisible or control character written as an escape.

    Longer text than `limit` characters ends with "…". Pure ASCII without controls comes back as it is.
    """
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if _visible(c) else _escape(c) for c in text)


def _visible(char: str) -> bool:
    if char == " ":
        return True
    # A combining mark is drawn over its neighbour: it may pile up, but never leaves its cell.
    return unicodedata.category(char) not in _HIDDEN and (char.isprintable() or unicodedata.combining(char) > 0)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
