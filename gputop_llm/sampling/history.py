"""What happened in the last hour, in bounded memory.

Two stores: whole frames of the last two minutes, for rules and records; and one
number per second and series for an hour, for charts and "recent past" values.
"""

from __future__ import annotations

import math
import statistics
import threading
from array import array
from collections import deque

from gputop_llm.model import Frame
from gputop_llm.sampling.columns import columns

NAN = math.nan


class History:
    """Frames and series. Written by one thread, read by any.

    Args:
        points: slots kept per series, one per `step_s`.
        step_s: seconds per slot; frames that come faster share a slot, the newest wins.
        frames_s: how long whole frames are kept.
        max_series: series beyond this are not kept (their names are counted in `dropped`).

    The bound: `max_series` × `points` × 4 bytes (14 MiB at the defaults, 4 MiB for
    eight GPUs and four engines), plus the frames of `frames_s`, at most `MAX_FRAMES`.
    """

    MAX_FRAMES = 600

    def __init__(
        self, points: int = 3600, step_s: float = 1.0, frames_s: float = 120.0, max_series: int = 1024
    ) -> None:
        self.points = points
        self.step_s = step_s
        self.frames_s = frames_s
        self.max_series = max_series
        self.dropped = 0
        self._frames: deque[Frame] = deque(maxlen=self.MAX_FRAMES)
        self._series: dict[str, array[float]] = {}
        self._last_seen: dict[str, int] = {}
        self._slot: int | None = None
        self._first_slot = 0
        self._lock = threading.Lock()

    def append(self, frame: Frame) -> None:
        """Adds the newest frame."""
        slot = int(frame.mono_s // self.step_s)
        with self._lock:
            self._frames.append(frame)
            while self._frames and frame.mono_s - self._frames[0].mono_s > self.frames_s:
                self._frames.popleft()
            if self._slot is None:
                self._first_slot = slot
            elif slot > self._slot:
                self._advance(self._slot, slot)
            self._slot = slot
            position = slot % self.points
            for name, value in columns(frame):
                ring = self._series.get(name)
                if ring is None:
                    if len(self._series) >= self.max_series:
                        self.dropped += 1
                        continue
                    ring = self._series[name] = array("f", [NAN]) * self.points
                ring[position] = NAN if value is None else value
                self._last_seen[name] = slot

    def _advance(self, old: int, new: int) -> None:
        skipped = min(new - old, self.points)
        for position in ((new - back) % self.points for back in range(skipped)):
            for ring in self._series.values():
                ring[position] = NAN
        for name in [n for n, seen in self._last_seen.items() if new - seen >= self.points]:
            del self._series[name], self._last_seen[name]

    def names(self) -> tuple[str, ...]:
        """Names of all series that have a value within the kept time."""
        with self._lock:
            return tuple(self._series)

    def series(self, name: str, points: int) -> list[float | None]:
        """The newest `points` slots of a series, oldest first; None where nothing is known."""
        with self._lock:
            values = self._tail(name, points)
        return [None if math.isnan(v) else v for v in values]

    def median(self, name: str, points: int) -> float | None:
        """The median of the known values among the newest `points` slots; None when fewer than three are known."""
        with self._lock:
            values = self._tail(name, points)
        known = [v for v in values if not math.isnan(v)]
        return statistics.median(known) if len(known) >= 3 else None

    def frames(self, seconds: float) -> list[Frame]:
        """Whole frames of the newest `seconds`, oldest first (at most `frames_s` are kept)."""
        with self._lock:
            if not self._frames:
                return []
            newest = self._frames[-1].mono_s
            return [f for f in self._frames if newest - f.mono_s <= seconds]

    def _tail(self, name: str, points: int) -> array[float]:
        points = min(points, self.points)
        ring = self._series.get(name)
        if ring is None or self._slot is None:
            return array("f", [NAN]) * points
        end = self._slot % self.points + 1
        if end >= points:
            return ring[end - points : end]
        return ring[self.points - (points - end) :] + ring[:end]
