"""One engine being scraped: its poller and its window."""

from __future__ import annotations

from gputop_llm.clock import Clock
from gputop_llm.config import Config
from gputop_llm.model import EngineFrame, EngineReading, EngineWindow, Target
from gputop_llm.sampling.poller import Poller
from gputop_llm.sampling.sharing import shared
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources.base import Source


class ScrapedEngine:
    """One engine being scraped, at one URL or at several: its poller and its window."""

    def __init__(self, target: Target, url: str, source: Source[EngineReading], config: Config, clock: Clock) -> None:
        self.target_key = target.key
        self.url = url
        self._tracker = EngineTracker(config.window_s)
        self._window: EngineWindow | None = None
        self._clock = clock
        self.poller: Poller[EngineReading] = Poller(source, config.period_s, clock, self._polled)

    def _polled(self, reading: EngineReading | None) -> None:
        if reading is not None:
            self._window = shared(self._tracker.push(reading, self._clock.mono()), self._window)

    def frame(self) -> EngineFrame:
        """It at this moment."""
        return EngineFrame(self.target_key, self.url, self.poller.part(), self._window)
