"""What can be watched on this node: an engine, or any process that holds GPU memory."""

from __future__ import annotations

from dataclasses import dataclass

NO_PROCESS_DATA = "no process data: remote engine"


@dataclass(frozen=True, slots=True)
class TargetProcess:
    """One process of a target.

    Args:
        pid: in the monitor's own PID namespace; None when NVML names a PID that
            can't be seen from here (`note` says why).
        role: "api-server", "engine-core", "worker", "coordinator" or "other".
        rank: as the engine titles it ("DP0", "TP1", "DP1_PP0_TP3"); None without ranks.
        gpus: NVML indices that it uses.
        gpus_from: "nvml", or "inferred" (open device files, CUDA_VISIBLE_DEVICES); None if no GPU is known.
        state: the letter of /proc/PID/stat (R, S, D, T, Z); None if unreadable.
        unseen: why NVML's PID can't be seen: "pid-namespace" (a host PID, read inside a container:
            it may well be the target itself) or "other-user"; None for processes that are seen.
        container_pid: the PID that it has in its own PID namespace (container), where that is another one.
    """

    pid: int | None
    ppid: int | None
    role: str
    title: str
    rank: str | None = None
    gpus: tuple[int, ...] = ()
    gpus_from: str | None = None
    mig_instance: int | None = None
    mem_bytes: int | None = None
    nvml_pid: int | None = None
    state: str | None = None
    start_s: float | None = None
    note: str | None = None
    unseen: str | None = None
    container_pid: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """An engine (or CUDA process) found on this node, or a remote one given by URL.

    `key` names it for as long as it lives (root PID and start time, or the URL).
    `argv` has its secrets blanked. `urls_from` is "flag", "argv", "socket" or "network" (a socket under an address
    of the network of its own, as a container has it).
    `attachable` is None when it can be watched, else the reason why not.
    """

    key: str
    engine: str
    root_pid: int | None = None
    argv: tuple[str, ...] = ()
    model: str | None = None
    version: str | None = None
    urls: tuple[str, ...] = ()
    urls_from: str | None = None
    processes: tuple[TargetProcess, ...] = ()
    api_servers: int | None = None
    container: str | None = None
    user: str | None = None
    started_s: float | None = None
    orphan: bool = False
    attachable: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs of its processes that exist in this PID namespace."""
        return tuple(p.pid for p in self.processes if p.pid is not None)

    @property
    def remote(self) -> bool:
        """Whether it is known by its address alone: nothing of it was found on this node."""
        return self.urls_from == "flag" and not self.processes

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of all GPUs that its processes use, sorted."""
        return tuple(sorted({g for p in self.processes for g in p.gpus}))


@dataclass(frozen=True, slots=True)
class TargetList:
    """Everything found by one look at the node; `notes` are for the doctor and JSON."""

    targets: tuple[Target, ...] = ()
    notes: tuple[str, ...] = ()
