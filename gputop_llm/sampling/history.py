"""What happened in the last hour, in bounded memory.

Two stores: frames of the last two minutes, for rules, the older ones with no more than rules look back at; and one
number per second and series for an hour, for charts and "recent past" values.
"""

from __future__ import annotations

import math
import statistics
import threading
from array import array
from collections import deque
from dataclasses import replace

from gputop_llm.model import EngineFrame, EngineWindow, Frame
from gputop_llm.sampling.columns import columns

NAN = math.nan
# Frames that are no older are whole: means of noisy readings go back that far, and what is older is stale.
WHOLE_S = 15.0


class History:
    """Frames and series. Written by one thread, read by any.

    Args:
        points: slots kept per series, one per `step_s`.
        step_s: seconds per slot; frames that come faster share a slot, the newest wins.
        frames_s: how long frames are kept; without raw histograms, whose windows are in the frame already, and
            after `WHOLE_S` without the host's readings, limits, and of windows with the figures of the total only.
        max_series: when there are more, those that ended longest ago make room; where all
            are alive, the newest ones are not kept (`dropped` counts the values lost so).

    The bound: `max_series` × `points` × 4 bytes (14 MiB at the defaults, 4 MiB for
    eight GPUs and four engines, reached after an hour), plus the frames of `frames_s`, at most `MAX_FRAMES`.
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
        # How many of them, the newest ones, are whole.
        self._whole = 0
        # Slots are counted from the first one: a ring is no longer than what there is to keep.
        self._first_slot: int | None = None
        self._series: dict[str, array[float]] = {}
        self._last_seen: dict[str, int] = {}
        self._slot: int | None = None
        self._lock = threading.Lock()

    def append(self, frame: Frame) -> None:
        """Adds the newest frame."""
        with self._lock:
            slot = int(frame.mono_s // self.step_s)
            if self._first_slot is None:
                self._first_slot = slot
            slot -= self._first_slot
            self._keep(frame)
            before = self._slot
            if before is not None and slot > before:
                self._advance(before, slot)
            self._slot = slot
            positions = [s % self.points for s in range(self._first_covered(frame, before, slot), slot + 1)]
            for name, value in columns(frame):
                ring = self._series.get(name)
                if ring is None:
                    if len(self._series) >= self.max_series and not self._make_room(before):
                        self.dropped += 1
                        continue
                    ring = self._series[name] = array("f")
                for position in positions:
                    if position >= len(ring):
                        ring.extend([NAN] * (position + 1 - len(ring)))
                    ring[position] = NAN if value is None else value
                self._last_seen[name] = slot

    def _keep(self, frame: Frame) -> None:
        frames = self._frames
        frames.append(_without_histograms(frame))
        self._whole = min(self._whole + 1, len(frames))
        while frame.mono_s - frames[-self._whole].mono_s > WHOLE_S:
            frames[-self._whole] = _thin(frames[-self._whole])
            self._whole -= 1
        while frame.mono_s - frames[0].mono_s > self.frames_s:
            frames.popleft()
        self._whole = min(self._whole, len(frames))

    def _first_covered(self, frame: Frame, before: int | None, slot: int) -> int:
        """The first slot that the frame speaks for: slots that were only stepped over are no gaps.

        A tick that comes 2 ms late, or a period above `step_s`, leaves slots between two frames empty.
        """
        if before is None:
            return slot
        near = max(2, math.ceil(1.5 * frame.period_s / self.step_s))
        return before + 1 if 0 < slot - before <= min(near, self.points) else slot

    def _advance(self, old: int, new: int) -> None:
        skipped = min(new - old, self.points)
        for position in ((new - back) % self.points for back in range(skipped)):
            for ring in self._series.values():
                if position < len(ring):
                    ring[position] = NAN
        for name in [n for n, seen in self._last_seen.items() if new - seen >= self.points]:
            del self._series[name], self._last_seen[name]

    def _make_room(self, before: int | None) -> bool:
        """Drops the series that ended longest ago, if any has ended before the last frame.

        An engine that restarts again and again has a new key, and so new series, each time.
        """
        oldest = min(self._last_seen, key=self._last_seen.__getitem__)
        if before is None or self._last_seen[oldest] >= before:
            return False
        del self._series[oldest], self._last_seen[oldest]
        return True

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
        """Frames of the newest `seconds`, oldest first (at most `frames_s` are kept)."""
        with self._lock:
            if not self._frames:
                return []
            newest = self._frames[-1].mono_s
            if newest - self._frames[0].mono_s <= seconds:
                return list(self._frames)
            return [f for f in self._frames if newest - f.mono_s <= seconds]

    def _tail(self, name: str, points: int) -> array[float]:
        points = min(points, self.points)
        ring = self._series.get(name)
        if ring is None or self._slot is None:
            return array("f", [NAN]) * points
        end = self._slot % self.points + 1
        newest = _filled(ring[max(0, end - points) : end], min(points, end))
        if end >= points:
            return newest
        older = ring[self.points - (points - end) :]
        return _filled(older, points - end) + newest


def _filled(values: array[float], points: int) -> array[float]:
    """The values, and nothing known up to `points` of them: a ring ends with the last value that it got."""
    return values + array("f", [NAN]) * (points - len(values))


def _thin(frame: Frame) -> Frame:
    """What rules look back at for longer than `WHOLE_S`: GPUs, targets, scrapes, and the figures of whole engines."""
    return replace(
        frame,
        host=replace(frame.host, value=None),
        engines=tuple(_thin_engine(engine) for engine in frame.engines),
    )


def _thin_engine(engine: EngineFrame) -> EngineFrame:
    window = engine.window
    if window is not None:
        total = replace(window.total, latency={}, spec=None, finished_per_s={}, waiting_by_reason={}, missing={})
        window = EngineWindow(total)
    return replace(engine, window=window, limits=None)


def _without_histograms(frame: Frame) -> Frame:
    return replace(frame, engines=tuple(_slim(engine) for engine in frame.engines))


def _slim(engine: EngineFrame) -> EngineFrame:
    reading = engine.scrape.value
    if reading is None:
        return engine
    series = tuple(replace(one, histograms={}) for one in reading.series)
    return replace(engine, scrape=replace(engine.scrape, value=replace(reading, series=series)))
