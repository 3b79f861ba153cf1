"""The app on a fake session, in a fixed terminal, time zone and size."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.tui.app import MonitorApp
from gputop_llm.tui.terminal import Terminal
from tests.support.fake_session import FakeSession
from tests.support.frames import answering, moving

HISTORY_S = 700


@pytest.fixture(autouse=True)
def _fixed_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.delenv("NO_COLOR", raising=False)


class Running:
    """The app under test, its session and its pilot."""

    def __init__(self, app: MonitorApp, session: FakeSession, pilot: Pilot) -> None:
        self.app = app
        self.session = session
        self.pilot = pilot

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def push(self, frame: Frame) -> None:
        self.session.push(frame)
        await self.pilot.pause()

    async def tick(self, seconds: float = 1.0) -> None:
        self.session.tick(seconds)
        await self.pilot.pause()


@pytest.fixture
def running() -> Callable:
    """`async with running(frame, (80, 24)) as it:` — the app has drawn that frame, with ten minutes of history."""

    @asynccontextmanager
    async def start(
        frame: Frame | None,
        size: tuple[int, int] = (80, 24),
        term: Terminal | None = None,
        config: Config | None = None,
        history_s: int = HISTORY_S,
    ) -> AsyncIterator[Running]:
        session = FakeSession(frame, config)
        if frame is not None:
            for earlier in list(moving(answering(frame), history_s))[:-1]:
                session.history.append(earlier)
        app = MonitorApp(session, session.config, term or Terminal(256, False))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            yield Running(app, session, pilot)

    return start
