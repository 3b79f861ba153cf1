"""`gputop-llm open` with a profile of Nsight Compute: the verdict's page, and no timeline."""

from __future__ import annotations

import pytest

from gputop_llm.tui import verdict_app
from gputop_llm.tui.terminal import Terminal
from tests.support.capture_app import Shown
from tests.support.captures import CAPTURES
from tests.support.kernels import DETAILS, RAW
from tests.support.screen_text import screen_text

EAGER = CAPTURES / "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz"


async def shown(app, pilot):
    it = Shown(app, pilot)
    await it.until(lambda: it.on_top == "verdict")
    await pilot.pause()
    return it


async def test_a_profile_opens_on_its_page():
    app = verdict_app.VerdictApp([DETAILS], Terminal(256, False))
    async with app.run_test(size=(120, 40)) as pilot:
        it = await shown(app, pilot)
        text = screen_text(app)

        assert "small grid, 96 blocks on 132 SMs" in text
        assert "Profiled kernels" in text
        assert "≤ 27 %" in text
        await it.press("enter")
        assert it.on_top == "finding"
        before = screen_text(app)
        await it.press("right")
        assert screen_text(app) != before


@pytest.mark.parametrize("key", ["2", "g", "s", "plus", "minus", "left", "0", "P"])
async def test_a_profile_has_no_timeline_and_says_so(key):
    app = verdict_app.VerdictApp([DETAILS], Terminal(256, False))
    async with app.run_test(size=(120, 40)) as pilot:
        it = await shown(app, pilot)
        await it.press(key)

        assert it.on_top == "verdict"
        assert "no timeline" in app.message


async def test_beside_a_capture_the_timeline_is_that_of_the_capture():
    app = verdict_app.VerdictApp([EAGER, RAW], Terminal(256, False))
    async with app.run_test(size=(120, 40)) as pilot:
        it = await shown(app, pilot)

        assert "What if" in screen_text(app)
        await it.press("2")
        assert it.on_top == "timeline"
