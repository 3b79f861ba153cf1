"""The whole simulated node: engines under load, their GPUs, the host; one clock for all of them.

Everything follows from scenario, seed, GPUs, engines and simulated time; polling has no
influence. Sensors move on a fixed grid of `SLICE_S`.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import combinations

from gputop_llm.demo.cause import LOADING_S, Cause, Page
from gputop_llm.demo.choice import gpus_per_engine
from gputop_llm.demo.gpu_physics import SLICE_S, SimulatedGpu
from gputop_llm.demo.host_physics import Busy, busy_pct, host, plain_busy, plain_load
from gputop_llm.demo.identity import NOTE, EngineIdentity, plain_job
from gputop_llm.demo.observations import Observations
from gputop_llm.demo.roofline import H200, Work
from gputop_llm.demo.script import Scenario
from gputop_llm.demo.served import Served
from gputop_llm.demo.traffic import WARM_UP_S
from gputop_llm.demo.wire import NodeReading
from gputop_llm.model import Gpu, GpuNode, GpuPair, GpuProcess, ProcessLoad, TargetList

_IDLE_MEM_BYTES = 645 << 20
_JOB_MEM_BYTES = 21 << 30
_JOB_PERIOD_S = 40.0
_LOAD_LAG_S = 60.0

HANGS_S = 60.0
SLOW_S = 3.0


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """How an engine's metrics page answers: after `delay_s`, with an HTTP status; 0 is no connection at all."""

    status: int
    text: str = ""
    delay_s: float = 0.0


