"""Which part of a window is in view: zoom, pan, jump; pure arithmetic in ns."""

from __future__ import annotations

#: Closer than this there is nothing to see: kernels take a microsecond and more.
LEAST_NS = 1_000
#: After a jump the place takes this part of the view, at most.
_SHARE = 2


class Viewport:
    """[low, high) within [start, end)."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, max(end, start + 1)
        self.low, self.high = self.start, self.end

    @property
    def whole(self) -> bool:
        """Whether all of the window is in view."""
        return (self.low, self.high) == (self.start, self.end)

    def zoom(self, closer: bool) -> None:
        """Half or twice as much time around the middle."""
        length = self.high - self.low
        self._set((self.low + self.high) // 2, length // 2 if closer else length * 2)

    def pan(self, later: bool) -> None:
        """Moves by a quarter of the view."""
        step = max((self.high - self.low) // 4, 1)
        self._set((self.low + self.high) // 2 + (step if later else -step), self.high - self.low)

    def show(self, start: int, end: int) -> None:
        """Brings a place into the middle, with what is around it."""
        self._set((start + end) // 2, (end - start) * _SHARE)

    def reset(self) -> None:
        """All of the window."""
        self.low, self.high = self.start, self.end

    def _set(self, middle: int, length: int) -> None:
        whole = self.end - self.start
        length = min(max(length, min(LEAST_NS, whole)), whole)
        self.low = min(max(middle - length // 2, self.start), self.end - length)
        self.high = self.low + length
