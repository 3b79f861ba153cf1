"""The simulated host: what the processes of the engines cost in CPU, from the work they drive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gputop_llm.demo.identity import EngineIdentity
from gputop_llm.demo.roofline import Work
from gputop_llm.model import CgroupCpu, Host, ProcessLoad, ThreadLoad

CORES = 96
_MEM_BYTES = 1 << 40
_BASE_MEM_BYTES = 21 << 30
_BASE_CPU_PCT = 60.0
"""What all else on the node uses, in percent of one core."""

_API_S_PER_TOKEN = 22e-6
_API_S_PER_REQUEST = 2.5e-3
_GIB = 1 << 30

# Threads that every process has beside its main thread, in percent of one core.
_EVENTS_PCT = 1.1
_MESSAGES_PCT = 0.4
_SIDE_PCT = _EVENTS_PCT + _MESSAGES_PCT


@dataclass(frozen=True, slots=True)
class Drive:
    """What one data-parallel rank did in the last `seconds`: the work of one of its GPUs, and requests that ended."""

    work: Work
    finished: float
    seconds: float


class Busy(NamedTuple):
    """What tells a process from the others: CPU of its main thread, memory, threads, context switches a second.

    A minute of these is simulated before anybody asks for a `ProcessLoad`, which takes far longer to make.
    """

    pid: int
    role: str
    comm: str
    main_pct: float
    rss_gib: float
    threads: int
    switches: float

    @property
    def cpu_pct(self) -> float:
        """CPU of all its threads, in percent of one core."""
        return round(round(self.main_pct, 1) + _SIDE_PCT, 1)


def engine_busy(identity: EngineIdentity, drives: Sequence[Drive], jitter: float) -> tuple[Busy, ...]:
    """Each process of an engine, the API server first, given what each rank did; `jitter` is about 1."""
    tokens = sum(drive.work.decode_tokens / drive.seconds for drive in drives)
    requests = sum(drive.finished / drive.seconds for drive in drives)
    steps = sum(drive.work.steps / drive.seconds for drive in drives)
    api = 1.2 + 100 * jitter * (_API_S_PER_TOKEN * tokens + _API_S_PER_REQUEST * requests)
    busy = [Busy(identity.root_pid, "api-server", "vllm", api, 1.4, 41, 2.2 * steps + 40)]
    for pid, drive in zip(identity.core_pids, drives, strict=True):
        core = 0.6 + min(97.0, 100 * jitter * drive.work.host_s / drive.seconds)
        steps = drive.work.steps / drive.seconds
        busy.append(Busy(pid, "engine-core", "VLLM::EngineCor", core, 5.1, 108, 3.1 * steps + 20))
    if identity.tp > 1:
        # A worker spins while it waits for the next step: a full core whenever the engine is busy at all.
        spinning = 1.0 + min(98.0, 100 * drives[0].work.elapsed_s / drives[0].seconds)
        busy += [
            Busy(pid, "worker", "VLLM::Worker_TP", spinning, 4.4, 96, 1.1 * steps + 10)
            for pid in identity.gpu_pids.values()
        ]
    return tuple(busy)


def engine_loads(identity: EngineIdentity, busy: Sequence[Busy]) -> tuple[ProcessLoad, ...]:
    """The processes of an engine, in its cgroup."""
    used = sum(one.cpu_pct for one in busy) / 100
    path = f"/system.slice/demo-vllm-{identity.number}.service"
    group = CgroupCpu(
        path, 2, None, round(used, 3), throttled_pct=None, throttled_s_per_s=0.0, io_some_pct=0.0, io_full_pct=0.0
    )
    return tuple(_load(one, group) for one in busy)


def host(loads: tuple[ProcessLoad, ...], load_1m: float) -> Host:
    """The node as a whole, with those processes on it."""
    return Host(
        cores=CORES,
        cpu_pct=round(busy_pct(loads) / CORES, 2),
        iowait_pct=0.0,
        steal_pct=0.0,
        load_1m=round(load_1m, 2),
        mem_total_bytes=_MEM_BYTES,
        mem_available_bytes=_MEM_BYTES - _BASE_MEM_BYTES - sum(load.rss_bytes or 0 for load in loads),
        swap_used_bytes=0,
        swap_in_bytes_per_s=0.0,
        swap_out_bytes_per_s=0.0,
        processes=loads,
    )


def busy_pct(processes: Iterable[Busy | ProcessLoad]) -> float:
    """CPU of the whole node in percent of one core."""
    return _BASE_CPU_PCT + sum(process.cpu_pct or 0.0 for process in processes)


def plain_busy(pid: int) -> Busy:
    """A CUDA program with a busy main thread."""
    return Busy(pid, "other", "python3", 88.0, 3.2, 34, 35.0)


def plain_load(pid: int) -> ProcessLoad:
    """The same, in no cgroup of its own."""
    return _load(plain_busy(pid), None)


def _load(busy: Busy, cgroup: CgroupCpu | None) -> ProcessLoad:
    pid, main_pct = busy.pid, round(busy.main_pct, 1)
    side = (ThreadLoad(pid + 31, "cuda-EvtHandlr", _EVENTS_PCT), ThreadLoad(pid + 17, "ZMQbg/IO/0", _MESSAGES_PCT))
    return ProcessLoad(
        pid=pid,
        role=busy.role,
        state="R" if main_pct > 50 else "S",
        cpu_pct=busy.cpu_pct,
        rss_bytes=int(busy.rss_gib * _GIB),
        swap_bytes=0,
        threads=busy.threads,
        top_threads=(ThreadLoad(pid, busy.comm, main_pct), *side),
        main_thread_pct=main_pct,
        ctx_voluntary_per_s=round(busy.switches, 1),
        ctx_involuntary_per_s=round(busy.switches / 90, 1),
        io_wait_pct=0.0,
        cgroup=cgroup,
    )
