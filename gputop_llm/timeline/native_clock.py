"""From the clock of a native record to the machine's: CUPTI's nanoseconds, or the processor's counter, to realtime.

A record tells the same two moments on four clocks. Between them all clocks are taken to run evenly; CLOCK_MONOTONIC
gives the length, for nobody sets it, and CLOCK_REALTIME at the beginning gives the place, for the ranks of one node
(and, within what NTP keeps, of several) share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gputop_llm.timeline.model import I64

#: 146 years: what lies beyond is damage, and differences within can't overflow.
_MAX_TIME = 1 << 62
_MAX_WINDOW_NS = 3_600 * 10**9
#: Work that was under way as the window opened began before it; buffers are flushed after it closed.
_SLACK_NS = 60 * 10**9
#: A clock of nanoseconds that seems to run faster or slower than this was read late (the thread had lost its core).
_MAX_DRIFT = 1e-3
_NEARLY_NS = 0.05
#: Counts of a processor's clock for a nanosecond: between 100 MHz and 100 GHz.
_RATES = (0.1, 100.0)


class Clocks(NamedTuple):
    """One moment on four clocks: CUPTI's, CLOCK_REALTIME, CLOCK_MONOTONIC (ns), time-stamp counter."""

    cupti: int
    realtime: int
    monotonic: int
    tsc: int


@dataclass(frozen=True, slots=True)
class _Line:
    """A clock that reads `first` as the window opens and counts `rate` times in a nanosecond."""

    first: int
    rate: float
    window_ns: int

    def inside(self, times: Any) -> Any:
        """Which times lie in the window, or near it."""
        before = int(_SLACK_NS * self.rate)
        after = int((self.window_ns + _SLACK_NS) * self.rate)
        low = np.uint64(max(self.first - before, 0))
        return (times >= low) & (times <= np.uint64(min(self.first + after, (1 << 64) - 1)))

    def ns(self, times: Any) -> I64:
        """Nanoseconds since the window opened, of times that lie inside."""
        since: I64 = (times - np.uint64(self.first)).astype(np.int64)
        return since if self.rate == 1.0 else np.rint(since / self.rate).astype(np.int64)


class RecordClock:
    """Turns the times of one record into CLOCK_REALTIME (ns). `warnings` are sentences.

    Args:
        began: the clocks as collection began.
        ended: as it ended; None if the record is cut before.

    Raises:
        ValueError: the clocks can't be of one window.
    """

    def __init__(self, began: Clocks, ended: Clocks | None) -> None:
        self.began, self.ended = began, ended
        self.warnings: list[str] = []
        #: Whether any time was the processor's counter.
        self.counted = False
        #: Rows whose times are of neither clock.
        self.lost = 0
        self._length = ended.monotonic - began.monotonic if ended else 0
        if not 0 < began.realtime < _MAX_TIME or not 0 <= self._length <= _MAX_WINDOW_NS:
            raise ValueError("its clocks make no sense")
        self._cupti = _Line(began.cupti, self._cupti_rate(), self._length or _MAX_WINDOW_NS)
        self._tsc = self._counter()
        if ended and abs(ended.realtime - began.realtime - self._length) > 1_000_000:
            self.warnings.append("the machine's clock was set during the window: ranks may lie apart by that much")

    def window(self) -> tuple[int, int | None]:
        """When collection began and (where known) ended."""
        return self.began.realtime, self.began.realtime + self._length if self.ended else None

    def spans(self, start: Any, end: Any) -> tuple[Any, I64, I64]:
        """Which rows have times that can be, and these rows' starts and ends.

        Args:
            start, end: the rows' times as recorded (uint64).
        """
        plain = self._cupti.inside(start) & self._cupti.inside(end)
        forward = end >= start
        counted = np.zeros(len(start), dtype=bool)
        if self._tsc is not None and not plain.all():
            counted = ~plain & self._tsc.inside(start) & self._tsc.inside(end)
            self.counted |= bool(counted.any())
        good = (plain | counted) & forward
        self.lost += int((~good).sum())
        low, high = (np.zeros(int(good.sum()), dtype=np.int64) for _ in range(2))
        for line, rows in ((self._cupti, plain[good]), (self._tsc, counted[good])):
            if line is not None and rows.any():
                low[rows], high[rows] = line.ns(start[good][rows]), line.ns(end[good][rows])
        return good, low + self.began.realtime, high + self.began.realtime

    def _cupti_rate(self) -> float:
        if not self.ended or not self._length:
            return 1.0
        rate = (self.ended.cupti - self.began.cupti) / self._length
        if abs(rate - 1.0) <= _MAX_DRIFT:
            return rate
        if abs(rate - 1.0) <= _NEARLY_NS:
            apart_ms = abs(rate - 1.0) * self._length / 1e6
            self.warnings.append(f"the clocks were read {apart_ms:.1f} ms apart: ranks may lie apart by that much")
            return 1.0
        if not _RATES[0] <= rate <= _RATES[1]:
            raise ValueError("its clocks make no sense")
        # CUPTI was given another clock and tells that one.
        self.counted = True
        return rate

    def _counter(self) -> _Line | None:
        """The processor's counter; None where its rate isn't known (the record is cut), or there is none."""
        if not self.ended or not self._length:
            return None
        rate = (self.ended.tsc - self.began.tsc) / self._length
        return _Line(self.began.tsc, rate, self._length) if _RATES[0] <= rate <= _RATES[1] else None
