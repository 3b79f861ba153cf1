"""A session without sources or threads: the test decides when a frame comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gputop_llm.captures import Captures
from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.sampling.history import History


class FrozenClock:
    """Time that moves only when told to."""

    def __init__(self, wall_s: float, mono_s: float) -> None:
        self.wall_s = wall_s
        self.mono_s = mono_s

    def wall(self) -> float:
        return self.wall_s

    def mono(self) -> float:
        return self.mono_s

    def forward(self, seconds: float) -> None:
        self.wall_s += seconds
        self.mono_s += seconds


class FakeSession:
    """Has the face of a `Session`; `push` plays the part of its thread."""

    def __init__(self, frame: Frame | None = None, config: Config | None = None) -> None:
        self.config = config or Config()
        self.clock = FrozenClock(frame.at_s, frame.mono_s) if frame else FrozenClock(1_795_968_526.0, 5000.0)
        self.history = History()
        self.captures = Captures(None, self.history.frames, self.clock.wall)
        self.period_s = self.config.period_s
        self.latest: Frame | None = None
        self.events: tuple[tuple[float, str], ...] = ()
        self.attached: list[str] = []
        self.starts = 0
        self.stops = 0
        self._on_frame: Callable[[Frame], None] | None = None
        self._first = frame

    def start(self, on_frame: Callable[[Frame], None] | None = None) -> None:
        self.starts += 1
        self._on_frame = on_frame
        if self._first is not None:
            self.push(self._first)

    def stop(self) -> None:
        self.stops += 1

    def attach(self, key: str) -> None:
        self.attached.append(key)
        if self.latest is not None:
            self.push(replace(self.latest, focus=key))

    def set_period(self, period_s: float) -> None:
        self.period_s = period_s

    def push(self, frame: Frame) -> None:
        """Makes `frame` the newest, as the session's thread would."""
        self.latest = frame
        self.clock.wall_s, self.clock.mono_s = frame.at_s, frame.mono_s
        self.history.append(frame)
        if self._on_frame is not None:
            self._on_frame(frame)

    def tick(self, seconds: float = 1.0) -> Frame:
        """The newest frame again, `seconds` later."""
        assert self.latest is not None
        frame = replace(
            self.latest,
            seq=self.latest.seq + 1,
            at_s=self.latest.at_s + seconds,
            mono_s=self.latest.mono_s + seconds,
            period_s=self.period_s,
        )
        self.push(frame)
        return frame
