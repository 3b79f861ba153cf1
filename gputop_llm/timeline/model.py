"""The timeline: everything that a capture recorded, as column arrays in integer nanoseconds.

Each table is a frozen set of NumPy arrays of equal length, sorted by `start`. Row numbers are
what other tables refer to; -1 is "none" or "unknown" in every index and id column. Strings are interned: a
`*_id` column holds positions in `Timeline.strings`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

NONE = -1


class Kind(IntEnum):
    """What a device row is. GRAPH is a whole CUDA-graph replay recorded as one row: work, with its inside unknown."""

    KERNEL = 0
    COPY = 1
    MEMSET = 2
    GRAPH = 3


class CopyKind(IntEnum):
    """The direction of a copy."""

    UNKNOWN = 0
    HTOD = 1
    DTOH = 2
    DTOD = 3
    HTOH = 4
    PTOP = 5
    UVM = 6


class Memory(IntEnum):
    """The kind of memory at one end of a copy."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    MANAGED = 4


class _Table:
    """What all tables share: equal lengths, rows by mask or slice."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def take(self, rows: Any) -> Any:
        """The same table with only these rows (a mask, slice or index array)."""
        return type(self)(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class DeviceOps(_Table):
    """Activity on devices: kernels, copies, memsets, opaque graph replays.

    `device` is the number that the capture itself uses, `process` a position in `Timeline.processes`.
    `launch` is the row in `HostCalls` that issued the work (many rows share one launch under graph replay).
    `graph` is the graph's id, or -1 for work outside of any graph; `graph_node` tells nodes of a replay apart.
    `bytes` is 0 for kernels. Grid and block are packed (`launch_shape`), 0 if unknown.
    """

    start: I64
    end: I64
    kind: U8
    device: I32
    stream: I64
    process: I32
    name_id: I32
    correlation: I64
    launch: I64
    graph: I64
    graph_node: I64
    bytes: I64
    copy_kind: U8
    src_memory: U8
    dst_memory: U8
    grid: I64
    block: I64


@dataclass(frozen=True)
class HostCalls(_Table):
    """API calls on the host. Names have no version suffix; `thread` is a position in `Timeline.threads`."""

    start: I64
    end: I64
    name_id: I32
    thread: I32
    correlation: I64


@dataclass(frozen=True)
class CpuOps(_Table):
    """Framework operators on the host. `shapes_id` is the interned text of the input shapes, -1 if not recorded."""

    start: I64
    end: I64
    name_id: I32
    thread: I32
    shapes_id: I32
    external_id: I64


@dataclass(frozen=True)
class Ranges(_Table):
    """NVTX ranges and user annotations on the host, never their projection on the device.

    Open ranges end at the window's end.
    """

    start: I64
    end: I64
    name_id: I32
    thread: I32


@dataclass(frozen=True)
class OsWaits(_Table):
    """Time in which the OS kept a thread: calls that block (poll, futex, sleep, read), or descheduled."""

    start: I64
    end: I64
    name_id: I32
    thread: I32


@dataclass(frozen=True)
class StackSamples:
    """Python stacks of one process, sampled at random moments while the rest was recorded.

    Args:
        process: position in `Timeline.processes`.
        time: the moments (ns, the timeline's clock, sorted) at which some thread had moved since the sample before.
        threads: for each sampled thread its position in `Timeline.threads`, -1 for none.
        at: position in `stacks` by moment and thread; -1 where the thread was not seen yet.
        stacks: positions in `calls`, innermost first.
        calls: "function (file:line)".
        rate_hz: mean number of samples a second that was asked for.
        taken: samples of each thread in all; those without a moment saw all threads as they were before. None if
            unknown.
        error_ns: by how much a moment may be wrong.
        errors: samples that could not be read.
    """

    process: int
    time: I64
    threads: I32
    at: I32
    stacks: tuple[tuple[int, ...], ...]
    calls: tuple[str, ...]
    rate_hz: float
    taken: float | None
    error_ns: int
    errors: int


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU as the capture knows it; figures are None where it doesn't tell. `rank` groups ranks of one job."""

    number: int
    name: str | None = None
    sm_count: int | None = None
    mem_bandwidth_bytes_per_s: float | None = None
    mem_total_bytes: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """One traced process. `rank` is the distributed rank where the capture tells it."""

    pid: int | None
    name: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Thread:
    """One host thread; `process` is a position in `Timeline.processes`."""

    tid: int | None
    process: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the timeline came from, and what is known to be wrong with it.

    `format` is "nsys", "kineto" or "native"; `window_from` is "record" (the file says when collection
    began and ended) or "activity" (first to last event: a mostly idle window then looks full).
    `node_level` is true when graph replays were recorded node by node, which stretches them.
    `warnings` are sentences for the reader; `missing` maps what can't be known ("cpu_ops", "launches",
    "device_names") to why; `diagnostics` are the recorder's own messages (severity, text).
    """

    format: str
    files: tuple[str, ...]
    tool: str | None = None
    schema: str | None = None
    window_from: str = "record"
    node_level: bool = False
    warnings: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    diagnostics: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GpuMetrics:
    """Sampled counters of one GPU of the node: by name the moments (ns, ascending) and the values (percent).

    `sm_active` is always there; `dram_read`, `dram_write`, `tensor_active`, `gr_active` where they were sampled.
    """

    gpu: int
    series: Mapping[str, tuple[I64, NDArray[np.float64]]]


@dataclass(frozen=True)
class Timeline:
    """One capture (one or several ranks, on one clock). `start` and `end` bound the window in ns."""

    origin: Origin
    start: int
    end: int
    ops: DeviceOps
    calls: HostCalls
    cpu_ops: CpuOps
    ranges: Ranges
    os_waits: OsWaits
    strings: tuple[str, ...]
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]
    threads: tuple[Thread, ...]
    samples: tuple[StackSamples, ...] = ()
    gpu_metrics: tuple[GpuMetrics, ...] = ()

    @property
    def window_ns(self) -> int:
        """The length of the window."""
        return self.end - self.start

    def name(self, string_id: int) -> str:
        """An interned string; "" for -1."""
        return self.strings[string_id] if string_id >= 0 else ""
