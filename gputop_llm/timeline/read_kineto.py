"""Reads Kineto (torch.profiler) Chrome traces: .json, .json.gz, one file per rank.

Events are parsed one at a time (msgspec) and kept as column values only. Damage that real traces have (Windows paths
with bare backslashes, NaN, control characters, a cut end) is mended on a second pass, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from gputop_llm.timeline.builder import NO_WORK, TimelineBuilder
from gputop_llm.timeline.json_events import NO_ARGS, Args, Event
from gputop_llm.timeline.json_stream import Header, TraceError, TraceFile
from gputop_llm.timeline.kineto_names import (
    api_name,
    copy_kind,
    copy_memories,
    is_api,
    pid_behind_label,
    rank_label,
    tp_rank,
)
from gputop_llm.timeline.launch_shape import packed_of
from gputop_llm.timeline.model import CopyKind, Device, Kind, Memory, Origin, Process, Thread, Timeline

OLD_PROFILER_DEVICE = "CUDA functions"
NO_LAUNCHES = "the trace has no launch correlation"
#: Times, in ns, and numbers beyond it are damage: columns hold 64 bits, and differences must fit as well.
_FAR = 2**62
_MANY_DEVICES = 2**30
#: Kernels of an AMD queue overlap by less where the parts of a graph run side by side.
_LATE_NS = 1_000_000


def read_kineto(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Timeline:
    """One timeline of one trace per rank, on one clock (baseTimeNanoseconds).

    Args:
        paths: one file per rank, in any order.
        progress: told the share read, 0 to 1.
        cancelled: asked now and then; true ends the reading.

    Raises:
        TraceError: a file can't be read, is no trace, or reading was cancelled.
    """
    builder = TimelineBuilder()
    ranks = [
        _Rank(builder, TraceFile(path, _share(progress, position, len(paths)), cancelled)).read()
        for position, path in enumerate(paths)
    ]
    found = [f"{rank.file.path.name}: {NO_WORK}" for rank in ranks if len(ranks) > 1 and not rank.works]
    found += [warning for rank in ranks for warning in rank.warnings()]
    if any((rank.header.runtime or "").startswith("HIP") for rank in ranks) and (late := _late_ends(builder)):
        found.append(
            f"{late:,} kernels last 1 ms or more beyond the beginning of the next one on their stream, as ROCm records "
            "them after a stall: busy may read too high"
        )
    recorded = [rank.span for rank in ranks if rank.span is not None]
    # All ranks must have been recording: the window is what their records share.
    start = end = 0
    window_from = "record"
    if len(recorded) == len(ranks):
        start, end = max(s for s, _ in recorded), min(e for _, e in recorded)
    if end <= start:
        window_from = "activity"
        start, end = _first_to_last(builder)
    origin = Origin(
        format="kineto",
        files=tuple(str(path) for path in paths),
        tool=ranks[0].tool,
        schema=ranks[0].header.schema,
        window_from=window_from,
        node_level=any(rank.node_level for rank in ranks),
        warnings=tuple(dict.fromkeys(found)),
        missing=_missing(builder, ranks),
    )
    return builder.build(origin, start, end)


class _Rank:
    """One file being read into the builder."""

    def __init__(self, builder: TimelineBuilder, file: TraceFile) -> None:
        self.builder = builder
        self.file = file
        self.header = Header()
        self.process = 0
        self.span: tuple[int, int] | None = None
        self.node_level = False
        self.old_profiler = False
        self.others = 0
        self.works = False
        self._threads: dict[tuple[Any, Any], int] = {}
        self._thread_names: dict[tuple[Any, Any], str] = {}
        self._process_names: dict[Any, str] = {}
        self._devices: dict[tuple[int, int], int] = {}
        self._skipped = 0
        self._processes: dict[str | None, int] = {}
        self._main_pids: dict[int, Any] = {}
        self._base = 0

    @property
    def tool(self) -> str:
        """What recorded it."""
        if self.old_profiler:
            return "old autograd profiler"
        return f"Kineto ({self.header.runtime})" if self.header.runtime else "Kineto"

    def read(self) -> _Rank:
        """Takes all events of the file."""
        builder = self.builder
        self.header = self.file.header()
        self.process = self._process_of(None)
        self._base = self.header.base_ns
        taken = 0
        for event in self.file.events():
            try:
                self._take(event)
                taken += 1
            except (TypeError, ValueError, ArithmeticError, AttributeError, OverflowError):
                self._skipped += 1
        if self._skipped and not taken:
            raise TraceError(
                f"cannot read {self.file.path}",
                f"none of its {self._skipped:,} events has a name, a time and a duration that can be",
                "record it again",
            )
        for label, position in self._processes.items():
            pid = self._main_pids.get(position)
            name = self._process_names.get(pid) if pid is not None else None
            number = pid if isinstance(pid, int) else pid_behind_label(pid)
            builder.processes[position] = Process(number, name, self.header.rank if label is None else tp_rank(label))
        for (pid, tid), position in self._threads.items():
            process = builder.threads[position].process
            builder.threads[position] = Thread(
                tid if isinstance(tid, int) else None, process, self._thread_names.get((pid, tid))
            )
        return self

    def _process_of(self, pid: Any) -> int:
        """The process of an event: the file's one, or that of the rank whose label a merged file has put there."""
        label = rank_label(pid)
        if label not in self._processes:
            # The file's own place is the first rank's where all have labels.
            if self._processes.keys() == {None} and not self._main_pids and not self._devices:
                self._processes = {label: self._processes[None]}
            else:
                self._processes[label] = len(self.builder.processes)
                self.builder.processes.append(Process(None))
        return self._processes[label]

    def warnings(self) -> Iterator[str]:
        """What a reader of the verdict should know of the file."""
        yield from self.file.warnings
        if self._skipped:
            yield f"{self._skipped} events of {self.file.path.name} could not be understood and were left out"
        if self.old_profiler:
            yield "a trace of the old autograd profiler: streams and launches are not recorded in it"

    def _take(self, event: Event) -> None:
        phase = event.ph
        if phase == "X":
            self._take_span(event)
        elif phase == "M":
            self._take_name(event)
        else:
            self.others += 1

    def _take_name(self, event: Event) -> None:
        name = event.args.name if event.args else None
        if event.name == "thread_name" and isinstance(name, str):
            self._thread_names[(event.pid, event.tid)] = name.strip()
        elif event.name == "process_name" and isinstance(name, str):
            self._process_names[event.pid] = name

    def _take_span(self, event: Event) -> None:
        category = event.cat.lower() if event.cat else ""
        start = self._base + _ns(event.ts)
        end = start if event.dur is None else start + _ns(event.dur)
        if not -_FAR < start <= end < _FAR:
            raise ValueError("a time that no clock shows, or an end before the start")
        name = event.name or ""
        if not isinstance(name, str):
            raise TypeError("a name that is no text")
        args = event.args or NO_ARGS
        builder = self.builder
        if category == "kernel" or category.startswith("gpu_mem"):
            self._take_device_op(category, name, start, end, args, event)
        elif is_api(category):
            correlation = _int(args.correlation, 0)
            builder.calls.append(start, end, builder.intern(api_name(name)), self._thread(event), correlation)
        elif category in ("cpu_op", "operator"):
            shapes = bytes(args.input_dims) or bytes(args.input_dims_old)
            builder.cpu_ops.append(
                start,
                end,
                builder.intern(name),
                self._thread(event),
                builder.intern(_shapes(shapes)) if shapes else -1,
                _int(args.external_id, -1),
            )
        elif category == "user_annotation":
            builder.ranges.append(start, end, builder.intern(name), self._thread(event))
        elif category == "trace" and name.startswith("PyTorch Profiler"):
            self.span = (start, end) if self.span is None else (max(self.span[0], start), min(self.span[1], end))
        elif not category and event.pid == OLD_PROFILER_DEVICE:
            self.old_profiler = True
            self._append_op(start, end, Kind.KERNEL, self._device(0), -1, name, 0, args)
        else:
            # It frames or projects what is there already (gpu_user_annotation, ac2g): never work of its own.
            self.others += 1

    def _take_device_op(self, category: str, name: str, start: int, end: int, args: Args, event: Event) -> None:
        if start <= 0 and (self._base or start == end):
            raise ValueError("the GPU never gave it a time")
        self.process = self._process_of(event.pid)
        device = self._device(_int(args.device, _int(event.pid, 0)), rank_label(event.pid))
        stream = _int(args.stream, _int(event.tid, -1))
        kind = {"gpu_memcpy": Kind.COPY, "gpu_memset": Kind.MEMSET}.get(category, Kind.KERNEL)
        self._append_op(start, end, kind, device, stream, name, _int(args.correlation, 0), args)

    def _append_op(
        self,
        start: int,
        end: int,
        kind: Kind,
        device: int,
        stream: int,
        name: str,
        correlation: int,
        args: Args,
    ) -> None:
        direction, source, target = CopyKind.UNKNOWN, Memory.UNKNOWN, Memory.UNKNOWN
        size = 0
        if kind is not Kind.KERNEL:
            size = _int(args.bytes, 0)
        if kind is Kind.COPY:
            direction = copy_kind(name)
            source, target = copy_memories(name)
        node = _int(args.graph_node_id, -1)
        graph = _int(args.graph_id, -1)
        if node > 0:
            self.node_level = True
        self.works = True
        builder = self.builder
        builder.ops.append(
            start,
            end,
            int(kind),
            device,
            stream,
            self.process,
            builder.intern(name),
            correlation,
            -1,
            graph,
            node,
            size,
            int(direction),
            int(source),
            int(target),
            packed_of(args.grid),
            packed_of(args.block),
        )

    def _device(self, number: int, label: str | None = None) -> int:
        """The timeline's number of a device of this rank: its own, unless another rank has taken it."""
        known = self._devices.get((self.process, number))
        if known is not None:
            return known
        if abs(number) >= _MANY_DEVICES:
            raise ValueError("a device number that no machine has")
        taken = {d.number for d in self.builder.devices}
        free = number if number not in taken else max(taken) + 1
        described = self.header.devices.get(number)
        # A merged file's header is that of one of its ranks.
        rank = self.header.rank if label is None else tp_rank(label)
        owner = label if rank is None else f"rank {rank}"
        if free != number or (described is None and owner is not None and taken):
            own = f"device {number} of {owner}" if owner is not None else None
            name = " · ".join(part for part in (described.name if described else None, own) if part) or None
        else:
            name = described.name if described else None
        self.builder.devices.append(
            Device(
                number=free,
                name=name or None,
                sm_count=described.sm_count if described else None,
                mem_total_bytes=described.mem_total_bytes if described else None,
                compute_capability=described.compute_capability if described else None,
            )
        )
        self._devices[self.process, number] = free
        return free

    def _thread(self, event: Event) -> int:
        key = (event.pid, event.tid)
        position = self._threads.get(key)
        if position is None:
            process = self._process_of(event.pid)
            position = self._threads[key] = len(self.builder.threads)
            self.builder.threads.append(Thread(None, process))
            if isinstance(event.pid, int) or pid_behind_label(event.pid) is not None:
                self._main_pids.setdefault(process, event.pid)
        return position


