"""Field case 14: names that look like markup, and worse, are shown character for character."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.model import TargetList
from tests.support import frames
from tests.support.screen_text import screen_lines, screen_text

NAMES = frames.markup_names()
KEYS = {"overview": "1", "engine": "3", "processes": "4", "targets": "t"}


def named(name):
    """A frame whose focus, user, container, title, error, notes and GPU all carry that name."""
    base = frames.one_gpu_loaded()
    target = frames.target(
        model=name, user=name, container=name, version=name, notes=(f"note {name}",), attachable=None
    )
    process = replace(target.processes[1], title=f"title {name}", note=f"why {name}")
    target = replace(target, processes=(target.processes[0], process))
    engine = frames.engine(
        value=frames.reading(notes=(name,), cache_config={name: name}, version=name), error=f"error {name}"
    )
    return replace(
        base,
        gpus=frames.part(frames.node([replace(frames.h200(), name=name, missing={"fan_pct": name})])),
        targets=frames.part(TargetList((target,), notes=(f"list {name}",))),
        engines=(engine,),
        notes=(name,),
        simulated=name,
    )


@pytest.mark.parametrize("screen", ["overview", "engine", "processes", "targets"])
async def test_case_14_every_model_is_shown_literally(running, screen):
    async with running(frames.markup_in_names(), (200, 60)) as it:
        await it.press(KEYS[screen])
        text = it.app.screen.text()
        shown = NAMES if screen != "overview" else NAMES[:3]
        for name in shown:
            assert name in text


async def test_case_14_names_that_differ_only_in_brackets_stay_different(running):
    async with running(frames.markup_in_names()) as it:
        await it.press("t")
        rows = screen_lines(it.app)[3:11]
        assert len({row.split("  ")[0] for row in rows}) == 8 or len(set(rows)) == 8
        for name, row in zip(NAMES, rows, strict=True):
            assert name in row


@pytest.mark.parametrize("name", NAMES)
async def test_case_14_a_name_in_every_place_is_text_only(running, name):
    async with running(named(name), (200, 60)) as it:
        it.session.events = ((frames.AT_S, f"attached to {name}"),)
        await it.tick()
        wanted = name.rstrip("/").rsplit("/", 1)[-1] if name.startswith("/") else name
        assert wanted in screen_lines(it.app)[0]
        assert f"SIMULATED: {name}" in screen_lines(it.app)[-1]
        assert f"attached to {name}" in screen_text(it.app)
        assert f"error {name}" in screen_text(it.app)
        for key in ("2", "3", "4", "t"):
            await it.press(key)
            assert name in it.app.screen.text()
            for strip in it.app.screen._compositor.render_strips(it.app.size):
                for segment in strip:
                    # Nothing clickable, no link, no style of its own comes from a name.
                    assert segment.style is None or not segment.style.link
                    assert segment.style is None or "@click" not in segment.style.meta


@pytest.mark.parametrize("name", NAMES)
async def test_case_14_a_name_in_a_message_is_text_only(running, name):
    async with running(frames.one_gpu_loaded(), (120, 40)) as it:
        it.app.say(f"about {name}")
        await it.pilot.pause()
        assert f"about {name}" in screen_lines(it.app)[-1]

        def fail():
            raise GputopError(f"cannot do {name}", name)

        it.app.do_pause = fail
        await it.press("p")
        assert f"▲ cannot do {name}: {name}" in screen_lines(it.app)[-1]


async def test_control_characters_in_names_are_made_visible(running):
    nasty = "a\x1b[31mred\x07\r\nb\u202egnp\u200b\x9b"
    async with running(named(nasty), (200, 60)) as it:
        for key in ("1", "2", "3", "4", "t"):
            await it.press(key)
            drawn = screen_text(it.app).replace("\n", "")
            assert drawn.isprintable()
            assert "\\x1b[31mred" in drawn
            drawn_bytes = "".join(
                s.render(it.app.console) for s in it.app.screen._compositor.render_strips(it.app.size)
            )
            assert "\x07" not in drawn_bytes
            assert "\x1b[31mred" not in drawn_bytes


async def test_wide_characters_keep_columns_aligned(running):
    async with running(named("模型-大"), (120, 40)) as it:
        for key in ("1", "2", "3", "4", "t"):
            await it.press(key)
            for strip in it.app.screen._compositor.render_strips(it.app.size):
                assert strip.cell_length == 120
