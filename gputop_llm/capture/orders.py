"""What the worker is told by its standard input; the end of that means: cancel."""

from __future__ import annotations

import json
import threading
from typing import IO, Any

from gputop_llm.redact_argv import redact_record

#: A line that is longer is no order; a frame of 64 processes has some 100 KB.
_MOST_LINE = 4 << 20
_MOST_FRAMES = 600
_MOST_FRAMES_BYTES = 64 << 20


class Orders:
    """Reads orders in a thread of its own.

    Args:
        pipe: where they come from.

    `cancelled` is set when the other side has closed or died.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._first: dict[str, Any] | None = None
        self._told = threading.Event()
        self._frames: list[str] = []
        self._frames_bytes = 0
        self._lock = threading.Lock()
        self.cancelled = threading.Event()
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def first(self, within_s: float) -> dict[str, Any] | None:
        """The first order, which names the plan; None when there is none in time."""
        self._told.wait(within_s)
        return self._first

    def frames(self) -> tuple[str, ...]:
        """The frames that were handed over, oldest first; each a line of JSON without secrets."""
        with self._lock:
            return tuple(self._frames)

    def _read(self) -> None:
        try:
            while line := self._pipe.readline(_MOST_LINE):
                self._take(line)
        except (OSError, ValueError):
            pass
        self.cancelled.set()
        self._told.set()

    def _take(self, line: bytes) -> None:
        if line.startswith(b'{"frame":') and line.endswith(b"}\n"):
            try:
                frame = _public(line[len(b'{"frame":') : -2])
            except (ValueError, RecursionError):
                return
            with self._lock:
                if len(self._frames) < _MOST_FRAMES and self._frames_bytes + len(frame) <= _MOST_FRAMES_BYTES:
                    self._frames.append(frame)
                    self._frames_bytes += len(frame)
            return
        try:
            order = json.loads(line)
        except ValueError:
            return
        if self._first is None and isinstance(order, dict):
            self._first = order
            self._told.set()


def _public(frame: bytes) -> str:
    """Whoever handed it over should have taken the secrets out, and may not have."""
    return json.dumps(redact_record(json.loads(frame)), separators=(",", ":"), allow_nan=False)
