"""Delivers notices one after the other on a thread of its own: whoever takes them may hang as long as it likes."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Protocol

from gputop_llm.errors import GputopError
from gputop_llm.notify.notice import Notice

log = logging.getLogger(__name__)

MOST_WAITING = 20
_LOG_EVERY_S = 60.0
_ABORT_S = 0.2


class Delivery(Protocol):
    """A way to hand on a notice."""

    name: str

    def deliver(self, notice: Notice) -> None:
        """Hands it on.

        Raises:
            GputopError: it could not be.
        """
        ...

    def abort(self) -> None:
        """Ends a delivery that is under way in another thread, and all to come."""
        ...


class Outbox:
    """A bounded queue before a delivery. When it is full, the oldest notice is dropped, and the log says so."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._waiting: deque[Notice] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._logged_at: float | None = None
        self._unlogged = 0
        self._thread = threading.Thread(target=self._run, name=f"notify {delivery.name}", daemon=True)
        self._thread.start()

    def put(self, notice: Notice) -> None:
        """Has it delivered soon; returns at once."""
        with self._wake:
            full = len(self._waiting) >= MOST_WAITING
            if full:
                self._waiting.popleft()
            self._waiting.append(notice)
            self._wake.notify()
        if full:
            self._complain(f"{self._delivery.name} is too slow: a notice was dropped")

    def close(self, wait_s: float) -> None:
        """Ends when all is delivered; what takes longer than `wait_s` seconds is aborted."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(wait_s)
        if self._thread.is_alive():
            with self._wake:
                self._waiting.clear()
            self._delivery.abort()
            self._thread.join(_ABORT_S)

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting:
                    if self._closing:
                        return
                    self._wake.wait()
                notice = self._waiting.popleft()
            try:
                self._delivery.deliver(notice)
            except GputopError as failure:
                self._complain(failure.sentence())
            except Exception as failure:  # noqa: BLE001 - the next must go on; a traceback might show an address
                self._complain(f"{self._delivery.name} failed: {type(failure).__name__}")

    def _complain(self, sentence: str) -> None:
        """Into the log, once a minute."""
        now = time.monotonic()
        if self._logged_at is not None and now - self._logged_at < _LOG_EVERY_S:
            self._unlogged += 1
            return
        more = f" (and {self._unlogged} more failures in the last minute)" if self._unlogged else ""
        log.warning("%s%s", sentence, more)
        self._logged_at, self._unlogged = now, 0
