"""What one poll of the host says about the node and the target's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThreadLoad:
    """A thread's CPU use since the previous poll, in percent of one core."""

    tid: int
    name: str
    cpu_pct: float


@dataclass(frozen=True, slots=True)
class CgroupCpu:
    """CPU quota and throttling of a process's cgroup since the previous poll.

    `quota_cpus` is None when there is no quota. `throttled_pct` is the share of
    enforcement periods that were throttled; `throttled_s_per_s` is throttled
    thread time per second (v2 `throttled_usec`, v1 `throttled_time`).
    `io_some_pct` is the share of the time in which at least one of the group's tasks was stalled on
    I/O, `io_full_pct` that in which all that could have run were (v2 `io.pressure`, the process's own group).
    """

    path: str
    version: int
    quota_cpus: float | None
    used_cpus: float | None
    throttled_pct: float | None
    throttled_s_per_s: float | None
    mem_used_bytes: int | None = None
    mem_limit_bytes: int | None = None
    io_some_pct: float | None = None
    io_full_pct: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """One process of the target since the previous poll; CPU in percent of one core.

    `run_wait_pct` is the share of the time in which the main thread wanted to run and had no CPU
    (the kernel's run-queue wait, /proc/PID/schedstat). `io_wait_pct` is the time that its threads waited for
    block I/O, swapping in included, in percent of one thread's time, all threads together
    (delayacct_blkio_ticks of /proc/PID/task/TID/stat).
    """

    pid: int
    role: str
    state: str | None = None
    cpu_pct: float | None = None
    rss_bytes: int | None = None
    swap_bytes: int | None = None
    threads: int | None = None
    top_threads: tuple[ThreadLoad, ...] = ()
    main_thread_pct: float | None = None
    run_wait_pct: float | None = None
    ctx_voluntary_per_s: float | None = None
    ctx_involuntary_per_s: float | None = None
    io_wait_pct: float | None = None
    cgroup: CgroupCpu | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """The node and the watched processes. CPU of the node is in percent of all cores."""

    cores: int | None = None
    cpu_pct: float | None = None
    iowait_pct: float | None = None
    steal_pct: float | None = None
    load_1m: float | None = None
    mem_total_bytes: int | None = None
    mem_available_bytes: int | None = None
    swap_used_bytes: int | None = None
    swap_in_bytes_per_s: float | None = None
    swap_out_bytes_per_s: float | None = None
    processes: tuple[ProcessLoad, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
