"""NVML's field values: many cumulative counters in one call, and the rates that follow from them.

Field numbers are NVML's ABI and written down here: the constants of nvidia-ml-py name newer fields
only in newer versions, and its 575–580.65 versions number some of them differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gputop_llm.sources.nvml_ask import RETRY_UNSUPPORTED_S, Asker
from gputop_llm.sources.nvml_errors import lasts

FieldKey = tuple[int, int]
"""A field's number and its scope (a link, or ALL_LINKS for their sum; 0 where there is no scope)."""

ALL_LINKS = 0xFFFFFFFF
MEMORY_TEMP: FieldKey = (82, 0)
PCIE_TX_BYTES: FieldKey = (197, 0)
PCIE_RX_BYTES: FieldKey = (198, 0)
NVLINK_TX_KIB: FieldKey = (138, ALL_LINKS)
NVLINK_RX_KIB: FieldKey = (139, ALL_LINKS)
NVLINK_ERRORS: tuple[FieldKey, ...] = ((38, 0), (45, 0), (52, 0), (59, 0))
"""CRC errors of flow control and of data, replays, recoveries; totals over all links."""

_DOUBLE, _UINT, _USHORT, _SIGNED_INT, _SIGNED_LONG = 0, 1, 6, 5, 4


@dataclass(frozen=True, slots=True)
class FieldValue:
    """One answered field; `bits` is the width of its type, at which a counter wraps."""

    value: int
    bits: int


@dataclass(slots=True)
class _Refusal:
    reason: str
    until_s: float


class FieldReader:
    """Reads fields of one GPU in one call; those that it does not have are left out of later calls."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._refused: dict[FieldKey, _Refusal] = {}

    def read(self, wanted: Sequence[FieldKey]) -> dict[FieldKey, FieldValue]:
        """What the driver answered; for the rest see `reason`.

        Raises:
            DriverGone, GpuLost: the answer says so.
        """
        now = self._asker.clock.mono()
        asked = [key for key in wanted if key not in self._refused or now >= self._refused[key].until_s]
        if not asked:
            return {}
        found, failed = self._ask(asked, now)
        if failed and len(asked) > 1:
            # Some drivers refuse the whole batch for one field that they don't know: find out which.
            for key in asked:
                found.update(self._ask([key], now)[0])
        return found

    def reason(self, key: FieldKey) -> str:
        """Why `key` was not in the last answer."""
        refusal = self._refused.get(key)
        return refusal.reason if refusal else "not asked for"

    def _ask(self, keys: list[FieldKey], now: float) -> tuple[dict[FieldKey, FieldValue], bool]:
        """The answers, and whether the call as a whole failed in a way that will last."""
        try:
            items = self._asker.lib.nvmlDeviceGetFieldValues(self._asker.handle, keys)
        except self._asker.failures as error:
            for key in keys:
                self._refuse(key, error, now)
            return {}, lasts(error)
        found: dict[FieldKey, FieldValue] = {}
        for key, item in zip(keys, items, strict=True):
            if item.nvmlReturn == 0:
                found[key] = _value(item)
                self._refused.pop(key, None)
            else:
                self._refuse(key, int(item.nvmlReturn), now)
        return found, False

    def _refuse(self, key: FieldKey, error: Exception | int, now: float) -> None:
        self._refused[key] = _Refusal(self._asker.judge(error), now + (RETRY_UNSUPPORTED_S if lasts(error) else 0.0))


def _value(item: Any) -> FieldValue:
    kind, union = item.valueType, item.value
    if kind == _UINT:
        return FieldValue(int(union.uiVal), 32)
    if kind == _USHORT:
        return FieldValue(int(union.usVal), 16)
    if kind == _SIGNED_INT:
        return FieldValue(int(union.siVal), 32)
    if kind == _SIGNED_LONG:
        return FieldValue(int(union.sllVal), 64)
    if kind == _DOUBLE:
        return FieldValue(int(union.dVal), 64)
    return FieldValue(int(union.ullVal), 64)


NEEDS_TWO = "needs two samples"


class CounterRate:
    """The rate of a cumulative counter between this reading and the one before."""

    def __init__(self) -> None:
        self._last: tuple[FieldValue, float] | None = None

    def update(self, now: FieldValue | None, at_s: float, ceiling_per_s: float | None) -> tuple[float | None, str]:
        """Counts per second since the last reading, or None with the reason.

        Args:
            at_s: when it was read, monotonic.
            ceiling_per_s: what the counter can't exceed; a counter narrower than 64 bits is only
                trusted while it can't have wrapped more than once.
        """
        last, self._last = self._last, None if now is None else (now, at_s)
        if now is None or last is None:
            return None, NEEDS_TWO
        before, elapsed = last[0], at_s - last[1]
        if elapsed <= 0:
            self._last = last
            return None, NEEDS_TWO
        step = now.value - before.value
        if now.bits < 64:
            if ceiling_per_s is None or ceiling_per_s * elapsed >= 2**now.bits:
                return None, f"the driver's counter has {now.bits} bits and may wrap unseen between two readings"
            step %= 2**now.bits
        elif step < 0:
            return None, "the driver's counter started again"
        return step / elapsed, ""
