"""What stands on the screen, as text, compared with golden files.

`GPUTOP_LLM_UPDATE_GOLDEN=1 pytest tests/screens` writes the files anew; look at the diff before committing it.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from textual.app import App

GOLDEN = Path(__file__).parents[1] / "screens" / "golden"
UPDATE = bool(os.environ.get("GPUTOP_LLM_UPDATE_GOLDEN"))


def screen_lines(app: App) -> list[str]:
    """The lines of the screen on top, as the compositor draws them (the one private name used by tests)."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips(app.size)]


def screen_text(app: App) -> str:
    """The screen on top as one text."""
    return "\n".join(screen_lines(app)) + "\n"


def line_with(app: App, words: str) -> int:
    """The row of the screen that has these words."""
    return next(at for at, line in enumerate(screen_lines(app)) if words in line)


def reversed_rows(app: App) -> list[int]:
    """The rows that are reversed from end to end: what is chosen in a list."""
    strips = app.screen._compositor.render_strips(app.size)
    return [at for at, strip in enumerate(strips) if all(part.style and part.style.reverse for part in strip)]


def words_of(app: App) -> str:
    """The screen's words, however they are broken into lines."""
    return " ".join(screen_text(app).split())


def assert_golden(text: str, name: str) -> None:
    """Compares with `tests/screens/golden/NAME.txt`, or writes it when asked to update."""
    file = GOLDEN / f"{name}.txt"
    if UPDATE:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return
    assert file.exists(), f"{file} is not there: run with GPUTOP_LLM_UPDATE_GOLDEN=1 and look at it"
    wanted = file.read_text(encoding="utf-8")
    if text != wanted:
        diff = difflib.unified_diff(wanted.splitlines(), text.splitlines(), "golden", "now", lineterm="")
        raise AssertionError("\n".join(["the screen changed:", *diff]))
