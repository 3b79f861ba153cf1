"""Synthetic captures: a host that launches work on GPUs, simulated to the nanosecond.

`Simulation` is driven like a program (launch, copy, synchronise, sleep…) and yields a `Schedule`: every row that a
perfect recorder would see. `synth_truth` says what is true of it; `synth_nsys`, `synth_kineto` and `synth_native`
write it to files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gputop_llm.timeline.model import CopyKind, Kind, Memory


@dataclass(frozen=True)
class Op:
    """Work on a device. `call` is the position of the call that issued it in `Schedule.calls`, None if unrecorded."""

    kind: Kind
    device: int
    stream: int
    process: int
    start: int
    end: int
    name: str
    call: int | None
    correlation: int
    graph: int | None = None
    node: int | None = None
    bytes: int = 0
    copy: CopyKind = CopyKind.UNKNOWN
    src: Memory = Memory.UNKNOWN
    dst: Memory = Memory.UNKNOWN
    grid: tuple[int, int, int] = (128, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)


@dataclass(frozen=True)
class Call:
    """An API call; `use` is "launch" (copies and memsets too), "sync", or "alloc"."""

    name: str
    use: str
    thread: int
    start: int
    end: int
    correlation: int


@dataclass(frozen=True)
class Span:
    """A range, framework operator or OS wait."""

    name: str
    thread: int
    start: int
    end: int
    shapes: str | None = None


@dataclass(frozen=True)
class SynthProcess:
    """A process. `visible` are the GPUs that it sees, in its own order (CUDA_VISIBLE_DEVICES); None: all."""

    pid: int
    name: str
    visible: tuple[int, ...] | None = None


@dataclass(frozen=True)
class SynthThread:
    tid: int
    process: int
    name: str


@dataclass(frozen=True)
class Schedule:
    """Everything that happened from `start` to `end`."""

    start: int
    end: int
    ops: tuple[Op, ...]
    calls: tuple[Call, ...]
    cpu_ops: tuple[Span, ...] = ()
    ranges: tuple[Span, ...] = ()
    waits: tuple[Span, ...] = ()
    processes: tuple[SynthProcess, ...] = ()
    threads: tuple[SynthThread, ...] = ()

    @property
    def devices(self) -> tuple[int, ...]:
        return tuple(sorted({op.device for op in self.ops}))

    def seen_by_nsys(self, emit_nvtx: bool = False) -> Schedule:
        """What Nsight Systems records of it: framework operators only under emit_nvtx."""
        return self if emit_nvtx else replace(self, cpu_ops=())

    def seen_by_kineto(self) -> Schedule:
        """What Kineto records of it: no OS waits."""
        return replace(self, waits=())


@dataclass
class _Rows:
    """Shared by the threads of one simulation."""

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    cpu_ops: list[Span] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)
    waits: list[Span] = field(default_factory=list)
    free_at: dict[tuple[int, int], int] = field(default_factory=dict)
    correlations: dict[int, int] = field(default_factory=dict)
    begun: set[tuple[int, int]] = field(default_factory=set)


class Simulation:
    """A program under the recorder. Times are ns; `node_mode` records graph replays node by node.

    Correlations count from 1 in each process, as CUPTI's do: they collide between processes. No two pieces of work of a
    device begin in the same moment (which of them ended a gap could not be told): the second is a `tick_ns` late.
    """

    def __init__(self, start: int = 0, node_mode: bool = False, node_gap_ns: int = 300, tick_ns: int = 1) -> None:
        self.start = start
        self.tick_ns = tick_ns
        self.node_mode = node_mode
        self.node_gap_ns = node_gap_ns
        self._rows = _Rows()
        self._processes: list[SynthProcess] = []
        self._threads: list[SynthThread] = []
        self._hosts: list[Host] = []

    def process(self, pid: int = 4242, name: str = "python3", visible: tuple[int, ...] | None = None) -> int:
        """Adds a process; its position."""
        self._processes.append(SynthProcess(pid, name, visible))
        return len(self._processes) - 1

    def host(self, process: int | None = None, device: int = 0, name: str = "python3") -> Host:
        """Adds a host thread that works for one device (in a process of its own if none is given)."""
        if process is None:
            process = self.process(pid=4242 + len(self._processes))
        number = len(self._threads)
        self._threads.append(SynthThread(self._processes[process].pid + number, process, name))
        self._hosts.append(Host(self, self._rows, number, process, device))
        return self._hosts[-1]

    def schedule(self, idle_after_ns: int = 0) -> Schedule:
        """All that was done; the window ends `idle_after_ns` after the last row."""
        rows = self._rows
        last = max([self.start, *(h.now for h in self._hosts), *(op.end for op in rows.ops)])
        return Schedule(
            start=self.start,
            end=last + idle_after_ns,
            ops=tuple(sorted(rows.ops, key=lambda op: op.start)),
            calls=tuple(rows.calls),
            cpu_ops=tuple(rows.cpu_ops),
            ranges=tuple(rows.ranges),
            waits=tuple(rows.waits),
            processes=tuple(self._processes),
            threads=tuple(self._threads),
        )


class Host:
    """One host thread; `now` is its clock."""

    def __init__(self, simulation: Simulation, rows: _Rows, thread: int, process: int, device: int) -> None:
        self._simulation, self._rows = simulation, rows
        self.thread, self.process, self.device = thread, process, device
        self.now = simulation.start

    def run(self, ns: int) -> None:
        """Python or other code that no recorder sees."""
        self.now += ns

    def sleep(self, ns: int, name: str = "poll") -> None:
        """Blocked by the OS."""
        self._rows.waits.append(Span(name, self.thread, self.now, self.now + ns))
        self.now += ns

    def alloc(self, ns: int, name: str = "cudaMalloc") -> None:
        self._call(name, "alloc", ns)

    def sync(self, stream: int | None = None, overhead_ns: int = 500, name: str | None = None) -> None:
        """Waits until a stream (or the whole device) has nothing left."""
        streams = [at for (d, s), at in self._rows.free_at.items() if d == self.device and stream in (None, s)]
        done = max([self.now, *streams])
        api = name or ("cudaDeviceSynchronize" if stream is None else "cudaStreamSynchronize")
        self._call(api, "sync", done - self.now + overhead_ns)

    def launch(self, stream: int, ns: int, name: str, *, call_ns: int = 4000, after_ns: int = 5000, seen: bool = True):
        """A kernel of `ns`, which begins `after_ns` after the call does, or when its stream is free."""
        call = self._call("cudaLaunchKernel", "launch", call_ns, seen)
        self._work(call, stream, ns, after_ns, kind=Kind.KERNEL, name=name)

    def memset(self, stream: int, ns: int, size: int, *, call_ns: int = 3000, after_ns: int = 4000) -> None:
        call = self._call("cudaMemsetAsync", "launch", call_ns)
        self._work(call, stream, ns, after_ns, kind=Kind.MEMSET, name="Memset (Device)", bytes=size, dst=Memory.DEVICE)

    def copy(
        self,
        stream: int,
        ns: int,
        size: int,
        kind: CopyKind,
        src: Memory,
        dst: Memory,
        *,
        blocking: bool = False,
        call_ns: int = 3000,
        after_ns: int = 4000,
    ) -> None:
        """A copy. It blocks if told to, or if it goes from the device into pageable memory."""
        waits = blocking or (kind is CopyKind.DTOH and dst is Memory.PAGEABLE)
        if waits:
            begin = max(self.now + after_ns, self._rows.free_at.get((self.device, stream), self.now))
            call_ns = max(call_ns, begin + ns - self.now)
        api = "cudaMemcpy" if blocking else "cudaMemcpyAsync"
        call = self._call(api, "sync" if waits else "launch", call_ns)
        name = f"Memcpy {_COPY_NAMES[kind]} ({src.name.title()} -> {dst.name.title()})"
        self._work(call, stream, ns, after_ns, kind=Kind.COPY, name=name, bytes=size, copy=kind, src=src, dst=dst)

    def replay(
        self, stream: int, graph: int, nodes: Sequence[tuple[str, int]], *, call_ns: int = 20000, after_ns: int = 12000
    ) -> None:
        """A replay of a CUDA graph with nodes (name, ns), one after the other."""
        call = self._call("cudaGraphLaunch", "launch", call_ns)
        pause = self._simulation.node_gap_ns
        if not self._simulation.node_mode:
            whole = sum(ns for _, ns in nodes) + pause * (len(nodes) - 1)
            self._work(call, stream, whole, after_ns, kind=Kind.GRAPH, name=f"CUDA graph {graph}", graph=graph)
            return
        for position, (name, ns) in enumerate(nodes):
            node = (graph << 32) + position + 1
            self._work(call, stream, ns, after_ns, kind=Kind.KERNEL, name=name, graph=graph, node=node)
            if position < len(nodes) - 1:
                self._rows.free_at[self.device, stream] += pause

    @contextmanager
    def op(self, name: str, shapes: str | None = None) -> Iterator[None]:
        """A framework operator around what is done inside."""
        begin = self.now
        yield
        self._rows.cpu_ops.append(Span(name, self.thread, begin, self.now, shapes))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """An NVTX range or user annotation around what is done inside."""
        begin = self.now
        yield
        self._rows.ranges.append(Span(name, self.thread, begin, self.now))

    def _call(self, name: str, use: str, ns: int, seen: bool = True) -> tuple[int, int | None, int]:
        """Start, position (None: the recorder misses it) and correlation of a call that was just made."""
        correlation = self._rows.correlations.get(self.process, 0) + 1
        self._rows.correlations[self.process] = correlation
        position = len(self._rows.calls) if seen else None
        if seen:
            self._rows.calls.append(Call(name, use, self.thread, self.now, self.now + ns, correlation))
        begin = self.now
        self.now += ns
        return begin, position, correlation

    def _work(self, call: tuple[int, int | None, int], stream: int, ns: int, after_ns: int, **row) -> None:
        begin, position, correlation = call
        key = (self.device, stream)
        start = max(begin + after_ns, self._rows.free_at.get(key, begin))
        while (self.device, start) in self._rows.begun:
            start += self._simulation.tick_ns
        self._rows.begun.add((self.device, start))
        self._rows.free_at[key] = start + ns
        self._rows.ops.append(
            Op(
                device=self.device,
                stream=stream,
                process=self.process,
                start=start,
                end=start + ns,
                call=position,
                correlation=correlation,
                **row,
            )
        )


_COPY_NAMES = {
    CopyKind.HTOD: "HtoD",
    CopyKind.DTOH: "DtoH",
    CopyKind.DTOD: "DtoD",
    CopyKind.HTOH: "HtoH",
    CopyKind.PTOP: "PtoP",
}