def _ns(microseconds: Decimal | None) -> int:
    """Exact nanoseconds: a float of absolute microseconds would lose them."""
    if microseconds is None:
        raise ValueError("an event without a time")
    # Else 1e900000 would become a whole number of so many digits.
    if microseconds.adjusted() > 15:
        raise ValueError("a time that no clock shows")
    return int(microseconds * 1000)


def _int(value: Any, default: int) -> int:
    if value is None or isinstance(value, bool):
        return default
    try:
        number = int(value)
    except (TypeError, ValueError, ArithmeticError):
        return default
    return number if -_FAR < number < _FAR else default


def _shapes(shapes: bytes) -> str:
    return shapes[:400].decode("utf-8", "replace").replace("\n", "").replace("  ", "")


def _share(progress: Callable[[float], None] | None, position: int, count: int) -> Callable[[float], None] | None:
    if progress is None:
        return None
    return lambda share: progress((position + share) / count)


def _late_ends(builder: TimelineBuilder) -> int:
    """How many kernels end so late that they lie over the next one of their stream, which a queue in order can't do."""
    columns = dict(zip(builder.ops.names, builder.ops.columns, strict=True))
    start, end, kind, device, stream = (
        np.frombuffer(columns[name], dtype=np.int64) for name in ("start", "end", "kind", "device", "stream")
    )
    order = np.lexsort((start, stream, device, kind))
    order = order[kind[order] == Kind.KERNEL]
    here, after = order[:-1], order[1:]
    same = (device[here] == device[after]) & (stream[here] == stream[after])
    return int((same & (end[here] - start[after] >= _LATE_NS)).sum())


