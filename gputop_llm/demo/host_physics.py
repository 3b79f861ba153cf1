"""The simulated host: what the processes of the engines cost in CPU, from the work they drive."""

from __future__ import annotations

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class Drive:
    """What one engine did in the last `seconds`: the work of one of its GPUs, and requests that ended."""

    identity: EngineIdentity
    work: Work
    finished: float
    seconds: float
    jitter: float = 1.0

    def loads(self) -> tuple[ProcessLoad, ...]:
        """CPU of each of its processes."""
        steps = self.work.steps / self.seconds
        tokens = self.work.decode_tokens / self.seconds
        requests = self.finished / self.seconds
        api = 1.2 + 100 * self.jitter * (_API_S_PER_TOKEN * tokens + _API_S_PER_REQUEST * requests)
        core = 0.6 + min(97.0, 100 * self.jitter * self.work.host_s / self.seconds)
        spinning = 1.0 + min(98.0, 100 * self.work.elapsed_s / self.seconds)
        loads = [
            _load(self.identity.root_pid, "api-server", "vllm", api, 1.4, 41, 2.2 * steps + 40),
            _load(self.identity.core_pid, "engine-core", "VLLM::EngineCor", core, 5.1, 108, 3.1 * steps + 20),
        ]
        if self.identity.tp > 1:
            # A worker spins while it waits for the next step: a full core whenever the engine is busy at all.
            loads += [
                _load(pid, "worker", "VLLM::Worker_TP", spinning, 4.4, 96, 1.1 * steps + 10)
                for pid in self.identity.gpu_pids.values()
            ]
        used = sum(load.cpu_pct or 0.0 for load in loads) / 100
        path = f"/system.slice/demo-vllm-{self.identity.number}.service"
        group = CgroupCpu(path, 2, None, round(used, 3), throttled_pct=None, throttled_s_per_s=0.0)
        return tuple(replace(load, cgroup=group) for load in loads)


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


def busy_pct(loads: tuple[ProcessLoad, ...]) -> float:
    """CPU of the whole node in percent of one core."""
    return _BASE_CPU_PCT + sum(load.cpu_pct or 0.0 for load in loads)


def plain_load(pid: int) -> ProcessLoad:
    """A CUDA program with a busy main thread."""
    return _load(pid, "other", "python3", 88.0, 3.2, 34, 35.0)


def _load(
    pid: int, role: str, comm: str, main_pct: float, rss_gib: float, threads: int, switches: float
) -> ProcessLoad:
    side = (ThreadLoad(pid + 31, "cuda-EvtHandlr", 1.1), ThreadLoad(pid + 17, "ZMQbg/IO/0", 0.4))
    main_pct = round(main_pct, 1)
    return ProcessLoad(
        pid=pid,
        role=role,
        state="R" if main_pct > 50 else "S",
        cpu_pct=round(main_pct + sum(thread.cpu_pct for thread in side), 1),
        rss_bytes=int(rss_gib * _GIB),
        swap_bytes=0,
        threads=threads,
        top_threads=(ThreadLoad(pid, comm, main_pct), *side),
        main_thread_pct=main_pct,
        ctx_voluntary_per_s=round(switches, 1),
        ctx_involuntary_per_s=round(switches / 90, 1),
    )
