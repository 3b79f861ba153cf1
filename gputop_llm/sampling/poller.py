"""One daemon thread per source: polls on its own period and keeps the last good value.

A source that hangs, fails or raises anything harms nobody else: the frame
shows its last good value with its age and the reason.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from gputop_llm.clock import Clock
from gputop_llm.errors import GputopError
from gputop_llm.model import Part
from gputop_llm.sources.base import Source
from gputop_llm.units import seconds

T = TypeVar("T")

log = logging.getLogger(__name__)

# A poll may use at most a fifth of the time of whoever answers it.
MAX_DUTY = 0.2
MAX_BACKOFF_S = 30.0
# After failures in a row the period doubles up to here; a restarted engine is seen again within this time.
MAX_FAILING_PERIOD_S = 5.0
# The second poll comes early: rates need two, and nobody likes a second of dashes.
SECOND_POLL_S = 0.3


class Poller(Generic[T]):
    """Polls one source until stopped; `part()` may be called from any thread.

    Args:
        source: what to poll; closed by `stop()`.
        period_s: the wish; longer while the source is slow or failing.
        clock: for ages and durations.
        on_poll: called after each poll, from the polling thread, with the value (None when it failed).
    """

    def __init__(
        self,
        source: Source[T],
        period_s: float,
        clock: Clock,
        on_poll: Callable[[T | None], None] | None = None,
    ) -> None:
        self.source = source
        self.clock = clock
        self._period_s = period_s
        self._on_poll = on_poll
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = False
        self._part: Part[T] = Part(period_s=period_s)
        self._polling_since: float | None = clock.mono()
        self._aborted = False
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"poll {source.name}", daemon=True)

    def start(self) -> None:
        """Starts polling at once."""
        self._thread.start()

    def set_period(self, period_s: float) -> None:
        """Changes the wish; the next poll obeys it."""
        self._period_s = period_s
        self._wake.set()

    def stop(self, wait_s: float = 1.0) -> None:
        """Ends polling. A poll that hangs is aborted and left behind; it is a daemon's problem."""
        self._stopping = True
        self._wake.set()
        self.source.abort()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(wait_s)
        if not self._thread.is_alive():
            self.source.close()

    def part(self) -> Part[T]:
        """The newest state, aged to now; also aborts a poll that is over its deadline."""
        now = self.clock.mono()
        with self._lock:
            part = self._part.aged(now)
            since = self._polling_since
            overdue = since is not None and now - since > self.source.deadline_s
            abort_now = overdue and not self._aborted
            self._aborted = self._aborted or abort_now
        if abort_now:
            self.source.abort()
        if overdue and since is not None:
            waiting = f"{self.source.name} has not answered for {seconds(now - since)}"
            return replace(part, error=waiting)
        return part

    def _run(self) -> None:
        while not self._stopping:
            began = self.clock.mono()
            self._poll_once()
            self._wake.wait(max(0.0, began + self._effective_period() - self.clock.mono()))
            self._wake.clear()

    def _poll_once(self) -> None:
        started = self.clock.mono()
        with self._lock:
            self._polling_since, self._aborted = started, False
        value: T | None = None
        error: str | None = None
        try:
            value = self.source.poll()
        except GputopError as failure:
            error = failure.sentence()
        except Exception as failure:  # a bug in one source must not stop the others
            log.exception("%s failed", self.source.name)
            error = f"{self.source.name} failed: {type(failure).__name__}: {failure} (the log has the details)"
        ended = self.clock.mono()
        self._failures = 0 if error is None else self._failures + 1
        with self._lock:
            self._polling_since = None
            old = self._part
            new = replace(old, took_s=ended - started, error=error, polls=old.polls + 1)
            if error is None:
                new = replace(new, value=value, at_s=self.clock.wall(), at_mono_s=ended)
            self._part = new
            self._part = replace(new, period_s=self._effective_period())
        if self._on_poll is not None and not self._stopping:
            self._on_poll(value)

    def _effective_period(self) -> float:
        part = self._part
        if part.polls == 1 and part.error is None:
            return min(SECOND_POLL_S, self._period_s)
        slow = min((part.took_s or 0.0) / MAX_DUTY, MAX_BACKOFF_S)
        period = max(self._period_s, slow)
        if self._failures > 2:
            doubled = self._period_s * 2.0 ** min(self._failures - 2, 8)
            period = max(period, min(doubled, MAX_FAILING_PERIOD_S))
        return period
