"""The tables beside the findings: rows of plain values, each column with its unit in its name."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_llm.printable import printable
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.causes import CAUSE_LABELS, Cause
from gputop_llm.verdict.comm import Communication
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.copies import Copies
from gputop_llm.verdict.host import Host
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.kernels import Hot
from gputop_llm.verdict.operators import Operator, Operators
from gputop_llm.verdict.phases import Phases
from gputop_llm.verdict.step_marks import PHASE_LABELS
from gputop_llm.verdict.steps import Steps
from gputop_llm.verdict.streams import Overlap

Row = Mapping[str, object]
Rows = tuple[Row, ...]

_MOST = 20
_NAME = 120


def coverage(context: Context) -> Rows:
    """Each device: how busy, and with what. `work_ms` are summed durations, never latency."""
    names = {d.number: d.name for d in context.timeline.devices}
    return tuple(
        {
            "device": c.device,
            "name": printable(name, _NAME) if (name := names.get(c.device)) else None,
            "busy_pct": c.busy_pct,
            "busy_first_to_last_pct": c.active_pct,
            "busy_ms": c.busy_ns / 1e6,
            "kernel_busy_ms": c.kernel_busy_ns / 1e6,
            "copy_busy_ms": c.copy_busy_ns / 1e6,
            "kernels": c.counts[Kind.KERNEL],
            "graph_replays": c.counts[Kind.GRAPH],
            "copies": c.counts[Kind.COPY],
            "memsets": c.counts[Kind.MEMSET],
            "work_ms": sum(c.work_ns.values()) / 1e6,
        }
        for c in context.coverage
    )


def idle(context: Context) -> Rows:
    """Idle time of each device by what the submitting thread did; the shares sum to the idle time."""
    return tuple(
        {
            "device": number,
            "cause": CAUSE_LABELS[cause],
            "idle_ms": one.total_ns[cause] / 1e6,
            "idle_share_pct": one.share_pct(cause),
        }
        for number, one in context.idle.items()
        for cause in Cause
        if one.total_ns[cause]
    )


def gaps(context: Context) -> Rows:
    """The longest gaps of each device."""
    timeline = context.timeline
    found: list[Row] = []
    for number, one in context.idle.items():
        dominant = one.gaps.by_cause.dominant()
        for position in one.longest(5).tolist():
            after = int(one.gaps.next_op[position])
            name = timeline.name(int(timeline.ops.name_id[after])) if after >= 0 else ""
            found.append(
                {
                    "device": number,
                    "at_ms": (int(one.gaps.start[position]) - timeline.start) / 1e6,
                    "length_us": int(one.gaps.length[position]) / 1e3,
                    "cause": CAUSE_LABELS[Cause(int(dominant[position]))],
                    "next": printable(short_name(name) or name, _NAME) or None,
                }
            )
    return tuple(found)


def families(results: tuple[Hot, ...]) -> Rows:
    """Families of kernels of each device, by union time."""
    return tuple(
        {
            "device": hot.device,
            "family": family.family.value,
            "window_pct": hot.pct(family.union_ns),
            "union_ms": family.union_ns / 1e6,
            "calls": family.calls,
            "kernels": family.kernels,
            "work_ms": family.work_ns / 1e6,
        }
        for hot in results
        for family in hot.families
    )


def kernels(results: tuple[Hot, ...]) -> Rows:
    """The hottest kernels of each device, by union time."""
    return tuple(
        {
            "device": hot.device,
            "kernel": kernel.name,
            "window_pct": hot.pct(kernel.union_ns),
            "calls": kernel.calls,
            "mean_us": kernel.mean_ns / 1e3,
            "family": kernel.family.value,
            "longest_us": kernel.longest_ns / 1e3,
            "union_ms": kernel.union_ns / 1e6,
            "work_ms": kernel.work_ns / 1e6,
            "by_graph": kernel.by_graph,
            "streams": [number for number in kernel.streams if number >= 0],
            "grid": kernel.grid,
            "block": kernel.block,
            "full_name": kernel.full_name,
        }
        for hot in results
        for kernel in hot.kernels[:_MOST]
    )


def copies(results: tuple[Copies, ...]) -> Rows:
    """Copies of each device by direction and host memory."""
    return tuple(
        {
            "device": result.device,
            "direction": group.direction,
            "memory": group.memory,
            "count": group.count,
            "tiny": group.tiny,
            "bytes": group.bytes,
            "time_ms": group.time_ns / 1e6,
            "behind_kernels_pct": 100.0 * group.hidden_ns / group.time_ns if group.time_ns else None,
            "bytes_per_s": group.per_s,
            "link_pct": group.link_pct,
        }
        for result in results
        for group in result.groups
    )


def steps(results: tuple[Steps, ...]) -> Rows:
    """The repeating step of each device by phase; medians for one step."""
    return tuple(
        {
            "device": result.device,
            "phase": PHASE_LABELS[one.phase],
            "steps": one.steps,
            "per_s": one.per_s,
            "p50_ms": _ms(one.p50_ns),
            "p95_ms": _ms(one.p95_ns),
            "longest_ms": _ms(one.max_ns),
            "kernels": one.kernels,
            "launches": one.launches,
            "idle_us": one.idle_ns / 1e3,
            "busy_us": one.busy_ns / 1e3,
            "copied_bytes": one.copied_bytes,
            "inferred": result.inferred,
            "told_by": result.anchor,
        }
        for result in results
        for one in result.by_phase
    )


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e6


def phases(results: tuple[Phases, ...]) -> Rows:
    """The time of each phase on each device; prefill and decode are never averaged together."""
    return tuple(
        {
            "device": result.device,
            "phase": one.label,
            "steps": one.steps,
            "window_pct": 100.0 * one.total_ns / result.window_ns if result.window_ns else None,
            "total_ms": one.total_ns / 1e6,
            "busy_ms": one.busy_ns / 1e6,
            "kernels": one.kernels,
            "inferred": result.inferred,
        }
        for result in results
        for one in result.phases
    )


def communication(result: Communication) -> Rows:
    """Collectives of each device, and the part of them that no compute hides."""
    return tuple(
        {
            "device": one.device,
            "collectives": one.kernels,
            "communication_ms": one.comm_ns / 1e6,
            "communication_pct": one.pct(one.comm_ns),
            "exposed_ms": one.exposed_ns / 1e6,
            "exposed_pct": one.exposed_pct,
        }
        for one in result.devices
    )


def streams(results: tuple[Overlap, ...]) -> Rows:
    """The streams of each device; a stream's number means something only together with its device."""
    return tuple(
        {
            "device": result.device,
            "stream": stream.number if stream.number >= 0 else None,
            "busy_pct": result.pct(stream.busy_ns),
            "busy_ms": stream.busy_ns / 1e6,
            "rows": stream.rows,
        }
        for result in results
        for stream in result.streams[:_MOST]
    )


