"""Xid error events: the driver's own words on what went wrong with a GPU."""

from __future__ import annotations

import contextlib
import ctypes
from collections import defaultdict, deque
from types import ModuleType
from typing import Any

from gputop_llm.clock import Clock
from gputop_llm.model.gpu import XidEvent
from gputop_llm.sources.nvml_errors import TIMEOUT, GpuLost, code_of, failures, judge

_XID = 0x8  # nvmlEventTypeXidCriticalError
_KEPT = 16
_AT_MOST = 64  # events taken on one tick, so that a storm can't hold the poll


class XidWatch:
    """Collects Xid events of all GPUs; the newest few of each stay, also across a driver reload."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: dict[int, deque[XidEvent]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._lib: ModuleType | None = None
        self._failures: tuple[type[Exception], ...] = ()
        self._set: Any = None
        self._index_of: dict[int | None, int] = {}
        self._reasons: dict[int, str] = {}
        self._reason = "not watched yet"

    def open(self, lib: ModuleType, handles: dict[int, Any]) -> None:
        """Begins to watch these GPUs (index → handle); works for an ordinary user too."""
        self._lib, self._set, self._reasons, self._index_of = lib, None, {}, {}
        self._failures = failures(lib)
        try:
            self._set = lib.nvmlEventSetCreate()
        except self._failures as error:
            self._reason = _reason(error)
            return
        for index, handle in handles.items():
            try:
                lib.nvmlDeviceRegisterEvents(handle, _XID, self._set)
            except self._failures as error:
                self._reasons[index] = _reason(error)
            else:
                self._index_of[_address(handle)] = index

    def poll(self) -> None:
        """Takes what has arrived; never waits.

        Raises:
            DriverGone: the driver as a whole stopped answering.
        """
        if self._lib is None or self._set is None or not self._index_of:
            return
        for _ in range(_AT_MOST):
            try:
                event = self._lib.nvmlEventSetWait_v2(self._set, 0)
            except self._failures as error:
                self._reason = "" if code_of(error) == TIMEOUT else _reason(error)
                return
            index = self._index_of.get(_address(event.device))
            if index is not None and event.eventType == _XID:
                self._events[index].append(XidEvent(self._clock.wall(), int(event.eventData)))

    def events(self, index: int) -> tuple[XidEvent, ...]:
        """The newest events of a GPU, oldest first."""
        return tuple(self._events.get(index, ()))

    def reason(self, index: int) -> str | None:
        """Why events of this GPU can't be known now; None if they can."""
        return self._reasons.get(index) or self._reason or None

    def close(self) -> None:
        """Stops watching; events stay."""
        if self._lib is not None and self._set is not None:
            with contextlib.suppress(*self._failures):
                self._lib.nvmlEventSetFree(self._set)
        self._lib = self._set = None


def _reason(error: Exception) -> str:
    try:
        return judge(error)
    except GpuLost as lost:
        return str(lost)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
