"""The kept readings by GPU and by engine: moved on from tick to tick, and not made anew."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Any

from gputop_llm.model import EngineFrame, Frame, Gpu, GpuNode

# After so long the history keeps less of a frame (`sampling.history.WHOLE_S`; a test holds the two together).
WHOLE_S = 15.0


class Timeline:
    """The readings of some frames by GPU and by engine, each with the time of its frame, oldest first.

    From one tick to the next almost all frames are the same: it is moved on, and not made anew.
    """

    def __init__(self) -> None:
        self.gpus: dict[int, list[tuple[float, Gpu]]] = {}
        self.engines: dict[str, list[tuple[float, EngineFrame]]] = {}
        self.kept: dict[int, dict[str, dict[float, Any]]] = {}
        # When an engine's counters last began anew. What is marked when the kept time begins was so before that.
        self.restarts: dict[str, float] = {}
        self._newest: Frame | None = None
        self._reading: GpuNode | None = None

    def move(self, frames: Sequence[Frame]) -> Timeline:
        """The same timeline over these frames."""
        if self._newest is None or len(frames) < 2 or frames[-2] is not self._newest:
            self.gpus, self.engines, self.kept, self.restarts, self._reading = {}, {}, {}, {}, None
            new: Sequence[Frame] = frames
        else:
            new = frames[-1:]
            _forget(self.gpus, frames[0].mono_s)
            _forget(self.engines, frames[0].mono_s)
            self.restarts = {key: at for key, at in self.restarts.items() if at > frames[0].mono_s}
            self._follow(frames)
        for frame in new:
            reading = frame.gpus.value
            if reading is not None and reading is not self._reading:
                self._reading = reading
                for gpu in reading.gpus:
                    self.gpus.setdefault(gpu.index, []).append((frame.mono_s, gpu))
            for engine in frame.engines:
                past = self.engines.setdefault(engine.target_key, [])
                if past and _restarted(engine) and not _restarted(past[-1][1]):
                    self.restarts[engine.target_key] = frame.mono_s
                past.append((frame.mono_s, engine))
        self._newest = frames[-1]
        return self

    def _follow(self, frames: Sequence[Frame]) -> None:
        """Takes over what the history has made of engines as their frames grew older: less of each."""
        for frame in reversed(frames[: bisect_left(frames, frames[-1].mono_s - WHOLE_S, key=attrgetter("mono_s"))]):
            known = True
            for engine in frame.engines:
                past = self.engines[engine.target_key]
                at = bisect_left(past, frame.mono_s, key=itemgetter(0))
                known = known and past[at][1] is engine
                past[at] = (frame.mono_s, engine)
            if known:
                return


def _restarted(engine: EngineFrame) -> bool:
    return engine.window is not None and engine.window.total.restarted


def _forget(past: dict[Any, list[tuple[float, Any]]], before: float) -> None:
    for key in [key for key, readings in past.items() if readings[0][0] < before]:
        readings = past[key]
        # One at a tick: not worth a search.
        while readings and readings[0][0] < before:
            del readings[0]
        if not readings:
            del past[key]
