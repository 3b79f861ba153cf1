"""MBU and MFU on the overview, the engine's page and their own."""

from __future__ import annotations

from dataclasses import replace

from gputop_llm.model.symptom import SymptomReport
from tests.support import symptom_screens as frames
from tests.support.screen_text import screen_text


async def test_the_engines_title_shows_how_close_it_is_to_its_limits_where_there_is_room(running):
    async with running(frames.near_limits()) as it:
        assert "MBU ≥34 % MFU 3 % · scrape 4.2 ms" in screen_text(it.app)
        await it.press("3")
        assert "≥34 % of the limit: memory bandwidth" in screen_text(it.app)
    async with running(frames.near_limits(), (120, 40)) as it:
        assert "MBU ≥34 % MFU 3 % of the limit · scrape" in screen_text(it.app)


async def test_the_limits_show_inputs_formula_and_the_floor_of_tpot(running):
    async with running(frames.near_limits()) as it:
        await it.press("6")
        text = it.app.screen.text()
        for words in (
            "× steps/s ÷ memory bandwidth",
            "can't be under 540 µs per token",
            "weights read per step",
            "4.8 TB/s",
        ):
            assert words in text
        assert "mean is 2.7 ms, 5.07 times that" in " ".join(text.split())


async def test_an_unknown_limit_is_not_shown_as_a_number(running):
    async with running(frames.unknown_limits()) as it:
        assert "MBU" not in screen_text(it.app)
        await it.press("6")
        text = screen_text(it.app)
        assert "▲ the model's config.json can't be read: permission denied" in text
        assert "of the limit" not in text


async def test_without_an_engine_the_limits_say_what_is_missing(running):
    async with running(frames.incident()) as it:
        await it.push(replace(it.session.latest, engines=(), symptoms=SymptomReport(judged=3)))
        await it.press("6")
        assert "no engine is attached" in screen_text(it.app)
