"""The display of a capture, with captures that are read once in a test process."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gputop_llm.tui import verdict_app, viewer
from gputop_llm.tui.panels.timeline_scene import scene
from gputop_llm.tui.terminal import Terminal
from gputop_llm.tui.viewport import Viewport
from gputop_llm.verdict.assemble import judge
from tests.support.captures import CAPTURES
from tests.support.timelines import recorded

DEADLINE_S = 30


@lru_cache(maxsize=4)
def judged(name: str):
    """Context, verdict and scene of a capture."""
    context = recorded(name)
    return context, judge(context.timeline, context), scene(context)


class Shown:
    """The app under test and its pilot."""

    def __init__(self, app: verdict_app.VerdictApp, pilot: Pilot) -> None:
        self.app = app
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def until(self, condition) -> None:
        """Lets the app work until that holds."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, "it did not come to that"
            await self.pilot.pause(0.01)

    @property
    def viewport(self) -> Viewport:
        return self.app.opened.viewport

    @property
    def on_top(self) -> str:
        return self.app.screen.command


@asynccontextmanager
async def showing(name: str, size: tuple[int, int] = (80, 24), term: Terminal | None = None) -> AsyncIterator[Shown]:
    """The app that has read that capture."""

    def opened(paths, progress, cancelled):
        context, verdict, drawn = judged(name)
        timeline = context.timeline
        return viewer.Opened(context, verdict, drawn, Viewport(timeline.start, timeline.end))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict_app, "opened", opened)
        app = verdict_app.VerdictApp([Path(CAPTURES / name)], term or Terminal(256, False))
        async with app.run_test(size=size) as pilot:
            shown = Shown(app, pilot)
            await shown.until(lambda: shown.on_top == "verdict")
            await pilot.pause()
            yield shown
