"""Collects what a reader finds and makes the frozen, sorted timeline of it.

Readers append plain Python numbers to `array` columns (8 bytes each), or whole NumPy columns; memory is bounded by the
columns, never by rows of Python objects.
"""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

from gputop_llm.timeline.model import (
    CpuOps,
    Device,
    DeviceOps,
    HostCalls,
    Origin,
    OsWaits,
    Process,
    Ranges,
    Thread,
    Timeline,
)

_TABLES: dict[str, type[Any]] = {
    "ops": DeviceOps,
    "calls": HostCalls,
    "cpu_ops": CpuOps,
    "ranges": Ranges,
    "os_waits": OsWaits,
}
_DTYPES = {"kind": np.uint8, "copy_kind": np.uint8, "src_memory": np.uint8, "dst_memory": np.uint8}
_SMALL = {"device", "process", "name_id", "thread", "shapes_id"}


class Interner:
    """Strings to small numbers; 0 is the first."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str | None) -> int:
        """The id of a string, -1 for None."""
        if text is None:
            return -1
        return self._ids.setdefault(text, len(self._ids))

    @property
    def strings(self) -> tuple[str, ...]:
        """All strings by id."""
        return tuple(self._ids)


class Columns:
    """The growing columns of one table; `append` takes one row in the order of the table's fields."""

    def __init__(self, table: type[Any]) -> None:
        self.table = table
        self.names: tuple[str, ...] = tuple(table.__dataclass_fields__)
        self.columns = [array("q") for _ in self.names]
        self._appends = [column.append for column in self.columns]

    def append(self, *row: int) -> None:
        """Adds one row."""
        for append, value in zip(self._appends, row, strict=True):
            append(value)

    def __len__(self) -> int:
        return len(self.columns[0])

    def freeze(self) -> Any:
        """The table, sorted by start (stable)."""
        raw = {
            name: np.frombuffer(column, dtype=np.int64) if len(column) else np.empty(0, dtype=np.int64)
            for name, column in zip(self.names, self.columns, strict=True)
        }
        order = np.argsort(raw["start"], kind="stable")
        return self.table(**{name: _narrow(name, values[order]) for name, values in raw.items()})


def _narrow(name: str, values: Any) -> Any:
    return values.astype(_DTYPES.get(name, np.int32 if name in _SMALL else np.int64), copy=False)


class TimelineBuilder:
    """What a reader fills: `ops`, `calls`, `cpu_ops`, `ranges`, `os_waits` (Columns), `intern`, and the lists."""

    def __init__(self) -> None:
        self.intern = Interner()
        self.ops = Columns(DeviceOps)
        self.calls = Columns(HostCalls)
        self.cpu_ops = Columns(CpuOps)
        self.ranges = Columns(Ranges)
        self.os_waits = Columns(OsWaits)
        self.devices: list[Device] = []
        self.processes: list[Process] = []
        self.threads: list[Thread] = []

    def build(self, origin: Origin, start: int, end: int) -> Timeline:
        """The timeline. `launch` is worked out here: by correlation within a process; correlation 0 joins nothing."""
        tables = {name: getattr(self, name).freeze() for name in _TABLES}
        ops, calls = tables["ops"], tables["calls"]
        thread_process = np.array([t.process for t in self.threads] or [-1], dtype=np.int64)
        ops = _with_launch(ops, calls, thread_process)
        return Timeline(
            origin=origin,
            start=start,
            end=end,
            ops=ops,
            calls=calls,
            cpu_ops=tables["cpu_ops"],
            ranges=tables["ranges"],
            os_waits=tables["os_waits"],
            strings=self.intern.strings,
            devices=tuple(self.devices),
            processes=tuple(self.processes),
            threads=tuple(self.threads),
        )


def _with_launch(ops: DeviceOps, calls: HostCalls, thread_process: Any) -> DeviceOps:
    """Joins device rows to the call that issued them, on (process, correlation); the earliest call wins."""
    if not len(ops) or not len(calls):
        return ops
    call_process = thread_process[calls.thread]
    # One sortable key per (process, correlation); processes are few.
    known = calls.correlation > 0
    rows = np.nonzero(known)[0]
    keys = (call_process[rows].astype(np.int64) << 48) ^ calls.correlation[rows]
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    wanted = (ops.process.astype(np.int64) << 48) ^ ops.correlation
    position = np.searchsorted(keys, wanted, side="left")
    inside = np.minimum(position, max(len(keys) - 1, 0))
    hit = (ops.correlation > 0) & (position < len(keys))
    if len(keys):
        hit &= keys[inside] == wanted
    launch = np.where(hit, rows[inside] if len(rows) else -1, -1)
    return DeviceOps(**{**{n: getattr(ops, n) for n in DeviceOps.__dataclass_fields__}, "launch": launch})
