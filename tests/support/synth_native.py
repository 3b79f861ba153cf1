"""Writes synthetic schedules as native capture records, one process each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.model import CopyKind, Kind, Memory
from tests.support.synth import Op, Schedule

#: What CUPTI's clock, CLOCK_REALTIME and CLOCK_MONOTONIC read at the schedule's time 0.
CUPTI_NS = 1_790_000_000_000_000_000
REALTIME_NS = 1_790_000_000_000_012_345
MONOTONIC_NS = 12_000_000_000_000
#: The time-stamp counter: counts for a nanosecond (exact in binary), and what it reads at time 0.
TSC_PER_NS = 2
TSC = 30_000_000_000_000

COPY_KINDS = {
    CopyKind.UNKNOWN: 0,
    CopyKind.HTOD: 1,
    CopyKind.DTOH: 2,
    CopyKind.DTOD: 8,
    CopyKind.HTOH: 9,
    CopyKind.PTOP: 10,
}
MEMORY = {Memory.UNKNOWN: 0, Memory.PAGEABLE: 1, Memory.PINNED: 2, Memory.DEVICE: 3, Memory.MANAGED: 5}
_ROWS_PER_CHUNK = 7
_RUNTIME = 5 << 24


def chunk(kind: int, payload: bytes) -> bytes:
    """One chunk as it stands in a record."""
    return form.CHUNK_HEADER.pack(kind, len(payload)) + payload


def clocks(ns: int) -> tuple[int, int, int, int]:
    """What the four clocks read at a time of the schedule."""
    return CUPTI_NS + ns, REALTIME_NS + ns, MONOTONIC_NS + ns, TSC + TSC_PER_NS * ns


def hello(pid: int = 4242, version: int = form.VERSION) -> bytes:
    return chunk(form.Chunk.HELLO, form.HELLO.pack(version, pid, pid, 130000) + b"/usr/lib/libcupti.so.13")


def started(ns: int, kinds: int = 31, at: tuple[int, int, int, int] | None = None) -> bytes:
    return chunk(form.Chunk.STARTED, form.STARTED.pack(*(at or clocks(ns)), kinds, 0, 44_000_000))


def ended(
    ns: int, reason: int = 0, unreturned: int = 0, dropped: int = 0, at: tuple[int, int, int, int] | None = None
) -> bytes:
    return chunk(
        form.Chunk.END, form.END.pack(*(at or clocks(ns)), reason, unreturned, dropped, 1, 88, 400_000, 9_000_000)
    )


def to_native(
    schedule: Schedule,
    path: Path,
    *,
    process: int = 0,
    tsc: bool = False,
    names_last: bool = False,
    api_suffix: str = "_v7000",
) -> Path:
    """Writes what the client would have sent of one process; `tsc` gives times on the processor's counter.

    The client records no opaque graph replays: simulate with `node_mode`. A device keeps its own number.
    """
    kernels = [op for op in schedule.ops if op.process == process and op.kind is Kind.KERNEL]
    copies = [op for op in schedule.ops if op.process == process and op.kind is Kind.COPY]
    memsets = [op for op in schedule.ops if op.process == process and op.kind is Kind.MEMSET]
    assert not any(op.kind is Kind.GRAPH for op in schedule.ops), "recorded node by node"
    calls = [call for call in schedule.calls if schedule.threads[call.thread].process == process]

    def time(ns: int) -> int:
        return TSC + TSC_PER_NS * ns if tsc else CUPTI_NS + ns

    def work(op: Op) -> dict[str, int]:
        return {
            "start": time(op.start),
            "end": time(op.end),
            "graph_node": op.node or 0,
            "graph": op.graph or 0,
            "correlation": op.correlation,
            "device": op.device,
            "context": 1,
            "stream": op.stream,
        }

    kernel_ids = {name: 0x7F00_0000 + i for i, name in enumerate(dict.fromkeys(op.name for op in kernels))}
    api_ids = {name: _RUNTIME | i + 1 for i, name in enumerate(dict.fromkeys(call.name for call in calls))}
    names = b"".join(
        [chunk(form.Chunk.NAME, form.NAME.pack(i) + name.encode("utf-8", "replace")) for name, i in kernel_ids.items()]
        + [chunk(form.Chunk.API_NAME, form.API_NAME.pack(i) + (n + api_suffix).encode()) for n, i in api_ids.items()]
    )
    rows = b"".join(
        [
            *_rows(
                form.Chunk.KERNELS,
                form.KERNEL_ROW,
                [work(op) | {"name": kernel_ids[op.name], "grid": op.grid, "block": op.block} for op in kernels],
            ),
            *_rows(
                form.Chunk.COPIES,
                form.COPY_ROW,
                [
                    work(op)
                    | {"bytes": op.bytes, "copy_kind": COPY_KINDS[op.copy]}
                    | {"src_memory": MEMORY[op.src], "dst_memory": MEMORY[op.dst]}
                    for op in copies
                ],
            ),
            *_rows(
                form.Chunk.MEMSETS,
                form.MEMSET_ROW,
                [work(op) | {"bytes": op.bytes, "memory": MEMORY[op.dst]} for op in memsets],
            ),
            *_rows(
                form.Chunk.CALLS,
                form.CALL_ROW,
                [
                    {"start": time(call.start), "end": time(call.end), "correlation": call.correlation}
                    | {"thread": 0xABC0_0000 + call.thread, "api": api_ids[call.name]}
                    for call in calls
                ],
            ),
        ]
    )
    body = rows + names if names_last else names + rows
    pid = schedule.processes[process].pid if schedule.processes else 4242
    path.write_bytes(form.MAGIC + hello(pid) + started(schedule.start) + body + ended(schedule.end))
    return path


def _rows(kind: int, layout: list, rows: list[dict]) -> Iterable[bytes]:
    """Rows in several chunks."""
    for first in range(0, len(rows), _ROWS_PER_CHUNK):
        some = rows[first : first + _ROWS_PER_CHUNK]
        table = np.zeros(len(some), dtype=np.dtype(layout))
        for i, row in enumerate(some):
            for name, value in row.items():
                table[i][name] = value
        yield chunk(kind, table.tobytes())
