"""Small edits of a reading, to be put together in a scenario: what a GPU, the host or a process is made to say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gputop_llm.demo.cause import Edit, Moment
from gputop_llm.demo.identity import FIRST_PID, NOTE
from gputop_llm.demo.wire import NodeReading
from gputop_llm.model import Gpm, Gpu, GpuProcess, Host, ProcessLoad, Target, TargetProcess, ThrottleReason, XidEvent

GIB = 1 << 30
_NEIGHBOUR_PID = FIRST_PID + 90_000


def gpu(change: Callable[[Gpu, Moment], Gpu], index: int | None = 0) -> Edit:
    """Changes the GPU of that index; None is for all of them."""

    def edit(reading: NodeReading, moment: Moment) -> NodeReading:
        gpus = tuple(change(g, moment) if index in (None, g.index) else g for g in reading.gpus.gpus)
        return replace(reading, gpus=replace(reading.gpus, gpus=gpus))

    return edit


def gpu_says(index: int | None = 0, **fields: Any) -> Edit:
    """Fields of the GPU at these values."""
    return gpu(lambda g, _moment: replace(g, **fields), index)


def gpm_says(index: int | None = 0, **fields: Any) -> Edit:
    """GPM counters of the GPU at these values."""
    return gpu(lambda g, _moment: replace(g, gpm=replace(g.gpm, **fields)) if g.gpm else g, index)


def counts_up(field: str, per_s: float, from_count: int = 0) -> Edit:
    """A counter of GPU 0 that rises while the cause holds, and stays where it is afterwards."""

    def counted(g: Gpu, moment: Moment) -> Gpu:
        now: dict[str, Any] = {field: from_count + int(per_s * moment.held_s)}
        return replace(g, **now)

    return gpu(counted)


def throttled(*reasons: str, clock_pct: float, share_pct: float = 100.0, **fields: Any) -> Edit:
    """GPU 0 runs at `clock_pct` percent of its highest clock for these reasons.

    Args:
        share_pct: how much of the time they hold.
        fields: further fields of the GPU ("power_w", "temp_c").
    """

    def slow(g: Gpu, _moment: Moment) -> Gpu:
        known = {reason.name: reason for reason in g.throttle or ()}
        for name in reasons:
            by = known[name].source if name in known else "counter"
            known[name] = ThrottleReason(name, True, share_pct if by == "counter" else None, by)
        clock = None if g.sm_clock_max_mhz is None else round(clock_pct / 100 * g.sm_clock_max_mhz)
        return replace(g, throttle=tuple(known.values()), sm_clock_mhz=clock, **fields)

    return gpu(slow)


def xid(number: int) -> Edit:
    """An Xid event on GPU 0, at the moment at which the cause began."""

    def event(g: Gpu, moment: Moment) -> Gpu:
        return replace(g, xids=(*g.xids, XidEvent(moment.began_wall_s, number)))

    return gpu(event)


def more_memory(used_bytes: int, owner: int = 0) -> Edit:
    """The process on GPU 0 holds so much more memory."""

    def bigger(g: Gpu, _moment: Moment) -> Gpu:
        processes = tuple(
            replace(p, mem_bytes=(p.mem_bytes or 0) + used_bytes) if i == owner else p
            for i, p in enumerate(g.processes or ())
        )
        return replace(g, processes=processes, mem_used_bytes=(g.mem_used_bytes or 0) + used_bytes)

    return gpu(bigger)


def neighbour(sm_pct: float, mem_bytes: int, grows_bytes_per_s: float = 0.0) -> Edit:
    """Somebody else's CUDA program on GPU 0."""

    def edit(reading: NodeReading, moment: Moment) -> NodeReading:
        mem = mem_bytes + int(grows_bytes_per_s * moment.held_s)
        entry = GpuProcess(_NEIGHBOUR_PID, "compute", mem, sm_pct, None)

        def beside(g: Gpu, _moment: Moment) -> Gpu:
            return replace(g, processes=(*(g.processes or ()), entry), mem_used_bytes=(g.mem_used_bytes or 0) + mem)

        process = TargetProcess(
            pid=_NEIGHBOUR_PID,
            ppid=1,
            role="other",
            title="python3 /demo/notebook.py",
            gpus=(0,),
            gpus_from="nvml",
            mem_bytes=mem,
            nvml_pid=_NEIGHBOUR_PID,
            state="R",
        )
        target = Target(
            key=f"demo-{_NEIGHBOUR_PID}",
            engine="cuda",
            root_pid=_NEIGHBOUR_PID,
            argv=("python3", "/demo/notebook.py"),
            processes=(process,),
            user="demo-neighbour",
            notes=(NOTE,),
        )
        targets = replace(reading.targets, targets=(*reading.targets.targets, target))
        return gpu(beside)(replace(reading, targets=targets), moment)

    return edit


def host_says(**fields: Any) -> Edit:
    """Fields of the host at these values."""

    def edit(reading: NodeReading, _moment: Moment) -> NodeReading:
        return replace(reading, host=replace(reading.host, **fields))

    return edit


