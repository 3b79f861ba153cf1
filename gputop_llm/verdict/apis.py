"""What the CUDA and HIP calls on the host are for, by their names."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np

from gputop_llm.timeline.model import U8, CopyKind, Memory, Timeline


class Api(IntEnum):
    """The use of a call."""

    OTHER = 0
    LAUNCH = 1
    GRAPH_LAUNCH = 2
    SYNC = 3
    BLOCKING_COPY = 4
    ASYNC_COPY = 5
    ALLOC = 6
    ASYNC_ALLOC = 7
    MEMSET = 8


_PATTERNS: tuple[tuple[Api, re.Pattern[str]], ...] = tuple(
    (use, re.compile(pattern))
    for use, pattern in (
        (Api.GRAPH_LAUNCH, r"^(cuda|cu|hip)GraphLaunch"),
        (
            Api.LAUNCH,
            r"^(cuda|cu|hip|hipExt|hipModule)\w*Launch(?!HostFunc)\w*Kernel|^cuLaunch(?!HostFunc)|^hip\w*LaunchKernel",
        ),
        (Api.SYNC, r"^(cuda|hip)(Device|Stream|Event)Synchronize|^cu(Ctx|Stream|Event)Synchronize"),
        (
            Api.ASYNC_ALLOC,
            r"^(cuda|cu|hip)(MallocAsync|FreeAsync|MallocFromPoolAsync|MemAllocAsync|MemFreeAsync|MemAllocFromPoolAsync)",
        ),
        (
            Api.ALLOC,
            r"^(cuda|hip)(Malloc|Free|HostAlloc|HostFree|HostMalloc|FreeHost|MallocHost|HostRegister|HostUnregister)"
            r"|^cuMem(Alloc|Free|HostAlloc|HostRegister|Create|Map|Unmap|Release|AddressReserve)",
        ),
        (Api.ASYNC_COPY, r"^(cuda|cu|hip)Mem\w*cpy\w*Async|^cu(Memcpy)\w*Async"),
        (Api.BLOCKING_COPY, r"^(cuda|cu|hip)Mem\w*cpy"),
        (Api.MEMSET, r"^(cuda|cu|hip)Mem\w*set"),
    )
)


def use_of(name: str) -> Api:
    """The use of one call."""
    for use, pattern in _PATTERNS:
        if pattern.search(name):
            return use
    return Api.OTHER


def uses(timeline: Timeline) -> U8:
    """The use of each row of `timeline.calls`.

    An asynchronous copy from the device into pageable memory returns only when it is done: it is a blocking one
    (CUDA's "API synchronization behavior").
    """
    calls, ops = timeline.calls, timeline.ops
    by_name = np.zeros(len(timeline.strings) + 1, dtype=np.uint8)
    for name_id in np.unique(calls.name_id):
        by_name[name_id] = use_of(timeline.name(int(name_id)))
    found: U8 = by_name[calls.name_id]
    waits = (ops.copy_kind == CopyKind.DTOH) & (ops.dst_memory == Memory.PAGEABLE) & (ops.launch >= 0)
    issued = ops.launch[waits]
    found[issued[found[issued] == Api.ASYNC_COPY]] = Api.BLOCKING_COPY
    return found
