"""The rows of a native record, moved into the timeline's columns: kernels, copies, memsets, API calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.demangle import demangled
from gputop_llm.timeline.launch_shape import pack
from gputop_llm.timeline.model import I32, I64, U8, CopyKind, Kind, Memory, Thread
from gputop_llm.timeline.native_clock import RecordClock
from gputop_llm.timeline.native_format import Chunk
from gputop_llm.timeline.nsys_ids import translated
from gputop_llm.timeline.titles import copy_title, memset_title

#: Threads beyond these are taken together.
_MAX_THREADS = 1 << 16
#: CUDA's ordinals within one process; each is looked at by itself afterwards.
_MAX_DEVICE = 1 << 8
_MAX_SIZE = 1 << 62
#: Of mangled names in all, which costs some µs a letter at worst; programs have a tenth of that.
_MOST_LETTERS = 4 << 20
_OTHERS = -1

#: CUpti_ActivityMemcpyKind; arrays are device memory.
_COPIES = {
    1: CopyKind.HTOD,
    2: CopyKind.DTOH,
    3: CopyKind.HTOD,
    4: CopyKind.DTOH,
    5: CopyKind.DTOD,
    6: CopyKind.DTOD,
    7: CopyKind.DTOD,
    8: CopyKind.DTOD,
    9: CopyKind.HTOH,
    10: CopyKind.PTOP,
}
#: CUpti_ActivityMemoryKind.
_MEMORY = {
    1: Memory.PAGEABLE,
    2: Memory.PINNED,
    3: Memory.DEVICE,
    4: Memory.DEVICE,
    5: Memory.MANAGED,
    6: Memory.DEVICE,
    7: Memory.MANAGED,
}
_DOMAINS = {4: "driver", 5: "runtime"}


def _table(values: Mapping[int, int]) -> U8:
    table = np.zeros(256, dtype=np.uint8)
    table[list(values)] = [int(value) for value in values.values()]
    return table


_COPY_TABLE, _MEMORY_TABLE = _table(_COPIES), _table(_MEMORY)


class NativeRows:
    """Moves one record's rows.

    Args:
        builder: what they are added to; `process` is the record's position in its processes.
        clock: turns their times.
        kernel_names, api_names: by the ids that rows use.
        device_number: the timeline's number of a device of this record.
    """

    def __init__(
        self,
        builder: TimelineBuilder,
        process: int,
        clock: RecordClock,
        kernel_names: Mapping[int, str],
        api_names: Mapping[int, str],
        device_number: Callable[[int], int],
    ) -> None:
        self._builder, self._process, self._clock = builder, process, clock
        self._kernel_names, self._api_names = kernel_names, api_names
        self._device_number = device_number
        self._threads: dict[int, int] = {}
        self._demangled: dict[str, str] = {}
        self._letters = 0
        self.rows = 0
        self.node_rows = 0
        self.unnamed: set[int] = set()
        self.other_devices = 0
        #: Bounds of the device work that was kept, in the timeline's time.
        self.span: tuple[int, int] | None = None

    def take(self, chunk: int, rows: Any) -> None:
        """Adds the rows of one chunk; those with times or devices that can't be are counted instead."""
        self.rows += len(rows)
        if chunk != Chunk.CALLS:
            possible = rows["device"] < _MAX_DEVICE
            self.other_devices += int((~possible).sum())
            # The recorder's "never ended": the end is 0, whatever the start.
            rows = rows[possible]
        good, start, end = self._clock.spans(rows["start"], rows["end"])
        rows = rows[good]
        if not len(rows):
            return
        if chunk == Chunk.CALLS:
            self._calls(rows, start, end)
            return
        first, last = int(start.min()), int(end.max())
        self.span = (first, last) if self.span is None else (min(self.span[0], first), max(self.span[1], last))
        if chunk == Chunk.KERNELS:
            names, codes = translated(rows["name"].astype(np.int64), self._kernel_name), _codes(len(rows))
            self._work(Kind.KERNEL, rows, start, end, names, codes)
        else:
            self._transfer(chunk, rows, start, end)

    def _calls(self, rows: Any, start: I64, end: I64) -> None:
        self._builder.calls.extend(
            start=start,
            end=end,
            name_id=translated(rows["api"].astype(np.int64), self._call_name),
            thread=translated(rows["thread"].astype(np.int64), self._thread),
            correlation=rows["correlation"].astype(np.int64),
        )

    def _transfer(self, chunk: int, rows: Any, start: I64, end: I64) -> None:
        codes = _codes(len(rows))
        if chunk == Chunk.COPIES:
            codes[0] = _COPY_TABLE[rows["copy_kind"]]
            codes[1], codes[2] = _MEMORY_TABLE[rows["src_memory"]], _MEMORY_TABLE[rows["dst_memory"]]
        else:
            codes[2] = _MEMORY_TABLE[np.minimum(rows["memory"], 255)]
        kinds, sources, targets = codes.astype(np.int64)
        title = copy_title if chunk == Chunk.COPIES else memset_title
        names = translated(
            kinds << 16 | sources << 8 | targets, lambda c: self._builder.intern(title(c >> 16, c >> 8 & 255, c & 255))
        )
        self._work(Kind.COPY if chunk == Chunk.COPIES else Kind.MEMSET, rows, start, end, names, codes)

    def _work(self, kind: Kind, rows: Any, start: I64, end: I64, names: I32, codes: Any) -> None:
        inside = rows["graph_node"] > 0
        self.node_rows += int(inside.sum())
        sized = kind is not Kind.KERNEL
        self._builder.ops.extend(
            start=start,
            end=end,
            kind=int(kind),
            device=translated(rows["device"].astype(np.int64), self._device_number),
            stream=rows["stream"].astype(np.int64),
            process=self._process,
            name_id=names,
            correlation=rows["correlation"].astype(np.int64),
            launch=-1,
            graph=np.where(rows["graph"] > 0, rows["graph"].astype(np.int64), -1),
            # An id is only ever compared: its lowest 63 bits tell nodes apart as well.
            graph_node=np.where(inside, (rows["graph_node"] & np.uint64((1 << 63) - 1)).astype(np.int64), -1),
            bytes=np.minimum(rows["bytes"], np.uint64(_MAX_SIZE)).astype(np.int64) if sized else 0,
            copy_kind=codes[0],
            src_memory=codes[1],
            dst_memory=codes[2],
            grid=0 if sized else _packed(rows["grid"]),
            block=0 if sized else _packed(rows["block"]),
        )

    def _kernel_name(self, name: int) -> int:
        mangled = self._kernel_names.get(name)
        if mangled is None:
            self.unnamed.add(name)
            return self._builder.intern(f"kernel 0x{name:x}")
        if mangled not in self._demangled:
            self._letters += len(mangled)
            self._demangled[mangled] = demangled(mangled) if self._letters <= _MOST_LETTERS else mangled
        return self._builder.intern(self._demangled[mangled])

    def _call_name(self, api: int) -> int:
        domain, callback = _DOMAINS.get(api >> 24, "API"), api & 0xFFFFFF
        return self._builder.intern(self._api_names.get(api, f"{domain} call {callback}"))

    def _thread(self, thread: int) -> int:
        if thread not in self._threads:
            if len(self._threads) >= _MAX_THREADS and thread != _OTHERS:
                return self._thread(_OTHERS)
            self._threads[thread] = len(self._builder.threads)
            name = "other threads" if thread == _OTHERS else f"thread 0x{thread:x}"
            self._builder.threads.append(Thread(None, self._process, name))
        return self._threads[thread]


def _codes(length: int) -> Any:
    """Copy kind, source memory, target memory of each row."""
    return np.zeros((3, length), dtype=np.uint8)


def _packed(extents: Any) -> I64:
    x, y, z = extents.astype(np.int64).T
    return pack(x, y, z)
