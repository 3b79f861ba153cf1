"""The screens of symptoms and limits at every size, as text."""

from __future__ import annotations

import pytest

from tests.support import symptom_screens as frames
from tests.support.screen_text import assert_golden, screen_lines, screen_text

SIZES = [(80, 24), (120, 40), (200, 60)]
FRAMES = {
    "incident": frames.incident,
    "one-root": frames.one_root,
    "notes": frames.notes_only,
    "warming": frames.warming,
    "healthy": frames.healthy,
    "blind": frames.blind,
    "eight-capped": frames.eight_capped,
    "markup": frames.hostile,
}
PAGES = ("incident", "warming", "notes", "markup")
by_size = pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")


def named(screen, name, size):
    return f"{screen}-{name}-{size[0]}x{size[1]}"


@by_size
@pytest.mark.parametrize("name", FRAMES)
async def test_the_overview_with_symptoms_looks_as_it_did(running, name, size):
    async with running(FRAMES[name](), size) as it:
        await it.press("escape")
        assert_golden(screen_text(it.app), named("overview-symptoms", name, size))


@by_size
@pytest.mark.parametrize("name", FRAMES)
async def test_the_list_of_symptoms_looks_as_it_did(running, name, size):
    async with running(FRAMES[name](), size) as it:
        await it.press("5")
        assert_golden(screen_text(it.app), named("symptoms", name, size))


@by_size
@pytest.mark.parametrize("name", PAGES)
async def test_the_page_of_a_symptom_looks_as_it_did(running, name, size):
    async with running(FRAMES[name](), size) as it:
        await it.press("5", "enter")
        assert_golden(it.app.screen.text(), named("symptom", name, size))


@by_size
@pytest.mark.parametrize("build", [frames.near_limits, frames.unknown_limits])
async def test_the_limits_look_as_they_did(running, build, size):
    async with running(build(), size) as it:
        await it.press("6")
        assert_golden(it.app.screen.text(), named("limits", build.__name__.replace("_", "-"), size))


@pytest.mark.parametrize("name", ["one-root", "eight-capped", "healthy"])
async def test_the_overview_in_a_small_window_names_the_worst(running, name):
    async with running(FRAMES[name](), (60, 15)) as it:
        await it.press("escape")
        assert_golden(screen_text(it.app), named("overview-symptoms", name, (60, 15)))


@pytest.mark.parametrize("size", [*SIZES, (60, 15), (40, 10)], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("name", ["incident", "one-root", "eight-capped", "markup"])
async def test_a_critical_symptom_is_on_the_first_screen(running, name, size):
    async with running(FRAMES[name](), size) as it:
        await it.press("escape")
        assert any("▲ critical" in line for line in screen_lines(it.app))


@pytest.mark.parametrize("name", FRAMES)
async def test_at_80x24_symptoms_do_not_push_the_essence_off_the_screen(running, name):
    async with running(FRAMES[name]()) as it:
        await it.press("escape")
        text = screen_text(it.app)
        for word in (
            "NVML util",
            "SM active",
            "tensor",
            "DRAM",
            "running",
            "waiting",
            "KV",
            "TTFT",
            "ITL",
            "e2e",
            "CPU",
        ):
            assert word in text or name in ("markup", "blind")
