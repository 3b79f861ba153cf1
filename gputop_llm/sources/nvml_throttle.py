"""Why the clocks are lowered: from cumulative counters, so that short bursts between two polls count."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_llm.model.gpu import ThrottleReason
from gputop_llm.sources.nvml_fields import FieldKey, FieldValue

_SW_POWER_CAP: FieldKey = (74, 0)
_SYNC_BOOST: FieldKey = (76, 0)
_SW_THERMAL: FieldKey = (269, 0)
_HW_THERMAL: FieldKey = (270, 0)
_HW_POWER_BRAKE: FieldKey = (271, 0)

_REASONS: tuple[tuple[str, int, FieldKey | None], ...] = (
    ("idle", 0x001, None),
    ("app_clocks", 0x002, None),
    ("sw_power_cap", 0x004, _SW_POWER_CAP),
    ("hw_slowdown", 0x008, None),
    ("sync_boost", 0x010, _SYNC_BOOST),
    ("sw_thermal", 0x020, _SW_THERMAL),
    ("hw_thermal", 0x040, _HW_THERMAL),
    ("hw_power_brake", 0x080, _HW_POWER_BRAKE),
    ("display_clocks", 0x100, None),
)
"""Name, bit of nvmlDeviceGetCurrentClocksEventReasons, cumulative counter in ns."""

_THERMAL_SINCE = (580, 82)
_COSTLY = frozenset({_HW_THERMAL, _HW_POWER_BRAKE})
_COSTLY_S = 3.0
"""These two cost 0.8 ms each on an H200. Being cumulative, they miss nothing when they are read less often."""


def counter_fields(driver: str | None) -> tuple[FieldKey, ...]:
    """The counters that this driver has.

    269–271 mean something else before 580.82 (power smoothing; NVML's headers renumbered them
    twice), so with an older or unknown driver those three reasons come from the bits.
    """
    fields = [_SW_POWER_CAP, _SYNC_BOOST]
    try:
        version = tuple(int(part) for part in (driver or "").split(".")[:2])
    except ValueError:
        version = ()
    if version >= _THERMAL_SINCE:
        fields += [_SW_THERMAL, _HW_THERMAL, _HW_POWER_BRAKE]
    return tuple(fields)


class Throttle:
    """Turns counters (ns) and bits into the list of reasons, tick by tick."""

    def __init__(self) -> None:
        self._last: dict[FieldKey, tuple[int, float]] = {}
        self._shares: dict[FieldKey, float | None] = {}
        self._costly_at_s: float | None = None

    def due(self, fields: tuple[FieldKey, ...], at_s: float) -> tuple[tuple[FieldKey, ...], frozenset[FieldKey]]:
        """Which of the counters to read now, and which keep their last share until a later tick."""
        if self._costly_at_s is not None and at_s - self._costly_at_s < _COSTLY_S and _COSTLY & self._shares.keys():
            return tuple(f for f in fields if f not in _COSTLY), _COSTLY
        # The first share needs two readings; after that they come seldom.
        if _COSTLY & self._last.keys():
            self._costly_at_s = at_s
        return fields, frozenset()

    def update(
        self,
        bits: int | None,
        supported: int | None,
        counters: Mapping[FieldKey, FieldValue],
        at_s: float,
        later: frozenset[FieldKey] = frozenset(),
    ) -> tuple[ThrottleReason, ...] | None:
        """Every reason that can be known now, active or not; None if none can.

        `share_pct` = Δcounter in ns ÷ (elapsed seconds × 10⁹) × 100, from the second reading on.

        Args:
            bits: the reasons that hold at this moment.
            supported: the bits that this GPU can set at all, None if unknown.
            later: counters that were left out of this reading on purpose.
        """
        reasons: list[ThrottleReason] = []
        for name, bit, field in _REASONS:
            now = counters.get(field) if field is not None else None
            share: float | None = None
            if field is not None:
                share = self._shares.get(field) if field in later else self._share(field, now, at_s)
                self._shares[field] = share
            set_now = bits is not None and bool(bits & bit)
            if share is not None:
                reasons.append(ThrottleReason(name, set_now or share > 0.0, share, "counter"))
            elif bits is not None and (supported is None or supported & bit):
                reasons.append(ThrottleReason(name, set_now, None, "bit"))
        return tuple(reasons) or None

    def _share(self, field: FieldKey, now: FieldValue | None, at_s: float) -> float | None:
        last = self._last.get(field)
        if now is None:
            self._last.pop(field, None)
            return None
        self._last[field] = (now.value, at_s)
        if last is None or at_s <= last[1] or now.value < last[0]:
            return None
        return min(100.0, (now.value - last[0]) / (at_s - last[1]) / 1e7)
