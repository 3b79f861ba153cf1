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
#: From one launch to the next, by the host.
_CADENCE_NS = 6_500
_CALL_NS = 3_800


def big_nsys_sqlite(path: Path, kernels: int, apis: int) -> Path:
    """An export with so many kernels and API rows (at least one call for each kernel), one step after the other.

    Every step of 32 layers ends with a copy to the host and a stream synchronisation. Takes about 2 µs a row.
    """
    if apis < kernels:
        raise ValueError("each kernel has a call")
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -64000;")
    names = [name for name, _ in _LAYER] + ["cudaLaunchKernel_v7000", "cuKernelGetName", "cudaStreamSynchronize_v3020"]
    database.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    database.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({' INTEGER, '.join(_KERNEL)} INTEGER)")
    database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME ({' INTEGER, '.join(_RUNTIME)} INTEGER)")
    database.executemany(
        f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * len(_KERNEL))})", _kernel_rows(kernels)
    )
    database.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)", _calls(kernels, apis)
    )
    database.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    facts = (("EXPORT_PRODUCT_VERSION", "2025.3.2.0"), ("EXPORT_SCHEMA_VERSION", "3.20.3"))
    database.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", facts)
    database.execute(
        "CREATE TABLE ANALYSIS_DETAILS (globalVid INTEGER, duration INTEGER, startTime INTEGER, stopTime INTEGER)"
    )
    database.execute("INSERT INTO ANALYSIS_DETAILS VALUES (1, ?, 0, 0)", (kernels * _CADENCE_NS + 1_000_000,))
    database.commit()
    database.close()
    return path


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
