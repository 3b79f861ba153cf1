"""Writes synthetic schedules as Kineto (torch.profiler) traces, one process each."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

from gputop_llm.timeline.model import CopyKind, Kind
from tests.support.synth import Op, Schedule

BASE_NS = 1_790_000_000_000_000_000
_NUMBER = re.compile(r'"@([-0-9.]+)"')
_CATEGORIES = {Kind.KERNEL: "kernel", Kind.COPY: "gpu_memcpy", Kind.MEMSET: "gpu_memset"}


def to_kineto(
    schedule: Schedule,
    path: Path,
    *,
    decimals: bool = True,
    gz: bool = False,
    process: int = 0,
    rank: int | None = None,
    record: bool = True,
) -> Path:
    """Writes what torch.profiler would have recorded of one process.

    Without `decimals` times are whole microseconds, as before 2024-03: schedules in whole µs stay exact. `record`
    writes the span of the profiler, which bounds the window. Kineto has no opaque graph replays: simulate with
    `node_mode`.
    """
    seen = schedule.seen_by_kineto()
    events = [*_machine(schedule, process, record, decimals), *_host(seen, process, decimals)]
    for op in seen.ops:
        if op.process == process:
            events.append(_device(op, decimals))
    trace: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": n, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_017_493_504, "numSms": 132}
            | {"computeMajor": 9, "computeMinor": 0}
            for n in schedule.devices
        ],
        "cuda_runtime_version": 13000,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    if rank is not None:
        trace["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": len(schedule.processes)}
    text = _NUMBER.sub(r"\1", json.dumps(trace | {"traceEvents": events, "traceName": "trace.json"}))
    path.write_bytes(gzip.compress(text.encode()) if gz else text.encode())
    return path


def _time(ns: int, decimals: bool) -> str:
    """Microseconds, marked so that they become a bare number: a float would not hold all digits."""
    sign, whole, rest = "-" if ns < 0 else "", abs(ns) // 1000, abs(ns) % 1000
    return f"@{sign}{whole}.{rest:03d}" if decimals else f"@{sign}{whole}"


def _span(row, decimals: bool, **more) -> dict[str, object]:
    return {"ph": "X", "ts": _time(row.start, decimals), "dur": _time(row.end - row.start, decimals), **more}


def _device(op: Op, decimals: bool) -> dict[str, object]:
    if op.kind is Kind.GRAPH:
        raise ValueError("Kineto records graph replays node by node")
    args: dict[str, object] = {
        "device": op.device,
        "context": 1,
        "stream": op.stream,
        "correlation": op.correlation,
    }
    if op.kind is Kind.KERNEL:
        args |= {"queued": 0, "grid": list(op.grid), "block": list(op.block), "registers per thread": 40}
    else:
        args["bytes"] = op.bytes
    if op.kind is Kind.COPY and op.copy is not CopyKind.UNKNOWN:
        args["memory bandwidth (GB/s)"] = op.bytes / max(op.end - op.start, 1)
    if op.node is not None:
        args |= {"graph id": op.graph, "graph node id": op.node}
    return _span(op, decimals, cat=_CATEGORIES[op.kind], name=op.name, pid=op.device, tid=op.stream, args=args)


def _host(schedule: Schedule, process: int, decimals: bool) -> list[dict[str, object]]:
    def place(thread: int) -> dict[str, object]:
        return {"pid": schedule.processes[process].pid, "tid": schedule.threads[thread].tid}

    def own(rows):
        return [row for row in rows if schedule.threads[row.thread].process == process]

    events = [
        _span(call, decimals, cat="cuda_runtime", name=call.name, args={"correlation": call.correlation})
        | place(call.thread)
        for call in own(schedule.calls)
    ]
    for position, op in enumerate(own(schedule.cpu_ops)):
        args: dict[str, object] = {"External id": position + 1}
        if op.shapes:
            args["Input Dims"] = json.loads(op.shapes)
        events.append(_span(op, decimals, cat="cpu_op", name=op.name, args=args) | place(op.thread))
    events += [_span(r, decimals, cat="user_annotation", name=r.name) | place(r.thread) for r in own(schedule.ranges)]
    return events


def _machine(schedule: Schedule, process: int, record: bool, decimals: bool) -> list[dict[str, object]]:
    pid = schedule.processes[process].pid
    events: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "ts": 0, "pid": pid, "tid": 0}
        | {"args": {"name": schedule.processes[process].name}}
    ]
    events += [
        {"name": "thread_name", "ph": "M", "ts": 0, "pid": pid, "tid": t.tid, "args": {"name": t.name}}
        for t in schedule.threads
        if t.process == process
    ]
    if record:
        name = {"cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler"}
        events.append(_span(schedule, decimals, **name))
    return events
