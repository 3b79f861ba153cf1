"""The host of a frame as text: the node, then the watched processes."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_llm.model import CgroupCpu, Frame, ProcessLoad
from gputop_llm.printable import printable
from gputop_llm.report.reasons import unknown
from gputop_llm.units import DASH, number, pct, rate, size

_TOP = 3


def host_lines(frame: Frame) -> list[str]:
    """The node's CPU and memory, and each process of the engine with its busiest threads."""
    host = frame.host.value
    if host is None:
        return []
    lines = [
        f"Host  CPU {pct(host.cpu_pct)} of {host.cores or DASH} cores, load {number(host.load_1m)}, "
        f"I/O wait {pct(host.iowait_pct, 1)}, steal {pct(host.steal_pct, 1)}",
        f"  memory {size(host.mem_available_bytes)} available of {size(host.mem_total_bytes)}, "
        f"swap {size(host.swap_used_bytes)} used, in {rate(host.swap_in_bytes_per_s)}, "
        f"out {rate(host.swap_out_bytes_per_s)}",
    ]
    if host.processes:
        lines.append(
            f"  {'PID':>8}  {'role':12} {'CPU':>6} {'main thread':>11} {'I/O wait':>8} {'RSS':>9} {'swap':>9} "
            f"{'switches/s':>10}"
        )
    for process in host.processes:
        lines.append(_row(process))
        if process.top_threads:
            lines.append(f"  {'':8}  {_threads(process)}")
    groups = {p.cgroup.path: p.cgroup for p in host.processes if p.cgroup is not None}
    lines += [f"  {line}" for group in groups.values() for line in _cgroup(group)]
    lines += [f"  {line}" for line in unknown(host.missing)]
    return lines + _unknown(host.processes)


def _unknown(processes: Sequence[ProcessLoad]) -> list[str]:
    """What is unknown of the processes; a reason that holds for several is told once."""
    pids: dict[str, list[int]] = {}
    for process in processes:
        for line in unknown(process.missing):
            pids.setdefault(line, []).append(process.pid)
    return [
        f"  PID{'s' if len(which) > 1 else ''} {', '.join(map(str, which))}: {line}" for line, which in pids.items()
    ]


def _row(process: ProcessLoad) -> str:
    switches = None
    if process.ctx_voluntary_per_s is not None and process.ctx_involuntary_per_s is not None:
        switches = process.ctx_voluntary_per_s + process.ctx_involuntary_per_s
    return (
        f"  {process.pid:>8}  {printable(process.role):12} {pct(process.cpu_pct):>6} "
        f"{pct(process.main_thread_pct):>11} {pct(process.io_wait_pct):>8} {size(process.rss_bytes):>9} "
        f"{size(process.swap_bytes):>9} {number(switches):>10}"
    )


def _threads(process: ProcessLoad) -> str:
    busiest = (f"{printable(thread.name)} {pct(thread.cpu_pct)}" for thread in process.top_threads[:_TOP])
    return f"threads: {', '.join(busiest)}"


def _cgroup(group: CgroupCpu) -> list[str]:
    quota = "no CPU quota" if group.quota_cpus is None else f"CPU quota {number(group.quota_cpus)}"
    limit = "no limit" if group.mem_limit_bytes is None else f"limit {size(group.mem_limit_bytes)}"
    return [
        f"cgroup {printable(group.path)}",
        f"  {quota}, uses {number(group.used_cpus)} CPUs, throttled in {pct(group.throttled_pct)} of the periods; "
        f"memory {size(group.mem_used_bytes)}, {limit}",
        f"  stalled on I/O: some task {pct(group.io_some_pct, 1)} of the time, all {pct(group.io_full_pct, 1)}",
    ]