def _first_to_last(builder: TimelineBuilder) -> tuple[int, int]:
    """From the first to the last device activity; of host activity where there is none."""
    for table in (builder.ops, builder.calls, builder.cpu_ops, builder.ranges):
        if len(table):
            starts = np.frombuffer(table.columns[0], dtype=np.int64)
            ends = np.frombuffer(table.columns[1], dtype=np.int64)
            return int(starts.min()), int(ends.max())
    return 0, 0


def _missing(builder: TimelineBuilder, ranks: Sequence[_Rank]) -> dict[str, str]:
    missing: dict[str, str] = {"os_waits": "Kineto records no OS waits"}
    if not len(builder.cpu_ops):
        missing["cpu_ops"] = (
            "no CPU operators in the trace (CPU activity was off, or the profiler ran on another thread)"
        )
    if not len(builder.ranges):
        missing["ranges"] = "no user annotations in the trace"
    if not len(builder.calls):
        missing["launches"] = NO_LAUNCHES
    if not len(builder.ops):
        others = sum(rank.others for rank in ranks)
        if any(rank.file.cut for rank in ranks):
            why = "the trace is cut off before its first device activity"
        elif others and not any(map(len, (builder.calls, builder.cpu_ops, builder.ranges))):
            why = (
                f"none of its {others:,} events is a kernel, an operator or a CUDA call: another program's trace? "
                "(those of JAX and TensorFlow are not read)"
            )
        else:
            why = "no device activity in the trace (CUDA activity was off, or the window closed too early)"
        missing["device_activity"] = why
    if any(rank.old_profiler for rank in ranks):
        missing["launches"] = NO_LAUNCHES + " (old autograd profiler)"
        missing["streams"] = "the trace has no streams (old autograd profiler)"
    return missing
