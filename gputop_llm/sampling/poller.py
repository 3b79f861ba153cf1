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
from gputop_llm.sampling.sharing import shared
from gputop_llm.sources.base import Source
from gputop_llm.units import seconds

T = TypeVar("T")

log = logging.getLogger(__name__)

# A poll may use at most a fifth of the time of whoever answers it.
MAX_DUTY = 0.2
MAX_BACKOFF_S = 30.0
# After failures in a row the period doubles up to here; a restarted engine is seen again within this time.
MAX_FAILING_PERIOD_S = 5.0
# The poll after the first one (and after `hurry`) comes early: rates need two, and nobody likes a second of dashes.
SECOND_POLL_S = 0.3


class Poller(Generic[T]):
    """Polls one source until stopped; `part()` may be called from any thread.

    Args:
        source: what to poll; closed when polling has ended.
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
        self._short_waits = 1
        self._thread = threading.Thread(target=self._run, name=f"poll {source.name}", daemon=True)

    def start(self) -> None:
        """Starts polling at once."""
        self._thread.start()

    def set_period(self, period_s: float) -> None:
        """Changes the wish; the wait for the next poll is cut or stretched to it."""
        self._period_s = period_s
        self._wake.set()

    def hurry(self) -> None:
        """Polls early twice, for a source that has something new to look at: rates need two readings of it."""
        with self._lock:
            self._short_waits = 2
        self._wake.set()

    def ask_to_stop(self) -> None:
        """Ends polling without waiting for the end; a poll that is under way is aborted."""
        self._stopping = True
        self._wake.set()
        self._abort()

    def stop(self, wait_s: float = 1.0) -> None:
        """Ends polling and waits for it; a poll that hangs is left behind (its thread is a daemon)."""
        self.ask_to_stop()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(wait_s)
        if self._thread.ident is None:
            self._close()

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
            self._abort()
        if overdue and since is not None:
            waiting = f"{self.source.name} has not answered for {seconds(now - since)}"
            return replace(part, error=waiting)
        return part

    def _abort(self) -> None:
        try:
            self.source.abort()
        except Exception:  # whoever asks for a part must get one
            log.exception("%s could not be aborted", self.source.name)

    def _run(self) -> None:
        while not self._stopping:
            began = self.clock.mono()
            self._poll_once()
            self._rest(began)
        self._close()

    def _close(self) -> None:
        try:
            self.source.close()
        except Exception:  # nobody is left to be told
            log.exception("%s could not be closed", self.source.name)

    def _rest(self, began: float) -> None:
        ended = self.clock.mono()
        # However long a poll took, its source gets half of the time for itself.
        earliest = ended + min(ended - began, MAX_BACKOFF_S)
        while not self._stopping:
            remaining = max(began + self._wait_s(), earliest) - self.clock.mono()
            if remaining <= 0:
                break
            self._wake.wait(remaining)
            self._wake.clear()
        with self._lock:
            self._short_waits = max(0, self._short_waits - 1)

    def _poll_once(self) -> None:
        started = self.clock.mono()
        with self._lock:
            self._polling_since, self._aborted = started, False
        value: T | None = None
        error: str | None = None
        try:
            value = shared(self.source.poll(), self._part.value)
        except GputopError as failure:
            error = failure.sentence()
        except Exception as failure:  # a bug in one source must not stop the others
            log.exception("%s failed", self.source.name)
            error = self._bug(failure)
        ended = self.clock.mono()
        self._failures = 0 if error is None else self._failures + 1
        with self._lock:
            self._polling_since = None
            old = self._part
            new = replace(old, took_s=ended - started, error=error, polls=old.polls + 1)
            if error is None:
                new = replace(new, value=value, at_s=self.clock.wall(), at_mono_s=ended)
            self._part = new
            self._part = replace(new, period_s=self._steady_period())
        if self._on_poll is None or self._stopping:
            return
        try:
            self._on_poll(value)
        except Exception as failure:  # as above: what is made of the reading may have a bug too
            log.exception("a reading of %s could not be used", self.source.name)
            with self._lock:
                self._part = replace(self._part, error=self._bug(failure))

    def _bug(self, failure: Exception) -> str:
        return f"{self.source.name} failed: {type(failure).__name__}: {failure} (the log has the details)"

    def _slow_period(self) -> float:
        return min((self._part.took_s or 0.0) / MAX_DUTY, MAX_BACKOFF_S)

    def _steady_period(self) -> float:
        period = max(self._period_s, self._slow_period())
        if self._failures > 2:
            doubled = self._period_s * 2.0 ** min(self._failures - 2, 8)
            period = max(period, min(doubled, MAX_FAILING_PERIOD_S))
        return period

    def _wait_s(self) -> float:
        if self._short_waits and not self._failures:
            return max(min(SECOND_POLL_S, self._period_s), self._slow_period())
        return self._steady_period()
