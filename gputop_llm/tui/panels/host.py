"""The overview's host panel: the node, and how busy the engine's own threads are."""

from __future__ import annotations

from gputop_llm.model import CgroupCpu, Frame, Host, ProcessLoad
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Block, Line, Run, bar, joined, pad, warned_rule, width_of, wrapped
from gputop_llm.tui.panels.common import elsewhere, labelled, part_state, stepped_back
from gputop_llm.tui.panels.gpu_words import amount_text
from gputop_llm.units import DASH, number, pct, rate, size

# The busiest first: with more roles than room these are the ones that stall an engine.
# Of waiting for I/O: an engine that serves reads nothing, and a log line now and then is no news.
WORTH_TELLING_PCT = 1.0
_ROLE_ORDER = {"engine-core": 0, "worker": 1, "api-server": 2, "coordinator": 3}


def host_panel(frame: Frame, width: int, height: int) -> Block:
    """The node in one line, then one line per watched process."""
    host = frame.host.value
    title: Line = [("Host", "title")]
    if host is not None and host.cores is not None:
        title.append((f" {host.cores} cores", "dim"))
    if (words := elsewhere(frame)) is not None:
        title.append((f" {words}", "dim"))
    lines: list[Line] = [warned_rule(title, width, part_state(frame.host, frame.period_s))]
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
    return Block(stepped_back(lines[:height], frame.host))


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
    # What there is no room for is left out from the end: first what is wrong.
    parts = _warnings(process)
    group = process.cgroup
    if group is not None and group.quota_cpus is None:
        parts.append(labelled("CPU quota", "none"))
    elif group is not None and not group.throttled_pct:
        parts.append(labelled("quota", f"{_quota_text(group)} CPUs"))
    others = [t for t in process.top_threads if t.tid != process.pid][:2]
    if others:
        parts.append(labelled("threads", ", ".join(f"{printable(t.name)} {t.cpu_pct:.0f} %" for t in others)))
    parts.append(labelled("RSS", size(process.rss_bytes)))
    parts.append(labelled("pid", str(process.pid)))
    if group is not None and group.mem_limit_bytes is not None:
        parts.append(labelled("memory limit", amount_text(group.mem_used_bytes, group.mem_limit_bytes)))
    return [*head, *joined(parts, width - width_of(head))]


# By the letter of /proc/PID/stat.
_STATES = {"Z": "zombie: it has ended", "T": "stopped (SIGSTOP)", "t": "held by a debugger"}


def _warnings(process: ProcessLoad) -> list[list[Run]]:
    group = process.cgroup
    texts = []
    if process.state in _STATES:
        texts.append(_STATES[process.state])
    if group is not None and group.throttled_pct and group.quota_cpus is not None:
        texts.append(f"quota {_quota_text(group)} CPUs, throttled {group.throttled_pct:.0f} %")
    if process.swap_bytes:
        texts.append(f"{size(process.swap_bytes)} swapped out")
    if process.io_wait_pct and process.io_wait_pct >= WORTH_TELLING_PCT:
        texts.append(f"I/O wait {process.io_wait_pct:.0f} %")
    if group is not None and group.io_some_pct and group.io_some_pct >= WORTH_TELLING_PCT:
        texts.append(f"stalled on I/O {group.io_some_pct:.0f} %")
    return [[(f"▲ {text}", "warn")] for text in texts]


def _quota_text(cgroup: CgroupCpu) -> str:
    return f"{DASH if cgroup.used_cpus is None else f'{cgroup.used_cpus:.1f}'} of {number(cgroup.quota_cpus)}"
