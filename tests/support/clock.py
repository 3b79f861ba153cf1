"""Time that moves only when a test says so."""

from __future__ import annotations


class ManualClock:
    """Wall and monotonic time in seconds, moved by `step`."""

    def __init__(self, wall_s: float = 1_795_961_583.0, mono_s: float = 1_000.0) -> None:
        self._wall_s = wall_s
        self._mono_s = mono_s

    def step(self, seconds: float) -> None:
        self._wall_s += seconds
        self._mono_s += seconds

    def wall(self) -> float:
        return self._wall_s

    def mono(self) -> float:
        return self._mono_s
