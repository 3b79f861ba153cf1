"""The names and numbers of Nsight Systems exports, schemas 3.0.0 (2022.4) to 3.25.0 (2026.2).

Tables and columns come and go between versions, so readers ask for columns, never for versions.
"""

from __future__ import annotations

import re

import numpy as np

from gputop_llm.timeline.model import U8, CopyKind, Memory
from gputop_llm.timeline.nsys_columns import Column
from gputop_llm.timeline.nsys_db import NsysDb

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
PROFILER_OVERHEAD = "PROFILER_OVERHEAD"
NVTX = "NVTX_EVENTS"
OSRT = "OSRT_API"
SCHED = "SCHED_EVENTS"
STRINGS = "StringIds"
PROCESSES = "PROCESSES"
THREAD_NAMES = "ThreadNames"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
DETAILS = "ANALYSIS_DETAILS"
SESSION_START = "TARGET_INFO_SESSION_START_TIME"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
CAPTURE_FACTS = "META_DATA_CAPTURE"
#: The second name is that of 2023.1 and before.
EXPORT_FACTS = ("META_DATA_EXPORT", "EXPORT_META_DATA")

#: The newest schema that was met in a real file.
NEWEST_TESTED = (3, 25)

#: eventType of NVTX_EVENTS: ranges (push/pop, start/end, and both as imported from a text file), names of domains.
NVTX_RANGES = (59, 60, 70, 71)
NVTX_DOMAIN = 75

#: overheadType that is the profiler's own: buffer flush, instrumentation, resources. The others are CUDA's.
PROFILER_OVERHEAD_TYPES = (3, 4, 5)

SEVERITIES = {1: "info", 2: "warning", 3: "error", 4: "verbose"}

_API_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?(_ptsz|_ptds)?$")

#: copyKind, where the file has no table of its names. Arrays are device memory.
_COPY_NAMES = (
    *("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP"),
    *("UVM_HTOD", "UVM_DTOH", "UVM_DTOD"),
)
_COPY_KINDS = {
    "HTOD": CopyKind.HTOD,
    "HTOA": CopyKind.HTOD,
    "DTOH": CopyKind.DTOH,
    "ATOH": CopyKind.DTOH,
    "DTOD": CopyKind.DTOD,
    "ATOA": CopyKind.DTOD,
    "ATOD": CopyKind.DTOD,
    "DTOA": CopyKind.DTOD,
    "HTOH": CopyKind.HTOH,
    "PTOP": CopyKind.PTOP,
    "UVM_HTOD": CopyKind.UVM,
    "UVM_DTOH": CopyKind.UVM,
    "UVM_DTOD": CopyKind.UVM,
}
#: memKind, srcKind, dstKind likewise. (CUPTI's own numbers are other ones.)
_MEMORY_NAMES = ("PAGEABLE", "PINNED", "DEVICE", "ARRAY", "MANAGED", "DEVICE_STATIC", "MANAGED_STATIC", "UNKNOWN")
_MEMORY = {
    "PAGEABLE": Memory.PAGEABLE,
    "PINNED": Memory.PINNED,
    "DEVICE": Memory.DEVICE,
    "ARRAY": Memory.DEVICE,
    "DEVICE_STATIC": Memory.DEVICE,
    "MANAGED": Memory.MANAGED,
    "MANAGED_STATIC": Memory.MANAGED,
}


def api_name(name: str) -> str:
    """The name of an API call without its version: cudaLaunchKernel for cudaLaunchKernel_ptsz_v7000."""
    return _API_SUFFIX.sub("", name)


def copy_kinds(db: NsysDb) -> U8:
    """CopyKind by the file's copyKind, for 0 to 255."""
    names = _enum(db, "ENUM_CUDA_MEMCPY_OPER", "CUDA_MEMCPY_KIND_", _COPY_NAMES)
    return _table({number: int(_COPY_KINDS.get(name, CopyKind.UNKNOWN)) for number, name in names.items()})


def memory_kinds(db: NsysDb) -> U8:
    """Memory by the file's memory kind, for 0 to 255."""
    names = _enum(db, "ENUM_CUDA_MEM_KIND", "CUDA_MEMOPR_MEMORY_KIND_", _MEMORY_NAMES)
    return _table({number: int(_MEMORY.get(name, Memory.UNKNOWN)) for number, name in names.items()})


def column(db: NsysDb, table: str, name: str, default: int | None = None) -> Column:
    """A column to read, or its default for all rows if the table lacks it (it must have one then)."""
    return Column((name,) if default is None or db.has(table, name) else (), default)


def _enum(db: NsysDb, table: str, prefix: str, usual: tuple[str, ...]) -> dict[int, str]:
    if not db.has(table, "id", "name"):
        return dict(enumerate(usual))
    rows = db.rows(f"SELECT id, name FROM {table}")
    return {i: n.removeprefix(prefix) for i, n in rows if isinstance(i, int) and isinstance(n, str)}


def _table(values: dict[int, int]) -> U8:
    table = np.zeros(256, dtype=np.uint8)
    for number, value in values.items():
        if 0 <= number < 255:
            table[number] = value
    return table
