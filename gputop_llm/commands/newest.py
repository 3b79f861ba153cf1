"""The newest frame of a session, handed from its thread to the one that prints or decides."""

from __future__ import annotations

import queue

from gputop_llm.model import Frame


class Newest:
    """Hands the newest frame over; older ones that nobody took are skipped.

    A `SimpleQueue` wakes the reader: it is the one that a signal handler may use.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._frame: Frame | None = None
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def put(self, frame: Frame) -> None:
        """Called from the session's thread."""
        self._frame = frame
        if self._wake.empty():
            self._wake.put(None)

    def stop(self, *_: object) -> None:
        """Also a signal handler."""
        self.stopped = True
        self._wake.put(None)

    def get(self) -> Frame | None:
        """The newest frame; None when it is time to stop."""
        self._wake.get()
        return None if self.stopped else self._frame
