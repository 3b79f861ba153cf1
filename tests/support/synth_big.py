"""Big captures in seconds: eager decode, row after row, for benchmarks of the readers and of the analyses."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

_PID = 1 << 48 | 4242 << 24
_TID = _PID | 4242
#: One layer of a decode step: names, and what each takes (ns).
_LAYER = (
    ("void rms_norm_kernel<__nv_bfloat16>(__nv_bfloat16*)", 2_100),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 9_400),
    ("void rotary_embedding_kernel<__nv_bfloat16>(long*)", 1_700),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128>>(Flash_fwd_params)", 7_900),
    ("nvjet_tst_64x8_64x16_4x1_v_bz_splitK_TNT", 6_100),
    ("void act_and_mul_kernel<__nv_bfloat16>(__nv_bfloat16*)", 1_900),
)
_LAYERS = 32
_KERNEL = (
    *("start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid"),
    *("demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread"),
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory"),
    *("localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId"),
    "sharedMemoryLimitConfig",
)
_RUNTIME = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId")
_CALL = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)"
#: Rows of a mixed capture that are written at once.
_ROWS = 50_000
#: From one launch to the next, by the host.
_CADENCE_NS = 6_500
_CALL_NS = 3_800


def big_nsys_sqlite(path: Path, kernels: int, apis: int) -> Path:
    """An export with so many kernels and API rows (at least one call for each kernel), one step after the other.

    Every step of 32 layers ends with a copy to the host and a stream synchronisation. Takes about 2 µs a row.
    """
    if apis < kernels:
        raise ValueError("each kernel has a call")
    database = _new(path)
    database.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(_KERNEL))})", _kernel_rows(kernels)
    )
    database.executemany(_CALL, _calls(kernels, apis))
    return _closed(database, path, kernels * _CADENCE_NS + 1_000_000)


def _new(path: Path) -> sqlite3.Connection:
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000;")
    names = [name for name, _ in _LAYER] + ["cudaLaunchKernel_v7000", "cuKernelGetName", "cudaStreamSynchronize_v3020"]
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    _table(database, "CUPTI_ACTIVITY_KIND_KERNEL", _KERNEL)
    _table(database, "CUPTI_ACTIVITY_KIND_RUNTIME", _RUNTIME)
    return database


def _table(database: sqlite3.Connection, name: str, columns: tuple[str, ...]) -> None:
    database.execute(f"CREATE TABLE {name} ({' INTEGER, '.join(columns)} INTEGER)")


def _closed(database: sqlite3.Connection, path: Path, duration_ns: int) -> Path:
    """The file, complete with what it says about itself."""
    database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    facts = (("EXPORT_PRODUCT_VERSION", "2025.3.2.0"), ("EXPORT_SCHEMA_VERSION", "3.20.3"))
    database.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", facts)
    database.execute(
        "CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER)"
    )
    database.execute("INSERT INTO ANALYSIS_DETAILS VALUES (1, ?, 0, 0)", (duration_ns,))
    database.commit()
    database.close()
    return path


#: What the GPUs of a mixed capture run beside kernels, by the position of a row among this many.
_MIXED = 24
_COPY, _MEMSET, _NODES = (3, 15), (9,), (18, 19, 20, 21, 22, 23)
_GPUS = 4
_COPY_COLUMNS = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "bytes"),
    *("copyKind", "srcKind", "dstKind", "graphNodeId"),
)
_MEMSET_COLUMNS = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "value", "bytes"),
    *("graphNodeId", "memKind"),
)


def mixed_nsys_sqlite(path: Path, works: int, apis: int) -> Path:
    """An export of four GPUs and processes that mix kernels, copies, memsets and nodes of graph replays on two streams.

    `works` rows of device work in all, `apis` calls (at least one for each row of work).
    """
    if apis < works:
        raise ValueError("each row of work has a call")
    database = _new(path)
    _table(database, "CUPTI_ACTIVITY_KIND_MEMCPY", _COPY_COLUMNS)
    _table(database, "CUPTI_ACTIVITY_KIND_MEMSET", _MEMSET_COLUMNS)
    kernels, copies, memsets = [], [], []
    for i in range(works):
        gpu, at, kind = i % _GPUS, i // _GPUS, i // _GPUS % _MIXED
        pid = _PID + (gpu << 24)
        name, spent = at % len(_LAYER), _LAYER[at % len(_LAYER)][1]
        start = at * 2 * _CADENCE_NS + 5_200 + 300 * gpu
        # Every third row of the second stream reaches over its successor's beginning.
        stream, end = 7 + (at % 3 == 2), start + spent + 4_000 * (at % 3 == 2)
        common = (start, end, gpu, 1, stream, i + 1, pid)
        node = (gpu + 1 << 32) + kind if kind in _NODES else None
        if kind in _COPY:
            copies.append((*common, 1 << 12 + at % 8, 1 + at % 2, 0, 2, node))
        elif kind in _MEMSET:
            memsets.append((*common, 0, 4096, node, 2))
        else:
            kernels.append((
                *(*common[:4], None, stream, i + 1, pid, name, name, name, 1, 0, 40),
                *(128 + at % 64, 1 + gpu, 1, 256, 1, 1, 0, 49_152, 0, 0, i, 0, node, 0),
            ))  # fmt: skip
        if i % _ROWS == _ROWS - 1 or i == works - 1:
            for table, rows in (("KERNEL", kernels), ("MEMCPY", copies), ("MEMSET", memsets)):
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_{table} VALUES ({marks})", rows)
                    rows.clear()
    database.executemany(_CALL, _mixed_calls(works, apis))
    return _closed(database, path, works // _GPUS * 2 * _CADENCE_NS + 1_000_000)


def _mixed_calls(works: int, apis: int) -> Iterator[tuple[int, int, int, int, int]]:
    launch, query, sync = range(len(_LAYER), len(_LAYER) + 3)
    given = 0
    for i in range(works):
        gpu, at = i % _GPUS, i // _GPUS * 2 * _CADENCE_NS + 300 * (i % _GPUS)
        tid = _TID + (gpu << 24)
        yield at, at + _CALL_NS, tid, i + 1, launch
        due = (apis - works) * (i + 1) // works
        for k in range(due - given):
            begin = at + _CALL_NS + 100 + 400 * k
            yield begin, begin + 350, tid, works + given + k + 1, sync if i // _GPUS % 200 == 199 else query
        given = due


def _kernel_rows(kernels: int) -> Iterator[tuple[int | None, ...]]:
    end = 0
    for i in range(kernels):
        position = i % len(_LAYER)
        start = max(end, i * _CADENCE_NS + 5_200)
        end = start + _LAYER[position][1]
        yield (
            *(start, end, 0, 1, None, 7, i + 1, _PID, position, position, position, 1, 0, 40),
            *(128, 1, 1, 256, 1, 1, 0, 49_152, 0, 0, i, 0, None, 0),
        )


def _calls(kernels: int, apis: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Launches, and between them as many short queries as it takes; one synchronisation a step."""
    launch, query, sync = range(len(_LAYER), len(_LAYER) + 3)
    further, per_step = apis - kernels, len(_LAYER) * _LAYERS
    given = 0
    for i in range(kernels):
        at = i * _CADENCE_NS
        yield at, at + _CALL_NS, _TID, i + 1, launch
        due = further * (i + 1) // kernels
        room = (_CADENCE_NS - _CALL_NS) // max(due - given, 1)
        for k in range(due - given):
            begin = at + _CALL_NS + k * room
            last = i % per_step == per_step - 1 and k == 0
            yield begin, begin + max(room - 50, 1), _TID, kernels + given + k + 1, sync if last else query
        given = due