class SimulatedNode:
    """A node with `gpus` H200s and `engines` vLLMs, each on an equal share of them.

    Args:
        script: what each engine is sent.
        seed: decides everything random.
        gpus: at least 1; those that no engine gets are idle.
        engines: 0 puts a plain CUDA program on all GPUs instead.
        started_s: wall time of scenario time 0.

    Raises:
        UsageError: fewer GPUs than engines, or none.
    """

    def __init__(self, script: Scenario, seed: int, gpus: int, engines: int, started_s: float) -> None:
        gpus = max(gpus, script.gpus * engines)
        share = gpus_per_engine(gpus, engines)
        up_s = started_s - script.up_s
        self.label = f"{script.name}, seed {seed}"
        self._script, self._seed, self._started_s = script, seed, started_s
        self._served = [
            Served(script, seed, self._identity(n, tuple(range(n * share, (n + 1) * share)), up_s), -WARM_UP_S)
            for n in range(engines)
        ]
        self._gpus = [SimulatedGpu(i, H200, share > 1, random.Random(f"{seed}/gpu{i}")) for i in range(gpus)]
        self._pairs = tuple(
            GpuPair(a, b, "NODE", nvlink=True, peer_access=True) for a, b in combinations(range(gpus), 2)
        )
        self._job = None if engines else plain_job(tuple(range(gpus)), _JOB_MEM_BYTES, up_s)
        self._owner = {gpu: n for n, served in enumerate(self._served) for gpu in served.identity.gpus}
        self._at_start = [served.metrics() for served in self._served]
        self._load_1m = 1.0
        self._grid = 0
        self._now_s = -WARM_UP_S

    @property
    def engines(self) -> int:
        """How many engines there are."""
        return len(self._served)

    def advance(self, to_s: float) -> None:
        """Runs everything up to scenario time `to_s`."""
        while (next_s := (self._grid + 1) * SLICE_S - WARM_UP_S) <= to_s:
            self._grid += 1
            begins, ends = self._changes(next_s)
            if (begins and begins.restart) or (ends and ends.restart_after):
                self._served = [self._restarted(served, next_s) for served in self._served]
            works = {gpu: work for served in self._served for gpu, work in served.advance(next_s).items()}
            for gpu in self._gpus:
                gpu.advance(works.get(gpu.index) or (_job_slice(next_s, gpu.index) if self._job else Work()))
            busy = busy_pct(self._busy()) / 100
            self._load_1m += (busy - self._load_1m) * (1 - math.exp(-SLICE_S / _LOAD_LAG_S))
        for served in self._served:
            served.catch_up(to_s)
        self._now_s = max(self._now_s, to_s)

    def _changes(self, next_s: float) -> tuple[Cause | None, Cause | None]:
        """The scenario's cause if it begins in this slice, and if it ends in it."""
        cause = self._script.cause
        if cause is None:
            return None, None
        before, now = cause.holds(next_s - SLICE_S), cause.holds(next_s)
        return cause if now and not before else None, cause if before and not now else None

    def _restarted(self, old: Served, at_s: float) -> Served:
        identity = replace(old.identity, started_s=self._started_s + at_s, life=old.identity.life + 1)
        return Served(self._script, self._seed, identity, at_s + LOADING_S)

    def _identity(self, number: int, gpus: tuple[int, ...], up_s: float) -> EngineIdentity:
        return EngineIdentity(number, gpus, self._script.limits, up_s, self._script.ranks)

    def observed(self, number: int) -> Observations:
        """What one engine has counted (its first data-parallel rank, if it has several)."""
        return self._served[number].engines[0].seen

    def metrics(self, number: int) -> str:
        """What one engine's `/metrics` page would say if nothing were wrong with it."""
        return self._served[number].metrics()

    def page(self, number: int) -> PageAnswer:
        """How one engine's `/metrics` page answers now."""
        cause = self._script.cause
        if self._now_s < self._served[number].start_s:
            return PageAnswer(0)
        if cause is None or not cause.holds(self._now_s) or cause.page is Page.ANSWERS:
            return PageAnswer(200, self.metrics(number))
        if cause.page is Page.GONE:
            return PageAnswer(0)
        if cause.page is Page.FAILS:
            return PageAnswer(500, "Internal Server Error")
        if cause.page is Page.STANDS:
            return PageAnswer(200, self._at_start[number])
        return PageAnswer(200, self.metrics(number), HANGS_S if cause.page is Page.HANGS else SLOW_S)

    def reading(self, ports: list[int]) -> NodeReading:
        """What NVML, the host and discovery would say now; engine n is served on `ports[n]`."""
        targets = [served.identity.target(port) for served, port in zip(self._served, ports, strict=True)]
        if self._job is not None:
            targets.append(self._job)
        reading = NodeReading(
            GpuNode(tuple(self._gpu(gpu) for gpu in self._gpus), driver="580.159.04", cuda="13.0", pairs=self._pairs),
            host(self._loads(), self._load_1m),
            TargetList(tuple(targets), notes=(f"{NOTE} ({self.label})",)),
        )
        cause = self._script.cause
        return reading if cause is None else cause.edited(reading, self._now_s, self._started_s)

    def _gpu(self, gpu: SimulatedGpu) -> Gpu:
        number = self._owner.get(gpu.index)
        if number is not None:
            owner = self._served[number]
            drive, mem_bytes = owner.drive(gpu.index), owner.identity.mem_bytes
            busy = min(100.0, 100 * drive.work.busy_s / drive.seconds)
            processes = (
                GpuProcess(owner.identity.gpu_pids[gpu.index], "compute", mem_bytes, float(round(busy)), None),
            )
            return gpu.reading(_IDLE_MEM_BYTES + mem_bytes, processes)
        if self._job is not None and self._job.root_pid is not None:
            processes = (GpuProcess(self._job.root_pid, "compute", _JOB_MEM_BYTES, None, None),)
            return gpu.reading(_IDLE_MEM_BYTES + _JOB_MEM_BYTES, processes)
        return gpu.reading(_IDLE_MEM_BYTES, ())

    def _busy(self) -> tuple[Busy, ...]:
        if self._job is not None and self._job.root_pid is not None:
            return (plain_busy(self._job.root_pid),)
        return tuple(one for served in self._served for one in served.busy())

    def _loads(self) -> tuple[ProcessLoad, ...]:
        if self._job is not None and self._job.root_pid is not None:
            return (plain_load(self._job.root_pid),)
        return tuple(load for served in self._served for load in served.loads())


def _job_slice(at_s: float, gpu: int) -> Work:
    """A training-like program: activity swings slowly, compute-heavy, a little later on each further GPU."""
    active = 0.62 + 0.33 * math.sin(2 * math.pi * at_s / _JOB_PERIOD_S - 0.4 * gpu)
    busy_s = min(1.0, 1.1 * active) * SLICE_S
    return Work(
        elapsed_s=SLICE_S,
        busy_s=busy_s,
        sm_active_s=0.8 * active * SLICE_S,
        occupancy_s=0.3 * active * SLICE_S,
        host_s=0.5 * SLICE_S,
        dram_bytes=0.35 * active * SLICE_S * H200.hbm_bytes_per_s,
        flop=0.38 * active * SLICE_S * H200.bf16_flop_per_s,
        steps=8 * SLICE_S,
    )
