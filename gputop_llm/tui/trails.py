"""History as it is drawn: averages over equal stretches of time, computed only once.

Stretches are aligned to the clock, not to the newest second: an old one never
changes any more, so a chart moves one column per stretch instead of being
redrawn each second.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gputop_llm.model import Frame
from gputop_llm.sampling.history import History

MAX_STRETCHES = 512
# Charts show this much once it is known; before, what there is, so that the first minute is seen at once.
SHOWN_S = 300.0
# "Usual" is the median over this time, looked up again once per refresh time.
USUAL_SLOTS = 600
USUAL_REFRESH_SLOTS = 10
# A chart that is drawn at all is drawn once a second; on a hidden screen it is made anew when that is shown again.
UNUSED_SLOTS = 60

Values = list[float | None]


@dataclass(slots=True)
class _Ring:
    values: deque[float | None]
    newest: int


class Trails:
    """Series of the history cut into stretches, as seen from one frame."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rings: dict[tuple[str, int], _Ring] = {}
        self._usual: dict[str, tuple[int, float | None]] = {}
        self._slot = 0
        self._lag = 0
        self._begun: int | None = None

    def at(self, frame: Frame, newest: Frame | None) -> None:
        """Looks from `frame` on; `newest` is the frame that the history ends with."""
        slot = self._slot_of(frame)
        if slot < self._slot:
            self._rings.clear()
        if self._begun is None:
            self._begun = slot - self._known_slots()
        self._slot = slot
        self._lag = max(0, self._slot_of(newest) - slot) if newest is not None else 0

    def values(self, name: str, count: int, slots: int) -> Values:
        """Means of `count` stretches of `slots` slots each, oldest first; None where nothing is known."""
        count = min(count, MAX_STRETCHES)
        current = self._slot // slots
        ring = self._rings.get((name, slots))
        if ring is None or len(ring.values) < count or current - ring.newest >= len(ring.values):
            self._forget_unused()
            ring = self._rings[(name, slots)] = _Ring(deque(maxlen=MAX_STRETCHES), current)
            ring.values.extend(self._read(name, count, slots))
        else:
            moved = current - ring.newest
            ring.values.pop()
            ring.values.extend(self._read(name, moved + 1, slots))
            ring.newest = current
        values = list(ring.values)
        return values[-count:]

    def _forget_unused(self) -> None:
        """Drops what nobody draws any more: stretches grow for five minutes, each time to rings of their own."""
        self._rings = {
            (name, slots): ring
            for (name, slots), ring in self._rings.items()
            if self._slot - (ring.newest + 1) * slots < UNUSED_SLOTS
        }

    def pairs(self, name: str, cells: int, slots: int) -> Values:
        """Values for `cells` cells that hold two stretches each; the newest cell may be half full.

        A cell always holds the same two, so that it only ever moves as a whole.
        """
        return self.values(name, 2 * cells - 1 + self._slot // slots % 2, slots)

    def stretch(self, count: int, most_s: float = SHOWN_S) -> int:
        """How many slots one of `count` stretches takes, so that they show what is known, up to `most_s`."""
        shown_s = min(most_s, self.known_s)
        return max(1, -int(-shown_s // (max(count, 1) * self._history.step_s)))

    @property
    def known_s(self) -> float:
        """For how long there has been something to show."""
        return (self._slot - (self._begun or 0) + 1) * self._history.step_s

    def begin_mono_s(self, cells: int, slots: int) -> float:
        """When the oldest of `cells` cells of `pairs` begins; a cell takes 2 × `slots` slots."""
        return (self._slot // slots // 2 - cells + 1) * 2 * slots * self._history.step_s

    def usual(self, name: str) -> float | None:
        """The median of a series over the last ten minutes."""
        known = self._usual.get(name)
        if known is None or known[1] is None or self._slot - known[0] >= USUAL_REFRESH_SLOTS:
            known = self._usual[name] = (self._slot, self._history.median(name, USUAL_SLOTS))
        return known[1]

    def span_s(self, count: int, slots: int) -> float:
        """How many seconds `count` stretches cover."""
        return count * slots * self._history.step_s

    def _known_slots(self) -> int:
        """How many slots the history holds already."""
        longest = 0
        for name in self._history.names():
            values = self._history.series(name, int(SHOWN_S / self._history.step_s))
            longest = max(longest, next((len(values) - at for at, v in enumerate(values) if v is not None), 0))
        return longest

    def _slot_of(self, frame: Frame) -> int:
        return int(frame.mono_s // self._history.step_s)

    def _read(self, name: str, count: int, slots: int) -> Values:
        begun = self._slot % slots + 1
        wanted = (count - 1) * slots + begun
        kept = self._history.series(name, wanted + self._lag)[:wanted]
        data: Values = [*([None] * (wanted - len(kept))), *kept]
        cuts = range(wanted - begun, -1, -slots)
        means = [_mean(data[cut : cut + slots]) for cut in cuts]
        means.reverse()
        return means


def _mean(values: Values) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None