_OPERATOR = """  {{
    "ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 4242, "tid": 4242,
    "ts": {ts}, "dur": 5.900,
    "args": {{
      "External id": {id},"Record function id": 0, "Concrete Inputs": ["", "", ""], "Input type": ["c10::BFloat16", \
"c10::BFloat16", ""], "Input Strides": [[2048, 1], [1, 2048], []], "Input Dims": [[{batch}, 2048], [2048, 8192], []], \
"Ev Idx": {id}
    }}
  }},
"""
_LAUNCH = """  {{
    "ph": "X", "cat": "cuda_runtime", "name": "{name}", "pid": 4242, "tid": 4242,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "External id": {id},      "cbid": 211, "correlation": {id}
    }}
  }},
"""
_DEVICE_WORK = """  {{
    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,
    "ts": {ts}, "dur": {dur},
    "args": {{
      "External id": {id},      "queued": 0, "device": 0, "context": 1,      "stream": 7, "correlation": {id},      \
"registers per thread": 40,      "shared memory": 0,      "blocks per SM": 0.969697,      "warps per SM": 7.757576,  \
    "grid": [128, 1, 1],      "block": [256, 1, 1],      "est. achieved occupancy %": 12
    }}
  }},
  {{
    "ph": "s", "id": {id}, "pid": 4242, "tid": 4242, "ts": {ts},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "f", "id": {id}, "pid": 0, "tid": 7, "ts": {ts},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
"""
_OPERATORS = ("aten::rms_norm", "aten::mm", "vllm::rotary", "vllm::flash_attn", "aten::addmm", "aten::silu")


def big_kineto_json(path: Path, size_bytes: int) -> Path:
    """A trace of the same decode, as torch.profiler lays it out, at least so long: operator, launch, kernel, arrows."""
    written = i = end = 0
    with path.open("w", encoding="utf-8") as out:
        out.write('{"schemaVersion": 1, "cuda_runtime_version": 13000, "displayTimeUnit": "ms",\n')
        out.write('"deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132}],\n')
        out.write('"baseTimeNanoseconds": 1790857026000000000, "traceEvents": [\n')
        while written < size_bytes:
            position, at, id_ = i % len(_LAYER), i * _CADENCE_NS, i + 1
            name, spent = _LAYER[position]
            start = max(end, at + 5_200)
            end = start + spent
            text = _OPERATOR.format(name=_OPERATORS[position], ts=_us(at), id=id_, batch=8 << position % 2)
            text += _LAUNCH.format(name="cudaLaunchKernel", ts=_us(at + 1_000), dur=_us(_CALL_NS), id=id_)
            text += _DEVICE_WORK.format(name=name, ts=_us(start), dur=_us(spent), id=id_)
            written += out.write(text)
            i += 1
        span = {"ts": "0.000", "dur": _us(max(end, i * _CADENCE_NS))}
        out.write('{"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", ')
        out.write(f'"ts": {span["ts"]}, "dur": {span["dur"]}}}\n]}}\n')
    return path


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
