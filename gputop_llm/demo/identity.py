"""Who the simulated processes are: PIDs, titles, command lines, GPUs, and the target made of them.

The PIDs lie above 4,194,304, the highest that Linux gives out, so that none of them can ever
be taken for a real process.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.demo.requests import Limits
from gputop_llm.demo.roofline import LLAMA_8B, LLAMA_70B, ModelSpec
from gputop_llm.model import Target, TargetProcess

FIRST_PID = 5_000_001
ENGINE_VERSION = "0.32.0"
NOTE = "simulated by gputop-llm demo: no such process exists"

_PIDS_PER_ENGINE = 100
_PIDS_PER_LIFE = 20
_LIVES = _PIDS_PER_ENGINE // _PIDS_PER_LIFE
_USER = "demo"
ACTIVATION_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """A simulated vLLM on `gpus`: tensor-parallel over them, or with a data-parallel rank on each.

    Args:
        number: counts engines from 0.
        ranks: data-parallel ranks; 1, or one per GPU.
        life: counts its restarts.
    """

    number: int
    gpus: tuple[int, ...]
    limits: Limits
    started_s: float
    ranks: int = 1
    life: int = 0

    @property
    def tp(self) -> int:
        return len(self.gpus) // self.ranks

    @property
    def model(self) -> ModelSpec:
        """The model that it serves: one that several GPUs are worth having for, if it has several."""
        return LLAMA_8B if self.tp == 1 else LLAMA_70B

    @property
    def load(self) -> float:
        """How much of a scenario's traffic its GPUs can serve in the same state as one GPU serves the small model."""
        return 1.0 if self.tp == 1 else min(1.0, 0.08 + 0.14 * self.tp)

    @property
    def mem_bytes(self) -> int:
        """Memory that its process holds on each GPU: weights, the whole KV pool, activations and graphs."""
        pool = self.limits.num_gpu_blocks * self.limits.block_size * self.model.kv_bytes_per_token
        return int((self.model.weight_bytes + pool) / self.tp) + ACTIVATION_BYTES

    @property
    def root_pid(self) -> int:
        return FIRST_PID + _PIDS_PER_ENGINE * self.number + _PIDS_PER_LIFE * (self.life % _LIVES)

    @property
    def core_pids(self) -> tuple[int, ...]:
        """The engine core of each data-parallel rank."""
        return tuple(self.root_pid + 1 + rank for rank in range(self.ranks))

    @property
    def gpu_pids(self) -> dict[int, int]:
        """The process on each GPU: an engine core itself, or one worker per GPU."""
        if self.tp == 1:
            return dict(zip(self.gpus, self.core_pids, strict=True))
        return {gpu: self.core_pids[-1] + 1 + rank for rank, gpu in enumerate(self.gpus)}

    def argv(self, port: int) -> tuple[str, ...]:
        """The command line that would start it."""
        flags = [
            *("--max-model-len", str(self.limits.max_model_len)),
            *("--max-num-batched-tokens", str(self.limits.max_num_batched_tokens)),
        ]
        if self.limits.max_num_seqs != Limits().max_num_seqs:
            flags += ["--max-num-seqs", str(self.limits.max_num_seqs)]
        if self.tp > 1:
            flags += ["--tensor-parallel-size", str(self.tp)]
        if self.ranks > 1:
            flags += ["--data-parallel-size", str(self.ranks), "--api-server-count", "1"]
        if self.limits.spec_tokens:
            flags += [
                "--speculative-config",
                f'{{"method": "ngram", "num_speculative_tokens": {self.limits.spec_tokens}}}',
            ]
        return ("/demo/venv/bin/vllm", "serve", self.model.name, "--port", str(port), *flags)

    def processes(self) -> tuple[TargetProcess, ...]:
        """Its processes as discovery lists them."""
        members = [self._process(self.root_pid, 1, "api-server", "vllm")]
        for rank, pid in enumerate(self.core_pids):
            name = f"DP{rank}" if self.ranks > 1 else None
            title = f"VLLM::EngineCore_{name}" if name else "VLLM::EngineCore"
            gpu = self.gpus[rank] if self.tp == 1 else None
            members.append(self._process(pid, self.root_pid, "engine-core", title, name, gpu))
        if self.tp > 1:
            members += [
                self._process(pid, self.core_pids[0], "worker", f"VLLM::Worker_TP{rank}", f"TP{rank}", gpu)
                for rank, (gpu, pid) in enumerate(self.gpu_pids.items())
            ]
        return tuple(members)

    def target(self, port: int) -> Target:
        """It as a target whose metrics are served on `port`."""
        return Target(
            key=f"demo-{self.root_pid}",
            engine="vllm",
            root_pid=self.root_pid,
            argv=self.argv(port),
            model=self.model.name,
            version=ENGINE_VERSION,
            urls=(f"http://127.0.0.1:{port}",),
            urls_from="argv",
            processes=self.processes(),
            api_servers=1,
            user=_USER,
            started_s=self.started_s,
            notes=(NOTE,),
        )

    def _process(
        self, pid: int, ppid: int, role: str, title: str, rank: str | None = None, gpu: int | None = None
    ) -> TargetProcess:
        return TargetProcess(
            pid=pid,
            ppid=ppid,
            role=role,
            title=title,
            rank=rank,
            gpus=() if gpu is None else (gpu,),
            gpus_from=None if gpu is None else "nvml",
            mem_bytes=None if gpu is None else self.mem_bytes,
            nvml_pid=None if gpu is None else pid,
            state="S",
            start_s=self.started_s,
        )


def plain_job(gpus: tuple[int, ...], mem_bytes: int, started_s: float) -> Target:
    """A CUDA program that is no engine, on all of `gpus`."""
    argv = ("python3", "/demo/train.py")
    process = TargetProcess(
        pid=FIRST_PID,
        ppid=1,
        role="other",
        title=" ".join(argv),
        gpus=gpus,
        gpus_from="nvml",
        mem_bytes=mem_bytes * len(gpus),
        nvml_pid=FIRST_PID,
        state="R",
        start_s=started_s,
    )
    return Target(
        key=f"demo-{FIRST_PID}",
        engine="cuda",
        root_pid=FIRST_PID,
        argv=argv,
        processes=(process,),
        user=_USER,
        started_s=started_s,
        notes=(NOTE,),
    )
