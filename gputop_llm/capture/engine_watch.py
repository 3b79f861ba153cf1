"""What the engine says of itself while it is captured: its token counter and inter-token times, at most twice a second.

From these the verdict tells what the capture cost, and a long window is ended when the tokens stand still.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.model import EngineReading, Frame
from gputop_llm.sources.base import Source

PERIOD_S = 0.5
#: Kept in memory and in the capture's folder: ten minutes.
_MOST = 1200
_HISTOGRAMS = ("itl", "tpot")


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One answer of the engine.

    Args:
        mono_ns: CLOCK_MONOTONIC when the answer had come; `took_ns` before that it was asked for.
        wall_s: the same moment by the wall clock.
        generation_tokens: cumulative, over all models and ranks on the page.
        progress: the sum of those counters that move step by step while requests run; None where there are none.
        running, waiting: requests.
        itl: the cumulative histogram of inter-token times, as {"bounds": …, "counts": …}, seconds; the last bound is
            None for +Inf. Only where all of the page's have the same bounds. None where there is none.
        started_s: when the engine's counters began.
    """

    mono_ns: int
    wall_s: float
    took_ns: int
    generation_tokens: float | None = None
    progress: float | None = None
    running: float | None = None
    waiting: float | None = None
    itl: Mapping[str, Any] | None = field(default=None)
    started_s: float | None = None


def sample_line(sample: EngineSample) -> str:
    """A sample as a line of JSON."""
    return json.dumps(asdict(sample), allow_nan=False, separators=(",", ":"))


def sample_of(reading: EngineReading, mono_ns: int, wall_s: float, took_ns: int) -> EngineSample:
    """What of a reading says how fast the engine goes."""
    return EngineSample(
        mono_ns,
        wall_s,
        took_ns,
        _total(reading, ("generation_tokens",)),
        _total(reading, reading.progress) if reading.progress else None,
        _sum([series.running for series in reading.series]),
        _sum([series.waiting for series in reading.series]),
        _histogram(reading),
        _sum([reading.started_s]),
    )


def samples_in(frames: Sequence[Frame], target_key: str) -> list[EngineSample]:
    """What the engine of a target said in frames, each answer once, oldest first."""
    found: dict[int, EngineSample] = {}
    for scrape in (engine.scrape for frame in frames for engine in frame.engines if engine.target_key == target_key):
        if scrape.value is not None and scrape.at_mono_s is not None and scrape.at_s is not None:
            mono_ns = int(scrape.at_mono_s * 1e9)
            found[mono_ns] = sample_of(scrape.value, mono_ns, scrape.at_s, int((scrape.took_s or 0.0) * 1e9))
    return [found[at] for at in sorted(found)]


class EngineWatch:
    """Asks one engine in a thread of its own.

    Args:
        source: of its readings; closed in the end.
        period_s: between two questions.
    """

    def __init__(self, source: Source[EngineReading], period_s: float = PERIOD_S) -> None:
        self._source = source
        self._period_s = period_s
        self._kept: list[EngineSample] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def samples(self) -> Sequence[EngineSample]:
        """What was said so far, oldest first."""
        with self._lock:
            return tuple(self._kept)

    def close(self) -> None:
        """Ends it; a question that hangs is left behind."""
        self._stop.set()
        self._source.abort()
        self._thread.join(1.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic_ns()
            try:
                reading = self._source.poll()
            except GputopError as failure:
                self.error = failure.sentence()
            else:
                now = time.monotonic_ns()
                self.error = reading.problem
                with self._lock:
                    self._kept.append(sample_of(reading, now, time.time(), now - began))
                    del self._kept[:-_MOST]
            self._stop.wait(max(0.05, self._period_s - (time.monotonic_ns() - began) / 1e9))
        self._source.close()


def _total(reading: EngineReading, names: Sequence[str]) -> float | None:
    return _sum([series.counters.get(name) for series in reading.series for name in names])


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    total = sum(known)
    return total if known and math.isfinite(total) else None


def _histogram(reading: EngineReading) -> dict[str, Any] | None:
    for name in _HISTOGRAMS:
        found = [series.histograms[name] for series in reading.series if name in series.histograms]
        if found and len({one.bounds for one in found}) == 1:
            bounds = [bound if math.isfinite(bound) else None for bound in found[0].bounds]
            counts = [sum(each) for each in zip(*(one.counts for one in found), strict=True)]
            return {"name": name, "bounds": bounds, "counts": counts} if all(map(math.isfinite, counts)) else None
    return None