def cgroup_says(**fields: Any) -> Edit:
    """Fields of the engines' cgroup at these values."""

    def limited(load: ProcessLoad) -> ProcessLoad:
        return replace(load, cgroup=replace(load.cgroup, **fields)) if load.cgroup else load

    return _loads(limited)


def idle(index: int | None) -> Edit:
    """The GPU of that index has nothing to do; None is for all of them."""
    nothing = {name: 0.0 for name in Gpm.__dataclass_fields__ if name.endswith(("_pct", "_per_s"))}
    says, gpm = gpu_says(index, util_pct=0.0, mem_util_pct=0.0, power_w=118.0), gpm_says(index, **nothing)
    return lambda reading, moment: says(gpm(reading, moment), moment)


def asleep(*roles: str, rank: str | None = None, state: str = "S") -> Edit:
    """Processes of these roles (of one rank, where it is given) use no CPU; `state` "T" is a stopped one."""

    def is_meant(process: TargetProcess) -> bool:
        return process.role in roles and rank in (None, process.rank)

    def still(load: ProcessLoad) -> ProcessLoad:
        threads = tuple(replace(thread, cpu_pct=0.0) for thread in load.top_threads)
        return replace(
            load,
            state=state,
            cpu_pct=0.0,
            main_thread_pct=0.0,
            top_threads=threads,
            ctx_voluntary_per_s=0.0,
            ctx_involuntary_per_s=0.0,
        )

    def edit(reading: NodeReading, moment: Moment) -> NodeReading:
        targets = tuple(
            replace(t, processes=tuple(replace(p, state=state) if is_meant(p) else p for p in t.processes))
            for t in reading.targets.targets
        )
        meant = {p.pid for t in targets for p in t.processes if is_meant(p)}
        reading = replace(reading, targets=replace(reading.targets, targets=targets))
        return _loads(lambda load: still(load) if load.pid in meant else load)(reading, moment)

    return edit


def hot(role: str) -> Edit:
    """The main thread of these processes has no time left."""

    def full(load: ProcessLoad) -> ProcessLoad:
        first, *others = load.top_threads
        threads = (replace(first, cpu_pct=99.8), *others)
        return replace(load, state="R", cpu_pct=101.3, main_thread_pct=99.8, top_threads=threads)

    return _loads(lambda load: full(load) if load.role == role else load)


def without_worker(rank: str) -> Edit:
    """The worker of that rank is gone from the lists of processes, and its memory from the GPU."""
    return _gone(lambda process: process.role == "worker" and process.rank == rank)


def ended() -> Edit:
    """The engines are gone, and all that they held."""
    without = _gone(lambda process: process.role != "other")

    def edit(reading: NodeReading, moment: Moment) -> NodeReading:
        reading = without(reading, moment)
        left = tuple(target for target in reading.targets.targets if target.processes)
        return replace(reading, targets=replace(reading.targets, targets=left))

    return edit


def orphaned() -> Edit:
    """The API servers are gone, and what they started lives on without them."""
    without = _gone(lambda process: process.role == "api-server")

    def alone(target: Target) -> Target:
        first, *others = target.processes
        return replace(
            target,
            key=f"demo-{first.pid}",
            root_pid=first.pid,
            argv=(first.title,),
            urls=(),
            urls_from=None,
            processes=(replace(first, ppid=1), *others),
            api_servers=0,
            orphan=True,
        )

    def edit(reading: NodeReading, moment: Moment) -> NodeReading:
        reading = without(reading, moment)
        targets = tuple(alone(t) if t.urls and t.processes else t for t in reading.targets.targets)
        return replace(reading, targets=replace(reading.targets, targets=targets))

    return edit


def _gone(is_gone: Callable[[TargetProcess], bool]) -> Edit:
    """These processes are in no list any more, and their memory is free."""

    def edit(reading: NodeReading, _moment: Moment) -> NodeReading:
        gone = {p.pid for t in reading.targets.targets for p in t.processes if is_gone(p)}
        targets = tuple(
            replace(t, processes=tuple(p for p in t.processes if p.pid not in gone)) for t in reading.targets.targets
        )
        gpus = tuple(_without(g, gone) for g in reading.gpus.gpus)
        return NodeReading(
            replace(reading.gpus, gpus=gpus),
            replace(reading.host, processes=tuple(p for p in reading.host.processes if p.pid not in gone)),
            replace(reading.targets, targets=targets),
        )

    return edit


def _without(g: Gpu, gone: set[int | None]) -> Gpu:
    left = tuple(p for p in g.processes or () if p.pid not in gone)
    freed = sum(p.mem_bytes or 0 for p in g.processes or () if p.pid in gone)
    return replace(g, processes=left, mem_used_bytes=(g.mem_used_bytes or 0) - freed)


def _loads(change: Callable[[ProcessLoad], ProcessLoad]) -> Edit:
    def edit(reading: NodeReading, _moment: Moment) -> NodeReading:
        host: Host = reading.host
        return replace(reading, host=replace(host, processes=tuple(change(load) for load in host.processes)))

    return edit
