"""What changed between two profiles of the same program: more than the noise, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gputop_llm.ncu.brief import micro
from gputop_llm.ncu.figures import Figures
from gputop_llm.printable import printable
from gputop_llm.report.verdict_words import figure

#: Two runs of one binary differ by about so much; with fewer than `_ENOUGH` launches their own spread isn't known.
_LEAST_NOISE = 0.02
_UNKNOWN_NOISE = 0.05
_ENOUGH = 3
#: Shares of a peak that moved by fewer points are left out.
_POINTS = 2.0
#: Clocks are left alone, and move.
_CLOCK_MOVED = 0.02
_SHARES = (
    ("SM", "sm_pct"), ("memory", "memory_pct"), ("DRAM", "dram_pct"), ("L2", "l2_pct"), ("occupancy", "occupancy_pct"),
)  # fmt: skip
_COUNTS = (("registers", "registers"), ("spills", "spills"), ("waves", "waves"))


@dataclass(frozen=True, slots=True)
class Change:
    """One kernel, before and after.

    `time_pct` is how much longer it takes (negative: shorter), `noise_pct` what that may be by itself; `clock` the SM
    clocks where they differ; `moved` the other figures that changed: name, before, after, unit.
    """

    before: Figures
    after: Figures
    time_pct: float | None
    noise_pct: float
    clock: tuple[float, float] | None
    moved: tuple[tuple[str, float | None, float | None, str], ...]

    @property
    def faster(self) -> bool | None:
        """Whether it is, beyond the noise; None where it is neither faster nor slower."""
        if self.time_pct is None or abs(self.time_pct) <= self.noise_pct:
            return None
        return self.time_pct < 0

    def lines(self) -> Iterator[str]:
        """In words, the time first; a line may be wider than a terminal."""
        before, after = micro(self.before.median_ns), micro(self.after.median_ns)
        if self.time_pct is None:
            yield f"since the last run: {before} → {after}"
        else:
            verb = {True: "faster", False: "slower", None: "no change beyond the noise"}[self.faster]
            said = f"{self.time_pct:+.1f} %, noise {self.noise_pct:.1f} %"
            yield f"since the last run: {verb}, {before} → {after} ({said})"
        parts = [f"{name} {figure(old)} → {figure(new)}{unit}" for name, old, new, unit in self.moved]
        if self.before.kind != self.after.kind:
            parts.insert(0, f"{self.before.kind} → {self.after.kind}")
        if self.before.launch != self.after.launch:
            parts.append(f"{self.before.launch or '?'} → {self.after.launch or '?'}")
        if parts:
            yield "  " + " · ".join(parts)
        if self.clock is not None:
            old, new = self.clock
            yield f"  the SM clock was {old / 1e9:.2f} and is {new / 1e9:.2f} GHz: as much of the time may be that"

    def as_object(self) -> dict[str, object]:
        """For JSON."""
        return {
            "kernel": printable(self.after.name),
            "before_us": _us(self.before),
            "after_us": _us(self.after),
            "time_pct": self.time_pct,
            "noise_pct": self.noise_pct,
            "faster": self.faster,
            "class": [self.before.kind, self.after.kind],
            "moved": {name: [old, new] for name, old, new, _ in self.moved},
        }


def changes(before: Sequence[Figures], after: Sequence[Figures]) -> list[Change]:
    """Kernel by kernel, in the order of `after`; those that only one of the two has are left out."""
    left = list(before)
    found = []
    for new in after:
        old = next((one for one in left if (one.name, one.grid, one.block) == (new.name, new.grid, new.block)), None)
        old = old or next((one for one in left if one.name == new.name), None)
        # A kernel that was given another name, where there is only one.
        old = old or (left[0] if len(before) == len(after) == 1 else None)
        if old is not None:
            left.remove(old)
            found.append(_change(old, new))
    return found


def _change(old: Figures, new: Figures) -> Change:
    clock = None
    if old.clock_hz and new.clock_hz and abs(new.clock_hz / old.clock_hz - 1.0) > _CLOCK_MOVED:
        clock = (old.clock_hz, new.clock_hz)
    time = None if not old.median_ns or new.median_ns is None else 100.0 * (new.median_ns / old.median_ns - 1.0)
    noise = max(_noise(old), _noise(new)) + (abs(clock[1] / clock[0] - 1.0) if clock else 0.0)
    return Change(old, new, time, 100.0 * noise, clock, tuple(_moved(old, new)))


def _noise(one: Figures) -> float:
    """Half the range of the launches (of many without the outer tenths), as a part of their median."""
    median_ns, known = one.median_ns, one.durations_ns
    if not median_ns or len(known) < _ENOUGH:
        return _UNKNOWN_NOISE
    outer = len(known) // 10
    return max(_LEAST_NOISE, (known[-1 - outer] - known[outer]) / 2 / median_ns)


def _moved(old: Figures, new: Figures) -> Iterator[tuple[str, float | None, float | None, str]]:
    for name, field in _SHARES:
        was, now = getattr(old, field), getattr(new, field)
        if was is not None and now is not None and abs(now - was) >= _POINTS:
            yield name, was, now, " %"
    for name, field in _COUNTS:
        was, now = getattr(old, field), getattr(new, field)
        if was != now and (was is None or now is None or abs(now - was) > 0.01 * abs(was)):
            yield name, was, now, ""


def _us(one: Figures) -> float | None:
    return None if one.median_ns is None else one.median_ns / 1e3
