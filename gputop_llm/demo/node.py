"""The whole simulated node: engines under load, their GPUs, the host; one clock for all of them.

Everything follows from scenario, seed, GPUs, engines and simulated time; polling has no
influence. Sensors move on a fixed grid of `SLICE_S`.
"""

from __future__ import annotations

import math
import random
from collections import deque
from typing import NamedTuple

from gputop_llm.demo.batching import Engine
from gputop_llm.demo.gpu_physics import SLICE_S, SimulatedGpu
from gputop_llm.demo.host_physics import Drive, busy_pct, host, plain_load
from gputop_llm.demo.identity import NOTE, EngineIdentity, plain_job
from gputop_llm.demo.metrics_text import MetricsPage, cache_config
from gputop_llm.demo.observations import Observations
from gputop_llm.demo.roofline import H200, StepCost, Work
from gputop_llm.demo.scenarios import WARM_UP_S, Scenario, arrivals, gpus_per_engine
from gputop_llm.demo.wire import NodeReading
from gputop_llm.model import Gpu, GpuNode, GpuProcess, ProcessLoad, TargetList

UP_BEFORE_S = 3600.0
"""The engines have been up, idle, for this long when the demo starts."""

_IDLE_MEM_BYTES = 645 << 20
_JOB_MEM_BYTES = 21 << 30
_JOB_PERIOD_S = 40.0
_LOAD_LAG_S = 60.0
_WINDOW_SLICES = 4


class _Mark(NamedTuple):
    """An engine's sums at one moment of the grid."""

    at_s: float
    work: Work
    finished: int


class _Served:
    """One engine of the node with what is needed to tell what it did lately."""

    def __init__(self, script: Scenario, seed: int, identity: EngineIdentity) -> None:
        self.identity = identity
        model = identity.model
        self.engine = Engine(
            script.limits,
            StepCost(model, H200, identity.tp),
            arrivals(script, seed, identity.number, identity.load),
            -WARM_UP_S,
        )
        config = cache_config(script.limits, model.kv_bytes_per_token)
        self.page = MetricsPage(model.name, config, identity.started_s)
        self.api_cpu_s = 25.0
        self._dice = random.Random(f"{seed}/{identity.number}/host")
        self._jitter = 1.0
        self._marks: deque[_Mark] = deque([self._mark(-WARM_UP_S)], maxlen=_WINDOW_SLICES + 1)

    def advance(self, to_s: float) -> Work:
        """Runs to the next moment of the grid; returns the work of the slice."""
        self.engine.advance(to_s)
        self._marks.append(self._mark(to_s))
        self._jitter = self._dice.gauss(1.0, 0.02)
        self.api_cpu_s += SLICE_S / 100 * (self.drive().loads()[0].cpu_pct or 0.0)
        return self._marks[-1].work.since(self._marks[-2].work)

    def drive(self) -> Drive:
        """What it did in the last second."""
        first, last = self._marks[0], self._marks[-1]
        seconds = max(SLICE_S, last.at_s - first.at_s)
        finished = last.finished - first.finished
        return Drive(self.identity, last.work.since(first.work), finished, seconds, self._jitter)

    def _mark(self, at_s: float) -> _Mark:
        return _Mark(at_s, self.engine.work(), self.engine.seen.finished)


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
        share = gpus_per_engine(gpus, engines)
        up_s = started_s - UP_BEFORE_S
        self.label = f"{script.name}, seed {seed}"
        self._served = [
            _Served(script, seed, EngineIdentity(n, tuple(range(n * share, (n + 1) * share)), script.limits, up_s))
            for n in range(engines)
        ]
        self._gpus = [SimulatedGpu(i, H200, share > 1, random.Random(f"{seed}/gpu{i}")) for i in range(gpus)]
        self._job = None if engines else plain_job(tuple(range(gpus)), _JOB_MEM_BYTES, up_s)
        self._owner = {gpu: served for served in self._served for gpu in served.identity.gpus}
        self._load_1m = 1.0
        self._grid = 0

    @property
    def engines(self) -> int:
        """How many engines there are."""
        return len(self._served)

    def advance(self, to_s: float) -> None:
        """Runs everything up to scenario time `to_s`."""
        while (next_s := (self._grid + 1) * SLICE_S - WARM_UP_S) <= to_s:
            self._grid += 1
            works = {id(served): served.advance(next_s) for served in self._served}
            for gpu in self._gpus:
                owner = self._owner.get(gpu.index)
                if owner is not None:
                    gpu.advance(works[id(owner)])
                else:
                    gpu.advance(_job_slice(next_s, gpu.index) if self._job else Work())
            busy = busy_pct(self._loads()) / 100
            self._load_1m += (busy - self._load_1m) * (1 - math.exp(-SLICE_S / _LOAD_LAG_S))
        for served in self._served:
            served.engine.advance(to_s)

    def observed(self, number: int) -> Observations:
        """What one engine has counted."""
        return self._served[number].engine.seen

    def metrics(self, number: int) -> str:
        """The `/metrics` page of one engine."""
        served = self._served[number]
        return served.page.render(served.engine.seen, served.api_cpu_s)

    def reading(self, ports: list[int]) -> NodeReading:
        """What NVML, the host and discovery would say now; engine n is served on `ports[n]`."""
        targets = [served.identity.target(port) for served, port in zip(self._served, ports, strict=True)]
        if self._job is not None:
            targets.append(self._job)
        return NodeReading(
            GpuNode(tuple(self._gpu(gpu) for gpu in self._gpus), driver="580.159.04", cuda="13.0"),
            host(self._loads(), self._load_1m),
            TargetList(tuple(targets), notes=(f"{NOTE} ({self.label})",)),
        )

    def _gpu(self, gpu: SimulatedGpu) -> Gpu:
        owner = self._owner.get(gpu.index)
        if owner is not None:
            drive, mem_bytes = owner.drive(), owner.identity.mem_bytes
            busy = min(100.0, 100 * drive.work.busy_s / drive.seconds)
            processes = (
                GpuProcess(owner.identity.gpu_pids[gpu.index], "compute", mem_bytes, float(round(busy)), None),
            )
            return gpu.reading(_IDLE_MEM_BYTES + mem_bytes, processes)
        if self._job is not None and self._job.root_pid is not None:
            processes = (GpuProcess(self._job.root_pid, "compute", _JOB_MEM_BYTES, None, None),)
            return gpu.reading(_IDLE_MEM_BYTES + _JOB_MEM_BYTES, processes)
        return gpu.reading(_IDLE_MEM_BYTES, ())

    def _loads(self) -> tuple[ProcessLoad, ...]:
        if self._job is not None and self._job.root_pid is not None:
            return (plain_load(self._job.root_pid),)
        return tuple(load for served in self._served for load in served.drive().loads())


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
