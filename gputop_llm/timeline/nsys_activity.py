"""The rows of an Nsight Systems export, moved into the timeline's columns: device work, API calls, OS waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gputop_llm.errors import GputopError
from gputop_llm.timeline import nsys_schema as schema
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.launch_shape import pack
from gputop_llm.timeline.model import I32, I64, U8, Kind
from gputop_llm.timeline.nsys_columns import Column
from gputop_llm.timeline.nsys_db import NsysDb
from gputop_llm.timeline.nsys_ids import NsysIds, translated
from gputop_llm.timeline.titles import copy_title, memset_title
from gputop_llm.timeline.unpack import shown

#: 146 years in ns (times may be UTC): what lies beyond is damage, and differences within can't overflow.
_MAX_TIME = 1 << 62
_MAX_DEVICE = 1 << 16


class NsysActivity:
    """Moves one export's rows. `shift` is added to every time; `device_number` maps (process row, CUDA ordinal)."""

    def __init__(
        self, db: NsysDb, ids: NsysIds, builder: TimelineBuilder, shift: int, device_number: Callable[[int, int], int]
    ) -> None:
        self._db, self._ids, self._builder = db, ids, builder
        self._shift = shift
        self._device_number = device_number
        #: Bounds of what was kept, in file time.
        self.device_span: tuple[int, int] | None = None
        self.call_span: tuple[int, int] | None = None
        #: Rows in the timeline's processes that have work on a device.
        self.workers: set[int] = set()
        self.graph_rows = 0
        self.node_rows = 0
        self.graph_launches = 0

    def device_work(self) -> None:
        """Kernels, copies, memsets, graph replays."""
        for table, kind in (
            (schema.KERNEL, Kind.KERNEL),
            (schema.MEMCPY, Kind.COPY),
            (schema.MEMSET, Kind.MEMSET),
            (schema.GRAPH_TRACE, Kind.GRAPH),
        ):
            if table in self._db.tables:
                self._need(table, "start", "end", "deviceId", "streamId")
                self._device_table(table, kind)

    def _device_table(self, table: str, kind: Kind) -> None:
        def column(name: str, default: int | None = None) -> Column:
            return schema.column(self._db, table, name, default)

        names = ("start", "end", "deviceId", "streamId")
        columns = [column(name) for name in names] + [
            column("globalPid", 0),
            column("correlationId", 0),
            column("graphNodeId", 0),
            column("graphId", 0),
            column("bytes", 0),
            *(column(prefix + axis, 0) for prefix in ("grid", "block") for axis in "XYZ"),
        ]
        if kind is Kind.KERNEL:
            columns.append(self._kernel_name(table))
        elif kind is Kind.COPY:
            columns += [column("copyKind", 255), column("srcKind", 255), column("dstKind", 255)]
        elif kind is Kind.MEMSET:
            columns.append(column("memKind", 255))
        lookups = (schema.copy_kinds(self._db), schema.memory_kinds(self._db))
        for chunk, _ in self._db.chunks(table, columns):
            rows = kept(self._db, table, chunk, device=True)
            if not len(rows[0]):
                continue
            start, end, device, stream, pid, correlation, node, graph, size, *more = rows
            grid, block, rest = pack(*more[:3]), pack(*more[3:6]), more[6:]
            self.device_span = _wider(self.device_span, start, end)
            process = self._ids.process_rows(pid)
            self.workers.update(np.unique(process).tolist())
            number = self._numbers(process, device)
            name, codes = self._described(kind, graph, rest, lookups)
            node, graph = self._graphs(kind, node, graph)
            self._builder.ops.extend(
                start=start + self._shift,
                end=end + self._shift,
                kind=int(kind),
                device=number,
                stream=stream,
                process=process,
                name_id=name,
                correlation=correlation,
                launch=-1,
                graph=graph,
                graph_node=node,
                bytes=np.maximum(size, 0),
                copy_kind=codes[0],
                src_memory=codes[1],
                dst_memory=codes[2],
                grid=grid,
                block=block,
            )

    def _described(self, kind: Kind, graph: I64, rest: list[I64], lookups: tuple[U8, U8]) -> tuple[I32, Any]:
        """Names, and the codes [copy kind, source memory, target memory] of each row."""
        copy_kinds, memory = lookups
        codes = np.zeros((3, len(graph)), dtype=np.uint8)
        if kind is Kind.KERNEL:
            return self._ids.name_ids(rest[0]), codes
        if kind is Kind.GRAPH:
            return translated(graph, lambda number: self._builder.intern(f"CUDA graph {number}")), codes
        if kind is Kind.COPY:
            codes[0], codes[1] = copy_kinds[_byte(rest[0])], memory[_byte(rest[1])]
        codes[2] = memory[_byte(rest[-1])]
        title = copy_title if kind is Kind.COPY else memset_title
        kinds, sources, targets = codes.astype(np.int64)
        packed = kinds << 16 | sources << 8 | targets
        return translated(packed, lambda c: self._builder.intern(title(c >> 16, c >> 8 & 255, c & 255))), codes

    def _graphs(self, kind: Kind, node: I64, graph: I64) -> tuple[I64, I64]:
        """Graph node and graph of each row, -1 for none."""
        if kind is Kind.GRAPH:
            self.graph_rows += len(graph)
            return np.full(len(graph), -1, dtype=np.int64), np.maximum(graph, 0)
        inside = node > 0
        self.node_rows += int(inside.sum())
        # Before 2025.5 there is no graphId: the upper half of a node's id is its graph's.
        return np.where(inside, node, -1), np.where(graph > 0, graph, np.where(inside, node >> 32, -1))

    def _kernel_name(self, table: str) -> Column:
        names = ("demangledName", "shortName", "mangledName")
        return Column(tuple(name for name in names if self._db.has(table, name)), -1)

    def _numbers(self, process: I32, device: I64) -> I32:
        return translated(
            process.astype(np.int64) << 16 | device, lambda both: self._device_number(both >> 16, both & 0xFFFF)
        )

    def calls(self) -> None:
        """API calls, runtime and driver."""
        table = schema.RUNTIME
        columns = [schema.column(self._db, table, name) for name in ("start", "end", "globalTid", "nameId")]
        columns.append(schema.column(self._db, table, "correlationId", 0))
        graph_launches = [self._builder.intern(name) for name in ("cudaGraphLaunch", "cuGraphLaunch")]
        for chunk, _ in self._db.chunks(table, columns):
            start, end, tid, name_id, correlation = kept(self._db, table, chunk)
            self.call_span = _wider(self.call_span, start, end)
            name = self._ids.name_ids(name_id, schema.api_name)
            self.graph_launches += int(np.isin(name, graph_launches).sum())
            self._builder.calls.extend(
                start=start + self._shift,
                end=end + self._shift,
                name_id=name,
                thread=self._ids.thread_rows(tid),
                correlation=correlation,
            )

    def os_waits(self) -> None:
        """Calls into the operating system; those inside of another are left to the outer one."""
        table = schema.OSRT
        columns = [schema.column(self._db, table, name) for name in ("start", "end", "globalTid", "nameId")]
        columns.append(schema.column(self._db, table, "nestingLevel", 0))
        for chunk, _ in self._db.chunks(table, columns):
            outer = chunk[-1] == 0
            start, end, tid, name = kept(self._db, table, [column[outer] for column in chunk[:-1]])
            self._waits(start, end, self._ids.name_ids(name), self._ids.thread_rows(tid))

    def descheduled(self) -> None:
        """The times in which threads that call CUDA were off the CPU, from the scheduler's switches."""
        table = schema.SCHED
        columns = [schema.column(self._db, table, name) for name in ("start", "isSchedIn", "globalTid")]
        known = np.array(sorted(t - (1 << 64) if t >> 63 else t for t in self._ids.threads), dtype=np.int64)
        kept = [np.stack(chunk)[:, np.isin(chunk[2], known)] for chunk, _ in self._db.chunks(table, columns)]
        if not kept:
            return
        rows = np.concatenate(kept, axis=1)
        time, entered, tid = rows[:, np.lexsort((rows[0], rows[2]))]
        off = np.flatnonzero((entered[:-1] == 0) & (entered[1:] != 0) & (tid[:-1] == tid[1:]))
        name = np.full(len(off), self._builder.intern("descheduled"), dtype=np.int32)
        self._waits(time[off], time[off + 1], name, self._ids.thread_rows(tid[off]))

    def _waits(self, start: I64, end: I64, name: I32, thread: I32) -> None:
        # Those without length are marks ("profiling started").
        real = end > start
        self._builder.os_waits.extend(
            start=start[real] + self._shift, end=end[real] + self._shift, name_id=name[real], thread=thread[real]
        )

    def _need(self, table: str, *names: str) -> None:
        lacking = sorted(set(names) - self._db.columns(table))
        if lacking:
            raise GputopError(
                f"cannot read {shown(self._db.label)}",
                f"its table {table} has no column {', '.join(lacking)}, which is needed",
                "export it again with the nsys that took it",
            )


def kept(db: NsysDb, table: str, chunk: list[I64], device: bool = False) -> list[I64]:
    """The rows of a piece (start and end first, for device work the device third) that can be; others are counted."""
    start, end = chunk[0], chunk[1]
    sane = (np.minimum(start, end) > -_MAX_TIME) & (np.maximum(start, end) < _MAX_TIME)
    forward = end >= start
    if device:
        sane &= (chunk[2] >= 0) & (chunk[2] < _MAX_DEVICE)
        # The recorder's "never ended": the end is 0, whatever the start.
        forward &= end != 0
    good = sane & forward
    if good.all():
        return chunk
    db.skipped[table, "times or devices that cannot be"] += int((~sane).sum())
    db.skipped[table, "an end before the start, or none"] += int((sane & ~forward).sum())
    return [column[good] for column in chunk]


def _wider(span: tuple[int, int] | None, start: I64, end: I64) -> tuple[int, int] | None:
    if not len(start):
        return span
    first, last = int(start.min()), int(end.max())
    return (first, last) if span is None else (min(span[0], first), max(span[1], last))


def _byte(values: I64) -> I64:
    """Codes as positions in a table of 256, of which the last is "unknown"."""
    return np.where((values >= 0) & (values < 255), values, 255)
