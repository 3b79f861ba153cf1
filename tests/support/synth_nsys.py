"""Writes synthetic schedules as Nsight Systems exports, with the tables and columns that each version has."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from gputop_llm.timeline.model import CopyKind, Kind, Memory
from tests.support.synth import Op, Schedule, Span

#: Schema → version of nsys. Columns as in real exports of these (3.0.0 and 3.7.2: `nsys export --lazy=false`).
VERSIONS = {
    "3.0.0": "2022.4.2.1",
    "3.1.2": "2023.1.2.43",
    "3.7.2": "2023.4.4.54",
    "3.17.2": "2025.1.3.140",
    "3.24.0": "2025.5.2.266",
    "3.25.0": "2026.2.1.210",
}
SCHEMAS = tuple(VERSIONS)
#: Exports of these have rows for graph replays as a whole; older ones leave the replays out.
GRAPH_SCHEMAS = ("3.17.2", "3.24.0", "3.25.0")

_COPY = {
    CopyKind.UNKNOWN: 0,
    CopyKind.HTOD: 1,
    CopyKind.DTOH: 2,
    CopyKind.DTOD: 8,
    CopyKind.HTOH: 9,
    CopyKind.PTOP: 10,
    CopyKind.UVM: 11,
}
_MEMORY = {Memory.PAGEABLE: 0, Memory.PINNED: 1, Memory.DEVICE: 2, Memory.MANAGED: 4, Memory.UNKNOWN: 7}
_SYNC_TYPES = {"cudaDeviceSynchronize": 4, "cudaStreamSynchronize": 3}

_COMMON = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_KERNEL = (
    *_COMMON,
    *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory"),
    *("localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId"),
    "sharedMemoryLimitConfig",
)
_MEMCPY = (
    *_COMMON,
    *("bytes", "copyKind", "deprecatedSrcId", "srcKind", "dstKind", "srcDeviceId", "srcContextId", "dstDeviceId"),
    *("dstContextId", "migrationCause", "graphNodeId", "virtualAddress"),
)
_RUNTIME = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId")
_NVTX = (
    *("start", "end", "eventType", "rangeId", "category", "color", "text TEXT", "globalTid", "endGlobalTid", "textId"),
    *("domainId", "uint64Value", "int64Value", "doubleValue REAL", "uint32Value", "int32Value", "floatValue REAL"),
    *("jsonTextId", "jsonText TEXT"),
)
_GPU = (
    *("vmId", "id", "name TEXT", "busLocation TEXT", "totalMemory", "memoryBandwidth", "clockRate", "smCount"),
    *("uuid TEXT", "chipName TEXT", "cuDevice", "computeMajor", "computeMinor"),
)


class _Writer:
    def __init__(self, path: Path, schema: str, machine: int) -> None:
        self.number = tuple(map(int, schema.split(".")))
        self.schema = schema
        self.machine = machine
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA synchronous = OFF")
        self._strings: dict[str, int] = {}

    def table(self, name: str, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
        """One table; columns that no row gives are NULL. Like nsys, none without rows."""
        if not rows:
            return
        declared = ", ".join(f'"{c.split()[0]}" {[*c.split(), "INTEGER"][1]}' for c in columns)
        self.database.execute(f"CREATE TABLE {name} ({declared})")
        names = [column.split()[0] for column in columns]
        unknown = {key for row in rows for key in row} - set(names)
        assert not unknown, f"{name} of {self.schema} has no {unknown}"
        marks = ", ".join("?" * len(names))
        self.database.executemany(
            f"INSERT INTO {name} VALUES ({marks})", [tuple(row.get(n) for n in names) for row in rows]
        )

    def string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings) + 7)

    def pid(self, pid: int) -> int:
        return self.tid(pid, 0)

    def tid(self, pid: int, tid: int) -> int:
        """64 bits as SQLite stores them: with the top bit set they are negative."""
        value = self.machine << 48 | pid << 24 | tid
        return value - (1 << 64) if value >> 63 else value

    def finish(self) -> None:
        self.database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        self.database.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, t) for t, i in self._strings.items()])
        self.database.commit()
        self.database.close()


def to_nsys_sqlite(
    schedule: Schedule,
    path: Path,
    schema: str = "3.17.2",
    *,
    window: bool = True,
    gpus: bool = True,
    emit_nvtx: bool = False,
    machine: int = 1,
    utc_ns: int = 1_790_000_000_000_000_000,
    diagnostics: Sequence[tuple[int, str]] = ((1, "Profiling has started."),),
    environment: Sequence[str] = (),
) -> Path:
    """Writes what Nsight Systems would have recorded of a schedule, with times from its start on.

    `machine` is the upper 16 bits of global ids (0x8001 makes them negative). `emit_nvtx` keeps the framework
    operators. Work in CUDA graphs is lost in schemas without GRAPH_TRACE unless it was recorded node by node.
    """
    path.unlink(missing_ok=True)
    writer = _Writer(path, schema, machine)
    seen = schedule.seen_by_nsys(emit_nvtx)
    _facts(writer, schedule, window, utc_ns, environment)
    _device_tables(writer, seen)
    _host_tables(writer, seen)
    _machine_tables(writer, seen, gpus, diagnostics)
    writer.finish()
    return path


def _facts(writer: _Writer, schedule: Schedule, window: bool, utc_ns: int, environment: Sequence[str]) -> None:
    facts = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": VERSIONS[writer.schema],
        "EXPORT_SCHEMA_VERSION": writer.schema,
        "EXPORT_CONFIG_TIME_SHIFT": "0",
    }
    names = ("name TEXT", "value TEXT")
    rows: list[dict[str, object]] = [{"name": name, "value": value} for name, value in facts.items()]
    writer.table("META_DATA_EXPORT" if writer.number >= (3, 7) else "EXPORT_META_DATA", names, rows)
    kept = [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": value} for value in environment]
    if writer.number >= (3, 7):
        writer.table("META_DATA_CAPTURE", names, kept)
    duration = schedule.end - schedule.start
    # The other two stand on a clock of their own.
    details: dict[str, object] = {"globalVid": 1, "duration": duration, "startTime": 777, "stopTime": 777 + duration}
    writer.table("ANALYSIS_DETAILS", tuple(details), [details] if window else [])
    writer.table("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",), [{"utcEpochNs": utc_ns}])


def _device_tables(writer: _Writer, schedule: Schedule) -> None:
    green = ("greenContextId",) if writer.number >= (3, 7) else ()
    graph = ("graphId", "clusterX", "clusterY", "clusterZ") if writer.number >= (3, 24) else ()
    copies = ("copyCount",) if writer.number >= (3, 20) else ()
    rows: dict[Kind, list[dict[str, object]]] = {kind: [] for kind in Kind}
    for op in schedule.ops:
        rows[op.kind].append(_device_row(writer, schedule, op))
    for row, op in zip(rows[Kind.KERNEL], (op for op in schedule.ops if op.kind is Kind.KERNEL), strict=True):
        if graph:
            row["graphId"] = op.graph
    writer.table("CUPTI_ACTIVITY_KIND_KERNEL", (*_KERNEL, *green, *graph), rows[Kind.KERNEL])
    writer.table("CUPTI_ACTIVITY_KIND_MEMCPY", (*_MEMCPY, *green, *copies), rows[Kind.COPY])
    memset = (*_COMMON, "value", "bytes", "graphNodeId", "memKind", *green)
    writer.table("CUPTI_ACTIVITY_KIND_MEMSET", memset, rows[Kind.MEMSET])
    if writer.schema in GRAPH_SCHEMAS:
        columns = (*_COMMON, *green, "graphId", "graphExecId")
        writer.table("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", columns, rows[Kind.GRAPH])


def _device_row(writer: _Writer, schedule: Schedule, op: Op) -> dict[str, object]:
    process = schedule.processes[op.process]
    row: dict[str, object] = {
        "start": op.start - schedule.start,
        "end": op.end - schedule.start,
        # Each process counts the GPUs that it sees.
        "deviceId": op.device if process.visible is None else process.visible.index(op.device),
        "contextId": 1,
        "streamId": op.stream,
        "correlationId": op.correlation,
        "globalPid": writer.pid(process.pid),
    }
    if op.kind is Kind.GRAPH:
        return row | {"graphId": op.graph, "graphExecId": (op.graph or 0) + 1}
    row["graphNodeId"] = op.node
    if op.kind is Kind.KERNEL:
        name, short = writer.string(op.name), writer.string(op.name.split("<")[0])
        row |= {"demangledName": name, "shortName": short, "mangledName": short, "launchType": 1}
        row |= dict(zip(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), op.grid + op.block, strict=True))
    elif op.kind is Kind.COPY:
        row |= {"bytes": op.bytes, "copyKind": _COPY[op.copy], "srcKind": _MEMORY[op.src], "dstKind": _MEMORY[op.dst]}
    else:
        row |= {"bytes": op.bytes, "memKind": _MEMORY[op.dst], "value": 0}
    return row


def _host_tables(writer: _Writer, schedule: Schedule) -> None:
    def span(row, **more) -> dict[str, object]:
        thread = schedule.threads[row.thread]
        tid = writer.tid(schedule.processes[thread.process].pid, thread.tid)
        return {"start": row.start - schedule.start, "end": row.end - schedule.start, "globalTid": tid, **more}

    calls = [
        span(c, correlationId=c.correlation, nameId=writer.string(_versioned(c.name)), eventClass=0, returnValue=0)
        for c in schedule.calls
    ]
    writer.table("CUPTI_ACTIVITY_KIND_RUNTIME", _RUNTIME, calls)
    # syncType is off by one in 3.24.0, as in a real file.
    wrong = 1 if writer.number >= (3, 24) and writer.number < (3, 25) else 0
    syncs = [
        {"start": c.start - schedule.start, "end": c.end - schedule.start, "syncType": _SYNC_TYPES[c.name] - wrong}
        for c in schedule.calls
        if c.name in _SYNC_TYPES
    ]
    writer.table("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", (*_COMMON, "syncType", "eventId"), syncs)
    ranges = [span(r, eventType=59, domainId=0, **_text(writer, r.name, i)) for i, r in enumerate(schedule.ranges)]
    ranges += [span(op, eventType=59, domainId=0, text=_emitted(op, i)) for i, op in enumerate(schedule.cpu_ops)]
    writer.table("NVTX_EVENTS", (*_NVTX, "binaryData TEXT") if writer.number >= (3, 16) else _NVTX, ranges)
    waits = [span(w, nameId=writer.string(w.name), nestingLevel=0, eventClass=27) for w in schedule.waits]
    columns = ("start", "end", "eventClass", "globalTid", "nameId", "returnValue", "nestingLevel", "callchainId")
    writer.table("OSRT_API", columns, waits)


def _text(writer: _Writer, name: str, position: int) -> dict[str, object]:
    """Unregistered strings stand in the row, registered ones among the strings."""
    return {"text": name} if position % 2 else {"textId": writer.string(name)}


def _emitted(op: Span, position: int) -> str:
    sizes = f", sizes = {op.shapes}" if op.shapes else ""
    return f"{op.name}, op_id = {position + 1}{sizes}"


def _versioned(api: str) -> str:
    return f"{api}_v{7000 if 'Launch' in api else 3020}" if api.startswith("cuda") else api


def _machine_tables(writer: _Writer, schedule: Schedule, gpus: bool, diagnostics: Sequence[tuple[int, str]]) -> None:
    listed: list[dict[str, object]] = [
        {
            "vmId": 1,
            "id": number,
            "name": "NVIDIA H100 80GB HBM3",
            "totalMemory": 85_017_493_504,
            "memoryBandwidth": 3_352_320_000_000,
            "smCount": 132,
            "uuid": f"00000000-0000-0000-0000-{number + 1:012d}",
            "cuDevice": number,
            "computeMajor": 9,
            "computeMinor": 0,
        }
        for number in schedule.devices
    ]
    writer.table("TARGET_INFO_GPU", _GPU, listed if gpus else [])
    ordinals = [
        {"gpuId": gpu, "cudaId": ordinal, "pid": process.pid}
        for process in schedule.processes
        for ordinal, gpu in enumerate(process.visible or schedule.devices)
    ]
    if writer.number >= (3, 17):
        writer.table("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"), ordinals)
    processes = [{"globalPid": writer.pid(p.pid), "pid": p.pid, "name": p.name} for p in schedule.processes]
    writer.table("PROCESSES", ("globalPid", "pid", "name TEXT"), processes)
    threads = [
        {"globalTid": writer.tid(schedule.processes[t.process].pid, t.tid), "nameId": writer.string(t.name)}
        for t in schedule.threads
    ]
    writer.table("ThreadNames", ("nameId", "priority", "globalTid"), threads)
    if writer.number >= (3, 16):
        columns = ("timestamp", "timestampType", "source", "severity", "text TEXT", "globalPid")
        said = [{"timestamp": 0, "timestampType": 1, "source": 3, "severity": s, "text": t} for s, t in diagnostics]
        writer.table("DIAGNOSTIC_EVENT", columns, said)
