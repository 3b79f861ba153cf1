"""The overview's host panel: the node, and how busy the engine's own threads are."""

from __future__ import annotations

from gputop_llm.model import CgroupCpu, Frame, Host, ProcessLoad
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, Run, bar, joined, pad, rule, width_of, wrapped
from gputop_llm.tui.panels.common import labelled, part_state
from gputop_llm.units import DASH, number, pct, rate, size

# The busiest first: with more roles than room these are the ones that stall an engine.
_ROLE_ORDER = {"engine-core": 0, "worker": 1, "api-server": 2, "coordinator": 3}


def host_panel(frame: Frame, width: int, height: int) -> Block:
    """The node in one line, then one line per watched process."""
    host = frame.host.value
    title: Line = [("Host", "title")]
    if host is not None and host.cores is not None:
        title.append((f" {host.cores} cores", "dim"))
    lines: list[Line] = [rule(title, width, part_state(frame.host, frame.period_s))]
    if host is None:
        text = f"▲ {printable(frame.host.error)}" if frame.host.error else "reading the host …"
        return Block([*lines, *wrapped(text, width, "warn" if frame.host.error else "dim")][:height])
    lines.append(_node_line(host, width))
    watched = sorted(
        host.processes, key=lambda p: (_ROLE_ORDER.get(p.role, 9), -(p.main_thread_pct or p.cpu_pct or 0.0))
    )
    ranks = _ranks(frame)
    shown = watched[: max(0, height - len(lines))]
    lines += [_process_line(p, ranks.get(p.pid), width) for p in shown]
    return Block(lines[:height])


def _ranks(frame: Frame) -> dict[int, str]:
    target = frame.focused
    return {p.pid: p.rank for p in target.processes if p.pid and p.rank} if target else {}


def _node_line(host: Host, width: int) -> Line:
    swapping = [labelled("swap in", rate(host.swap_in_bytes_per_s))] if host.swap_in_bytes_per_s else []
    steal = [labelled("steal", pct(host.steal_pct))] if host.steal_pct and host.steal_pct >= 0.5 else []
    return joined(
        [
            labelled("CPU", pct(host.cpu_pct)),
            labelled("load", number(host.load_1m)),
            labelled("memory free", free_text(host.mem_available_bytes, host.mem_total_bytes)),
            labelled("iowait", pct(host.iowait_pct, 1)),
            labelled("swap", size(host.swap_used_bytes)),
            *swapping,
            *steal,
        ],
        width,
    )


def free_text(free: float | None, total: float | None) -> str:
    """ "1.8 TiB of 2.0 TiB" """
    return size(free) if total is None else f"{size(free)} of {size(total)}"


def _process_line(process: ProcessLoad, rank: str | None, width: int) -> Line:
    name = f"{process.role} {rank}" if rank else process.role
    main = process.main_thread_pct
    value = main if main is not None else process.cpu_pct
    head: Line = [
        (pad(printable(name), 16), ""),
        (pad(pct(value), 5, right=True), "dim" if value is None else "strong"),
        (" of a core ", "dim"),
        *bar(value, 16 if width >= 110 else 10 if width >= 60 else 0, "busy"),
        ("  ", ""),
    ]
    parts: list[list[Run]] = []
    if process.cgroup is not None:
        parts.append(_cgroup(process.cgroup))
    others = [t for t in process.top_threads if t.tid != process.pid][:2]
    if others:
        parts.append(labelled("threads", ", ".join(f"{printable(t.name)} {t.cpu_pct:.0f} %" for t in others)))
    if process.swap_bytes:
        parts.append([(f"▲ {size(process.swap_bytes)} swapped out", "warn")])
    parts.append(labelled("RSS", size(process.rss_bytes)))
    parts.append(labelled("pid", str(process.pid)))
    return [*head, *joined(parts, width - width_of(head))]


def _cgroup(cgroup: CgroupCpu) -> list[Run]:
    if cgroup.quota_cpus is None:
        return labelled("CPU quota", "none")
    quota = f"{DASH if cgroup.used_cpus is None else f'{cgroup.used_cpus:.1f}'} of {number(cgroup.quota_cpus)}"
    if cgroup.throttled_pct:
        return [(f"▲ quota {quota} CPUs, throttled {cgroup.throttled_pct:.0f} %", "warn")]
    return labelled("quota", f"{quota} CPUs")
