"""Symptoms and limits in terminals of every kind and size."""

from __future__ import annotations

import pytest

from gputop_llm.tui.terminal import Terminal
from tests.screens.test_terminals import has_colour, sgr_codes
from tests.support import symptom_screens as frames
from tests.support.screen_text import screen_lines, screen_text

BUILDERS = (
    frames.incident, frames.one_root, frames.notes_only, frames.warming, frames.healthy, frames.blind,
    frames.eight_capped, frames.hostile, frames.near_limits, frames.unknown_limits,
)  # fmt: skip
# Each leads from the screen before it: the list, a page, its neighbour, the overview, the limits.
WAY = ("5", "enter", "right", "1", "6")


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60), (60, 15), (40, 10)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("build", BUILDERS)
async def test_ascii_mode_draws_nothing_but_ascii(running, build, size):
    async with running(build(), size, Terminal(16, True)) as it:
        for key in ("escape", *WAY):
            await it.press(key)
            for text in (screen_text(it.app), it.app.skin.shown(it.app.screen.text())):
                assert text.isascii(), [c for c in text if not c.isascii()]


async def test_in_ascii_severities_strips_and_the_threshold_are_told_apart(running):
    async with running(frames.incident(), (120, 40), Terminal(0, True)) as it:
        await it.press("5")
        text = screen_text(it.app)
        for words in ("! critical", "+ warning", "o note", "------##########", "------------===="):
            assert words in text
        await it.press("enter")
        assert "' ' ' " in next(line for line in screen_lines(it.app) if line.startswith("      80 % "))


async def test_no_color_sends_no_colour_code(running, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(frames.incident(), (120, 40), Terminal(0, False)) as it:
        for key in WAY:
            await it.press(key)
            assert not [code for code in sgr_codes(it.app) if has_colour(code)]


async def test_with_16_colours_only_those_are_used(running, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    async with running(frames.incident(), (120, 40), Terminal(16, False)) as it:
        for key in WAY:
            await it.press(key)
            assert not [code for code in sgr_codes(it.app) if "38;" in code or "48;" in code]


@pytest.mark.parametrize("size", [(1, 1), (39, 9), (40, 10), (500, 200)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("build", BUILDERS)
async def test_no_size_breaks_a_screen(running, build, size, caplog):
    async with running(build(), size) as it:
        for key in WAY:
            await it.press(key)
            assert len(screen_lines(it.app)) == size[1]
    assert not [record for record in caplog.records if record.exc_info]


async def test_names_like_markup_are_shown_as_they_are(running):
    async with running(frames.hostile(), (120, 40)) as it:
        for key in ("1", "5", "enter"):
            await it.press(key)
            text = it.app.screen.text()
            assert "org/m[bold\\x1b[31m\\n[red]x[/red] is full" in text
            assert "\x1b" not in text
