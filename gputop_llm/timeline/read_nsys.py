"""Reads captures of Nsight Systems (schemas of 2022.4 to 2026.2, and newer with a note) into a timeline.

Several files (one for each rank) become one timeline, joined by the UTC time at which each recording began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.timeline import nsys_facts
from gputop_llm.timeline import nsys_schema as schema
from gputop_llm.timeline.builder import NO_WORK, TimelineBuilder
from gputop_llm.timeline.model import GpuMetrics, Origin, Timeline
from gputop_llm.timeline.nsys_activity import NsysActivity
from gputop_llm.timeline.nsys_db import MAX_ROWS, NsysDb, too_many_rows
from gputop_llm.timeline.nsys_export import sqlite_export
from gputop_llm.timeline.nsys_gpus import NsysGpus
from gputop_llm.timeline.nsys_ids import NsysIds
from gputop_llm.timeline.nsys_metrics import gpu_metrics
from gputop_llm.timeline.nsys_nvtx import NsysNvtx
from gputop_llm.timeline.unpack import shown

_DEVICE_TABLES = (schema.KERNEL, schema.MEMCPY, schema.MEMSET, schema.GRAPH_TRACE)
#: Tables that may lack columns without harm to the rest: what then can't be known, and which columns it takes.
_HOST_NEEDS = {
    schema.RUNTIME: ("calls", ("start", "end", "globalTid", "nameId")),
    schema.NVTX: ("ranges", ("start", "end", "globalTid")),
    schema.OSRT: ("os_waits", ("start", "end", "globalTid", "nameId")),
    schema.SCHED: ("os_waits", ("start", "isSchedIn", "globalTid")),
}
_NOT_RECORDED = {
    "calls": "the capture has no CUDA API rows",
    "ranges": "the capture has no NVTX ranges",
    "os_waits": "the OS runtime was not traced (--trace=osrt)",
}
#: The profiler's own work is worth a word from this share of the window on.
_OVERHEAD_SHARE = 0.001


def read_nsys(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Timeline:
    """One timeline of one or several captures: SQLite exports or reports (.nsys-rep), plain or compressed (.xz, .gz).

    `progress` gets the share that is done, 0 to 1. A file without GPU work still gives a timeline, with no ops and the
    reason in `origin.missing["device_activity"]`.

    Raises:
        GputopError: a file can't be read, is no export, lacks a needed column, or is too large; files share no moment
            or no clock; or `cancelled` said yes.
    """
    stop = cancelled or (lambda: False)
    builder = TimelineBuilder()
    gpus = NsysGpus()
    files: list[_File] = []
    for position, path in enumerate(paths):

        def share(done: float, position: int = position) -> None:
            if progress is not None:
                progress((position + done) / len(paths))

        with sqlite_export(path, share, stop) as (plain, spent), NsysDb(plain, path, stop) as db:
            files.append(_File(db, builder, gpus, files[0].facts.utc_ns if files else None))
            files[-1].read(lambda done, share=share, spent=spent: share(spent + (1 - spent) * done))  # type: ignore[misc]
    return _joined(files, builder, gpus)


class _File:
    """One export on its way into the timeline."""

    def __init__(self, db: NsysDb, builder: TimelineBuilder, gpus: NsysGpus, first_utc_ns: int | None) -> None:
        if not nsys_facts.is_export(db):
            raise GputopError(
                f"cannot read {shown(db.label)}",
                "it is a SQLite file, but not an export of Nsight Systems",
                "give the .sqlite that nsys export wrote",
            )
        self.db, self.builder = db, builder
        self.facts = nsys_facts.read_facts(db)
        utc = self.facts.utc_ns
        self.on_clock = first_utc_ns is None or utc is not None
        self.shift = utc - first_utc_ns if utc is not None and first_utc_ns is not None else 0
        self.ids = NsysIds(db, builder)
        self.gpus = gpus.of_file(self.facts, builder.processes)
        self.activity = NsysActivity(db, self.ids, builder, self.shift, self.gpus.number)
        self.missing: dict[str, str] = {"cpu_ops": "Nsight Systems records framework operators only under emit_nvtx"}
        self.warnings = list(self.facts.warnings)
        self.metrics: tuple[GpuMetrics, ...] = ()
        self.window = (0, 0)
        self.from_record = False

    def read(self, share: Callable[[float], None]) -> None:
        """Moves all rows."""
        expected = sum(self.db.estimated_rows(table) for table in (*_DEVICE_TABLES, *_HOST_NEEDS))
        # A row takes 8 bytes at the very least; what claims more is damage, and is met when it is read.
        if MAX_ROWS < expected < self.db.size_bytes / 8:
            raise too_many_rows(self.db.label, expected)
        self.db.on_rows = lambda: share(min(self.db.rows_read / max(expected, 1), 1.0))
        activity = self.activity
        activity.device_work()
        if self._can_read(schema.RUNTIME):
            activity.calls()
        self._find_window()
        if self._can_read(schema.NVTX):
            nvtx = NsysNvtx(self.db, self.ids, self.builder, self.shift)
            nvtx.ranges(self.window[1])
            if nvtx.operators:
                del self.missing["cpu_ops"]
        if self._can_read(schema.OSRT):
            activity.os_waits()
        if self._can_read(schema.SCHED):
            activity.descheduled()
            self.missing.pop("os_waits", None)
        self.metrics = gpu_metrics(self.db, self.shift)
        self._find_missing()
        self._find_warnings()
        self._give_rank()
        share(1.0)

    def _can_read(self, table: str) -> bool:
        key, columns = _HOST_NEEDS[table]
        lacking = sorted(set(columns) - self.db.columns(table))
        if not lacking:
            return True
        if table in self.db.tables:
            self.missing[key] = f"the table {table} has no column {', '.join(lacking)}"
        elif table != schema.SCHED:
            self.missing[key] = _NOT_RECORDED[key]
        return False

    def _find_window(self) -> None:
        """The recorded window, else from the first to the last work on a device (without any: API call)."""
        recorded, seen = self.facts.window, self.activity.device_span or self.activity.call_span
        if recorded is not None and seen is not None and not (seen[0] < recorded[1] and seen[1] > recorded[0]):
            self.warnings.append("the recorded window holds none of the events, so it was not used")
            recorded = None
        self.from_record = recorded is not None
        self.window = recorded or seen or (0, 0)

    def _find_missing(self) -> None:
        activity, missing = self.activity, self.missing
        if activity.device_span is None:
            missing["device_activity"] = nsys_facts.why_no_work(self.db, self.facts.diagnostics)
        elif not self.db.has(schema.KERNEL, "globalPid") and schema.KERNEL in self.db.tables:
            missing["launches"] = "kernels do not tell their process"
        if "calls" in missing:
            missing["launches"] = missing["calls"]
        if schema.KERNEL in self.db.tables and not self.db.has(schema.KERNEL, "graphNodeId"):
            missing["graph_nodes"] = f"the table {schema.KERNEL} has no column graphNodeId"
        if not self.facts.gpus:
            missing["device_names"] = "the capture has no table of GPUs"
        if activity.graph_launches and not activity.graph_rows and not activity.node_rows:
            missing["graph_replays"] = (
                f"{activity.graph_launches:,} CUDA graphs were launched, and none of their work is in this export"
                f" ({self.facts.tool or 'an old nsys'}): the GPU did more than what is seen here"
            )

    def _find_warnings(self) -> None:
        start, end = self.window
        spent = nsys_facts.profiler_time_ns(self.db, self.window)
        if spent > _OVERHEAD_SHARE * (end - start):
            share = f"{100 * spent / (end - start):.1f} %"
            self.warnings.append(
                f"the profiler's own work on the host took {spent / 1e6:.1f} ms of the window ({share})"
            )
        if self.gpus.ambiguous:
            shared = ", ".join(map(str, sorted(self.gpus.ambiguous)))
            self.warnings.append(
                f"several processes name a GPU {shared}, and the capture does not tell whether that is the same one"
            )
        for (table, why), rows in self.db.skipped.items():
            if rows:
                self.warnings.append(f"{rows:,} rows of {table} were left out: {why}")

    def _give_rank(self) -> None:
        workers, rank = self.activity.workers, self.facts.rank
        if rank is not None and len(workers) == 1:
            (row,) = workers
            self.builder.processes[row] = replace(self.builder.processes[row], rank=rank)


def _joined(files: Sequence[_File], builder: TimelineBuilder, gpus: NsysGpus) -> Timeline:
    spans = [(file.window[0] + file.shift, file.window[1] + file.shift) for file in files]
    start, end = max(span[0] for span in spans), min(span[1] for span in spans)
    warnings: list[str] = []
    if len(files) > 1:
        if start >= end:
            raise GputopError(
                "cannot put the captures on one clock",
                f"{shown(files[0].db.label)} and the others share no moment",
                "give captures that were taken at the same time, or one at a time",
            )
        if not all(file.on_clock for file in files) or files[0].facts.utc_ns is None:
            warnings.append("the captures do not tell when they began: each was put at the beginning of the first")
        else:
            warnings.append(
                "the captures were put on one clock by the UTC time of their beginning: ±1 ms between hosts"
            )
    for file in files:
        name = f"{shown(Path(file.db.label.name))}: " if len(files) > 1 else ""
        if len(files) > 1 and file.activity.device_span is None:
            warnings.append(name + NO_WORK)
        warnings += [name + text for text in file.warnings]
    missing = {key: why for file in reversed(files) for key, why in file.missing.items()}
    if len(builder.ops):
        missing.pop("device_activity", None)
    origin = Origin(
        format="nsys",
        files=tuple(str(file.db.label) for file in files),
        tool=_told(file.facts.tool for file in files),
        schema=_told(file.facts.schema for file in files),
        window_from="record" if all(file.from_record for file in files) else "activity",
        node_level=any(file.activity.node_rows for file in files),
        warnings=tuple(warnings),
        missing=missing,
        diagnostics=tuple(dict.fromkeys(message for file in files for message in file.facts.diagnostics)),
    )
    builder.devices += gpus.devices(used=bool(len(builder.ops)))
    metrics = tuple(one for file in files for one in file.metrics)
    return replace(builder.build(origin, start, end), gpu_metrics=metrics)


def _told(values: Iterable[str | None]) -> str | None:
    """The one value of all files, or all of them."""
    return ", ".join(dict.fromkeys(value for value in values if value)) or None