def threads(host: Host) -> Rows:
    """The host threads that matter, the busiest first."""
    return tuple(
        {
            "thread": thread.label,
            "launches": thread.launches,
            "api_ms": thread.api_ns / 1e6,
            "sync_ms": thread.sync_ns / 1e6,
            "operators_ms": thread.operator_ns / 1e6,
            "os_wait_ms": thread.os_wait_ns / 1e6,
            "work_pct": thread.work_pct,
        }
        for thread in host.threads[:_MOST]
    )


def operators(result: Operators | None) -> dict[str, Rows]:
    """Operators by name, and by name and shapes where those were recorded."""
    if result is None:
        return {}
    found = {"operators": tuple(_operator(one) for one in result.by_name[:_MOST])}
    if any(one.shapes for one in result.by_shapes):
        found["operators_by_shapes"] = tuple(_operator(one) for one in result.by_shapes[:_MOST])
    return found


def _operator(one: Operator) -> Row:
    row: dict[str, object] = {"operator": printable(one.name, _NAME)}
    if one.shapes is not None:
        row["shapes"] = printable(one.shapes, _NAME)
    return {
        **row,
        "calls": one.calls,
        "self_cpu_ms": one.self_cpu_ns / 1e6,
        "total_cpu_ms": one.total_cpu_ns / 1e6,
        "mean_cpu_us": one.mean_cpu_ns / 1e3,
        "self_device_ms": one.self_device_ns / 1e6,
        "total_device_ms": one.total_device_ns / 1e6,
        "device_pct": one.device_pct,
    }
