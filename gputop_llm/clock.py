"""Time as a parameter, so that tests and replays decide what time it is."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall time to show, monotonic time to measure with; both in seconds."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC."""
        ...

    def mono(self) -> float:
        """Seconds since an arbitrary start; never jumps."""
        ...


class SystemClock:
    """The machine's own clock."""

    def wall(self) -> float:
        return time.time()

    def mono(self) -> float:
        return time.monotonic()
