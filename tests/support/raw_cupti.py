"""Turns raw activity records of CUPTI 13.0, as a client stored them byte for byte, into a native capture record.

    python -m tests.support.raw_cupti RAW.bin.gz OUT.gtw

Such a file has no clocks and no names: the window goes from its first to its last record, kernels are named by the
pointer that their name once had, and calls by the names that CUPTI's headers give to their callback ids.
"""

from __future__ import annotations

import gzip
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from gputop_llm.timeline import native_format as form
from tests.support.synth_native import chunk, ended, hello, started

_MEMCPY, _MEMSET, _DRIVER, _RUNTIME, _KERNEL = 1, 2, 4, 5, 10
#: Bytes of a record of each kind, and where its fields lie.
SIZES = {_MEMCPY: 96, _MEMSET: 88, _DRIVER: 40, _RUNTIME: 40, _KERNEL: 216}
_PLACE = {"device": 40, "context": 44, "stream": 48, "correlation": 92, "graph_node": 144, "graph": 156}
_PLACE_OF_COPIES = {"device": 32, "context": 36, "stream": 40, "correlation": 44, "graph_node": 64, "graph": 72}
_SPAN = {"start": 16, "end": 24}
LAYOUTS = {
    _KERNEL: (form.Chunk.KERNELS, form.KERNEL_ROW, _SPAN | _PLACE | {"name": 104, "grid": 52, "block": 64}),
    _MEMCPY: (
        form.Chunk.COPIES,
        form.COPY_ROW,
        _SPAN | _PLACE_OF_COPIES | {"bytes": 8, "copy_kind": 4, "src_memory": 5, "dst_memory": 6, "flags": 7},
    ),
    _MEMSET: (form.Chunk.MEMSETS, form.MEMSET_ROW, _SPAN | _PLACE_OF_COPIES | {"bytes": 8}),
    _DRIVER: (form.Chunk.CALLS, form.CALL_ROW, {"start": 8, "end": 16, "correlation": 32, "thread": 28, "api": 4}),
    _RUNTIME: (form.Chunk.CALLS, form.CALL_ROW, {"start": 8, "end": 16, "correlation": 32, "thread": 28, "api": 4}),
}
_API_NAMES = {
    _RUNTIME: {
        10: "cudaGetLastError_v3020",
        16: "cudaSetDevice_v3020",
        17: "cudaGetDevice_v3020",
        41: "cudaMemcpyAsync_v3020",
        51: "cudaMemsetAsync_v3020",
        134: "cudaEventCreateWithFlags_v3020",
        136: "cudaEventDestroy_v3020",
        137: "cudaEventSynchronize_v3020",
        138: "cudaEventQuery_v3020",
        147: "cudaStreamWaitEvent_v3020",
        151: "cudaPointerGetAttributes_v4000",
        211: "cudaLaunchKernel_v7000",
        273: "cudaFuncSetAttribute_v9000",
        311: "cudaGraphLaunch_v10000",
        317: "cudaStreamIsCapturing_v10000",
        370: "cudaEventRecordWithFlags_v11010",
    },
    _DRIVER: {
        304: "cuCtxGetCurrent",
        307: "cuLaunchKernel",
        310: "cuPointerGetAttribute",
        392: "cuDevicePrimaryCtxGetState",
        652: "cuLaunchKernelEx",
        686: "cuKernelGetAttribute",
        697: "cuTensorMapEncodeTiled",
        719: "cuKernelGetName",
    },
}
_ROWS_PER_CHUNK = 50_000


def native_record(raw: bytes) -> bytes:
    """The records as a native capture record."""
    offsets: dict[int, list[int]] = defaultdict(list)
    at = 0
    while at < len(raw):
        kind = int.from_bytes(raw[at : at + 4], "little")
        offsets[kind].append(at)
        at += SIZES[kind]
    tables = {kind: _table(raw, kind, where) for kind, where in offsets.items()}
    first = min(int(table["start"].min()) for table in tables.values())
    last = max(int(table["end"].max()) for table in tables.values())
    calls = offsets[_RUNTIME] + offsets[_DRIVER]
    pid = int.from_bytes(raw[calls[0] + 24 : calls[0] + 28], "little")
    pieces = [form.MAGIC, hello(pid), started(0, at=(first, first, 1, 0))]
    for kind, names in _API_NAMES.items():
        for callback, name in names.items():
            pieces.append(chunk(form.Chunk.API_NAME, form.API_NAME.pack(kind << 24 | callback) + name.encode()))
    for kind, table in sorted(tables.items()):
        for begin in range(0, len(table), _ROWS_PER_CHUNK):
            pieces.append(chunk(LAYOUTS[kind][0], table[begin : begin + _ROWS_PER_CHUNK].tobytes()))
    pieces.append(ended(0, at=(last, last, 1 + last - first, 0)))
    return b"".join(pieces)


def _table(raw: bytes, kind: int, offsets: list[int]):
    _, row, fields = LAYOUTS[kind]
    records = np.frombuffer(raw, "u1")[np.array(offsets)[:, None] + np.arange(SIZES[kind])]
    table = np.zeros(len(offsets), dtype=np.dtype(row))
    for name, place in fields.items():
        kept = table.dtype[name]
        table[name] = records[:, place : place + kept.itemsize].copy().view(kept.base).reshape(table[name].shape)
    if kind in _API_NAMES:
        table["api"] |= kind << 24
    elif kind == _MEMSET:
        table["memory"] = records[:, 50:52].copy().view("<u2").ravel()
    return table


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(native_record(gzip.decompress(source.read_bytes())))
