"""Collects what a reader finds and makes the frozen, sorted timeline of it.

Readers append plain Python numbers to `array` columns (8 bytes each), or whole NumPy columns; memory is bounded by the
columns, never by rows of Python objects.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
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


#: What is said of one of several captures.
NO_WORK = "no GPU activity in it, so nothing of its process is in the GPUs' figures"

# Appended rows wait in a small buffer: filling columns many rows at a time is three times as fast.
_BUFFERED = 4096


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
    """The growing columns of one table, filled row by row (`append`) or by whole arrays (`extend`)."""

    def __init__(self, table: type[Any]) -> None:
        self.table = table
        self.names: tuple[str, ...] = tuple(table.__dataclass_fields__)
        self._columns = [array("q") for _ in self.names]
        self._rows: list[tuple[int, ...]] = []
        # Raw values: they grow in place, where a list of arrays would be copied into one in the end.
        self._extended = {name: bytearray() for name in self.names}
        self._length = 0

    def append(self, *row: int) -> None:
        """Adds one row, in the order of the table's fields."""
        self._rows.append(row)
        if len(self._rows) >= _BUFFERED:
            self._flush()

    @property
    def columns(self) -> list[array[int]]:
        """What was appended so far, by field."""
        self._flush()
        return self._columns

    def _flush(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            for column, values in zip(self._columns, zip(*rows, strict=True), strict=True):
                column.extend(values)

    def extend(self, **columns: Any) -> None:
        """Adds rows as one array for each field; a plain number stands for a column full of it.

        Arrays are kept in the type that the field has: what doesn't fit it must have been dropped before.
        """
        length = len(columns["start"])
        for name in self.names:
            value = columns.pop(name)
            piece = np.full(length, value, dtype=_dtype(name)) if isinstance(value, int) else _narrow(name, value)
            if len(piece) != length:
                raise ValueError(f"{len(piece)} values of {name} for {length} rows")
            self._extended[name] += np.ascontiguousarray(piece).data
        if columns:
            raise TypeError(f"no such columns: {', '.join(columns)}")
        self._length += length

    def __len__(self) -> int:
        return len(self._columns[0]) + len(self._rows) + self._length

    def freeze(self) -> Any:
        """The table, sorted by start (stable). The columns are given away: what was collected is gone from here."""
        start = self._take("start")
        order = None if bool((start[1:] >= start[:-1]).all()) else np.argsort(start, kind="stable")
        table = {"start": start}
        for name in self.names:
            # One column at a time: the peak is one copy of one column, not of the table.
            values = table[name] if name == "start" else self._take(name)
            table[name] = _one_for_all(values if order is None else values[order])
        return self.table(**table)

    def _take(self, name: str) -> Any:
        extended = np.frombuffer(self._extended.pop(name), dtype=_dtype(name))
        appended = self.columns[self.names.index(name)]
        if not len(appended):
            return extended
        rows = _narrow(name, np.frombuffer(appended, dtype=np.int64))
        return np.concatenate((extended, rows)) if len(extended) else rows


def _one_for_all(values: Any) -> Any:
    """The column, or one value that stands for every row where all are the same (one device, no graphs, no copies).

    In most captures that is half of the columns.
    """
    if len(values) > 1 and values[0] == values[-1] and bool((values == values[0]).all()):
        return np.broadcast_to(values[:1].copy(), len(values))
    return values


def _dtype(name: str) -> Any:
    return _DTYPES.get(name, np.int32 if name in _SMALL else np.int64)


def _narrow(name: str, values: Any) -> Any:
    return values.astype(_dtype(name), copy=False)


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
        ops = replace(ops, launch=_launches(ops, calls, thread_process))
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


def _launches(ops: DeviceOps, calls: HostCalls, thread_process: Any) -> Any:
    """For each device row the call that issued it, by (process, correlation); the earliest call wins, -1 is none."""
    launch = np.full(len(ops), -1, dtype=np.int64)
    processes = np.unique(ops.process)
    # One process at a time: what this takes for a moment goes by the largest one.
    for process in processes if len(calls) else ():
        issued = calls.correlation > 0
        if len(processes) > 1 or len(thread_process) > 1:
            issued &= (thread_process == process)[calls.thread]
        rows = np.flatnonzero(issued).astype(np.int32)
        own = np.flatnonzero((ops.process == process) & (ops.correlation > 0))
        if not len(rows) or not len(own):
            continue
        keys = calls.correlation[rows]
        if not bool((keys[1:] >= keys[:-1]).all()):
            order = np.argsort(keys, kind="stable")
            keys, rows = keys[order], rows[order]
        wanted = ops.correlation[own]
        position = np.minimum(np.searchsorted(keys, wanted, side="left"), len(keys) - 1)
        hit = keys[position] == wanted
        launch[own[hit]] = rows[position[hit]]
    return launch
