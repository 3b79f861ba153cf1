"""Copies: how much, how fast against the link, from what memory, how much of it hidden behind kernels.

A device that is busy with copies alone computes nothing: transfer-bound, whatever its utilisation says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.timeline.intervals import length, overlap_with, subtract, union
from gputop_llm.timeline.model import I64, CopyKind, Kind, Memory
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals, kernel_intervals
from gputop_llm.verdict.facts import ms, over_devices, share, span
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.links import Link, host_link, peer_link

#: Copies up to this size cost their launch, whatever they carry.
TINY_BYTES = 4096
#: Up to this size a copy to the host carries tokens, flags or scalars.
READBACK_BYTES = 64 * 1024
_TRANSFER_BOUND_PCT = 30.0
_EXPOSED_WORTH_PCT = 3.0
_PAGEABLE_WORTH_PCT = 1.0
_TINY_WORTH_PCT = 2.0
#: From this volume on copies to the device stream something large, such as weights or KV blocks.
_STREAMED_BYTES = 1 << 30

_DIRECTIONS = {
    CopyKind.HTOD: "host to device",
    CopyKind.DTOH: "device to host",
    CopyKind.PTOP: "device to device, peers",
    CopyKind.UVM: "unified memory",
    CopyKind.DTOD: "within the device",
    CopyKind.HTOH: "host to host",
    CopyKind.UNKNOWN: "direction unknown",
}
_NO_TRANSFER = (CopyKind.DTOD, CopyKind.HTOH)

LESS_OFFLOAD = Advice(
    "keep on the GPU what each step needs: no CPU offload of weights or KV cache, or less to hold "
    "(quantised weights, more GPUs for one copy of the model)",
    {
        "vllm": "--cpu-offload-gb 0, --kv-offloading-size (down), --tensor-parallel-size (up)",
        "sglang": "--cpu-offload-gb 0, no --enable-hierarchical-cache, --tp-size (up)",
        "trtllm": "kv_cache_config.host_cache_size: 0, tensor_parallel_size (up)",
    },
)
PREFETCH = Advice("copy ahead on a stream of its own from pinned memory, so that kernels hide it")
PIN = Advice("copy from and to pinned memory (pin_memory(), buffers that are kept), without blocking")
FUSE_COPIES = Advice("gather the small inputs of a step in one pinned buffer and copy that once")


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Copies of one direction and host memory ("pageable", "pinned", "managed", "device", "unknown").

    `time_ns` is their union, `hidden_ns` the part of it with a kernel running. `per_s` is bytes ÷ that union.
    """

    direction: str
    memory: str
    count: int
    tiny: int
    bytes: int
    time_ns: int
    hidden_ns: int
    link: Link | None

    @property
    def per_s(self) -> float | None:
        """Bytes a second while copying."""
        return self.bytes * 1e9 / self.time_ns if self.time_ns else None

    @property
    def link_pct(self) -> float | None:
        """The rate as a share of the link's nominal one."""
        return 100.0 * self.per_s / self.link.bytes_per_s if self.link and self.per_s is not None else None


@dataclass(frozen=True)
class Copies:
    """One device's copies. Transfers are those that leave or enter it.

    `exposed_ns` is transfer time without a kernel, `pageable_exposed_ns` of it to or from pageable memory.
    `tiny` counts copies up to 4 KiB, `tiny_idle_ns` is the time the host spent in their calls while the device had run
    dry. `readbacks` counts copies to the host up to 64 KiB.
    """

    device: int
    window_ns: int
    groups: tuple[CopyGroup, ...]
    transfer_ns: int
    exposed_ns: int
    pageable_exposed_ns: int
    kernel_ns: int
    tiny: int
    tiny_idle_ns: int
    readbacks: int

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0


def analyse(context: Context) -> tuple[Copies, ...]:
    """One entry for each device with activity."""
    return tuple(_of_device(context, covered) for covered in context.coverage)


def _of_device(context: Context, covered: DeviceCoverage) -> Copies:
    timeline = context.timeline
    ops = timeline.ops
    own = (ops.device == covered.device) & (ops.kind == Kind.COPY)
    rows = np.flatnonzero(own & (ops.end > timeline.start) & (ops.start < timeline.end))
    kind, size = ops.copy_kind[rows], ops.bytes[rows]
    memory = np.where(kind == CopyKind.HTOD, ops.src_memory[rows], ops.dst_memory[rows])
    start, end = np.maximum(ops.start[rows], timeline.start), np.minimum(ops.end[rows], timeline.end)
    leaves = ~np.isin(kind, _NO_TRANSFER)
    transfers = union(start[leaves], end[leaves])
    paged = leaves & (memory == Memory.PAGEABLE)
    none = np.empty(0, dtype=np.int64)
    kernels = kernel_intervals(timeline, covered.device) if len(rows) else (none, none)
    tiny = size <= TINY_BYTES
    groups = []
    for code in np.unique(kind.astype(np.int64) << 8 | memory):
        of_group = (kind == code >> 8) & (memory == (code & 255))
        groups.append(
            _group(
                context,
                covered,
                kernels,
                CopyKind(code >> 8),
                Memory(code & 255),
                start[of_group],
                end[of_group],
                size[of_group],
            )
        )
    return Copies(
        device=covered.device,
        window_ns=covered.window_ns,
        groups=tuple(sorted(groups, key=lambda g: -g.time_ns)),
        transfer_ns=length(*transfers),
        exposed_ns=length(*subtract(transfers, kernels)),
        pageable_exposed_ns=length(*subtract(union(start[paged], end[paged]), kernels)),
        kernel_ns=covered.kernel_busy_ns,
        tiny=int(tiny.sum()),
        tiny_idle_ns=_call_time_while_dry(context, covered.device, ops.launch[rows][tiny]),
        readbacks=int(((kind == CopyKind.DTOH) & (size <= READBACK_BYTES)).sum()),
    )


def _group(
    context: Context,
    covered: DeviceCoverage,
    kernels: Intervals,
    kind: CopyKind,
    memory: Memory,
    start: I64,
    end: I64,
    size: I64,
) -> CopyGroup:
    busy = union(start, end)
    name = next((d.name for d in context.timeline.devices if d.number == covered.device), None)
    links = {CopyKind.HTOD: host_link, CopyKind.DTOH: host_link, CopyKind.PTOP: peer_link}
    return CopyGroup(
        direction=_DIRECTIONS[kind],
        memory=memory.name.lower(),
        count=len(size),
        tiny=int((size <= TINY_BYTES).sum()),
        bytes=int(size.sum()),
        time_ns=length(*busy),
        hidden_ns=int(overlap_with(*busy, kernels).sum()),
        link=links[kind](name) if kind in links else None,
    )


def _call_time_while_dry(context: Context, device: int, launch: I64) -> int:
    """How long the host was inside of some calls while the device waited for its next work (ns)."""
    calls, gaps = context.timeline.calls, context.idle[device].gaps
    launch = np.unique(launch[launch >= 0])
    dry = gaps.began == Began.DRY
    waits: Intervals = (gaps.start[dry], gaps.end[dry])
    return int(overlap_with(*union(calls.start[launch], calls.end[launch]), waits).sum())


def findings(results: tuple[Copies, ...], context: Context) -> list[Finding]:
    """Transfer-bound or copies that nothing hides; pageable copies; tiny ones. About the device that it costs most."""
    found: list[Finding] = []
    if not results:
        return found
    exposed = max(results, key=lambda r: r.pct(r.exposed_ns))
    pct = exposed.pct(exposed.exposed_ns)
    if pct >= _EXPOSED_WORTH_PCT:
        found.append(_exposed(exposed, results, context))
    paged = max(results, key=lambda r: r.pct(r.pageable_exposed_ns))
    if paged.pct(paged.pageable_exposed_ns) >= _PAGEABLE_WORTH_PCT:
        found.append(_pageable(paged, context))
    tiny = max(results, key=lambda r: r.pct(r.tiny_idle_ns))
    if tiny.pct(tiny.tiny_idle_ns) >= _TINY_WORTH_PCT and not context.blind:
        found.append(_tiny(tiny, context))
    return found


def _exposed(result: Copies, results: tuple[Copies, ...], context: Context) -> Finding:
    pct = result.pct(result.exposed_ns)
    bound = pct >= _TRANSFER_BOUND_PCT and result.exposed_ns > result.kernel_ns
    main = next(g for g in result.groups if g.direction not in (_DIRECTIONS[k] for k in _NO_TRANSFER))
    covered = next(c for c in context.coverage if c.device == result.device)
    volume = f"{_gb(main.bytes)} {main.direction} ({main.memory}) at {_rate(main)}"
    if bound:
        kernels = share(result.pct(result.kernel_ns))
        headline = f"Transfer-bound: copies fill {share(pct)} of the window and kernels {kernels}: {volume}"
    else:
        headline = f"Copies that no kernel hides take {share(pct)} of the window: {volume}"
    streams = main.direction == _DIRECTIONS[CopyKind.HTOD] and main.bytes >= _STREAMED_BYTES
    return Finding(
        id="transfer-bound" if bound else "copies-exposed",
        weight=Weight.SEVERE if bound else Weight.FINDING,
        headline=headline,
        facts=(
            *context.busy_facts(covered),
            Fact("kernels at work", result.pct(result.kernel_ns), "%", "|∪ kernels and graph replays| ÷ window"),
            Fact("copies without a kernel", pct, "%", "|∪ transfers − ∪ kernels| ÷ window"),
            *copy_facts(result),
            *over_devices(
                "copies without a kernel",
                {context.device_label(r.device): r.pct(r.exposed_ns) for r in results},
                "%",
                "|∪ transfers − ∪ kernels| ÷ window",
            ),
        ),
        cause="the GPU is busy, but with copies: "
        + (
            "what each step needs (weights, KV blocks) is kept in host memory and streamed in"
            if streams
            else f"mostly {main.direction}, {main.count:,} copies of {_gb(main.bytes / max(1, main.count))} on average"
        ),
        advice=(LESS_OFFLOAD, PREFETCH) if streams else (PREFETCH, PIN),
        recoverable_pct=pct,
        recoverable_formula="transfer time in which no kernel ran ÷ window",
        confidence="high: copies and kernels are recorded by the device",
        refuted_by="kernels run during these copies, on a device or in a process that was not captured",
        next_capture=None,
        subject=context.subject(result.device),
    )


def _pageable(result: Copies, context: Context) -> Finding:
    pct = result.pct(result.pageable_exposed_ns)
    groups = [g for g in result.groups if g.memory == "pageable"]
    return Finding(
        id="pageable-copies",
        weight=Weight.FINDING,
        headline=f"Copies to or from pageable memory take {share(pct)} of the window that no kernel hides: "
        + ", ".join(f"{_gb(g.bytes)} {g.direction} at {_rate(g)}" for g in groups),
        facts=(
            Fact("pageable copies without a kernel", pct, "%", "|∪ such copies − ∪ kernels| ÷ window"),
            *copy_facts(result),
        ),
        cause="pageable memory is copied through the driver's staging buffer, and the call waits for it",
        advice=(PIN,),
        recoverable_pct=pct,
        recoverable_formula="time of pageable copies in which no kernel ran ÷ window (pinned ones still take some)",
        confidence="high: the memory's kind is recorded",
        refuted_by="the same copies from pinned memory take as long",
        subject=context.subject(result.device),
    )


def _tiny(result: Copies, context: Context) -> Finding:
    pct = result.pct(result.tiny_idle_ns)
    per_s = result.tiny * 1e9 / result.window_ns
    return Finding(
        id="tiny-copies",
        weight=Weight.FINDING,
        headline=f"{result.tiny:,} copies of up to 4 KiB ({per_s:,.0f}/s): the GPU waits {share(pct)} of the window "
        "while the host issues them",
        facts=(
            Fact("idle while tiny copies were issued", pct, "%", "∪ their calls ∩ gaps of a dry device ÷ window"),
            *copy_facts(result),
        ),
        cause="each copy costs the host as much as a kernel launch, whatever it carries",
        advice=(FUSE_COPIES,),
        recoverable_pct=pct,
        recoverable_formula="time in the calls of tiny copies while the device had run dry ÷ window",
        confidence="high",
        refuted_by="fewer, larger copies leave the step time as it is",
        subject=context.subject(result.device),
    )


def copy_facts(result: Copies) -> tuple[Fact, ...]:
    """Each kind of copy in figures, the longest first."""
    found = []
    for group in result.groups:
        name = f"copies {group.direction}" + (f", {group.memory}" if group.memory != "unknown" else "")
        rows = f"{group.count:,} copy rows"
        hidden = 100.0 * group.hidden_ns / group.time_ns if group.time_ns else None
        per_s = None if group.per_s is None else group.per_s / 1e9
        against = f"{group.link_pct:.0f} % of {group.link.name}" if group.link and group.link_pct else "link unknown"
        found += [
            ms(
                f"{name}: time", group.time_ns, "∪ of their intervals", rows, f"{_gb(group.bytes)}, {group.tiny:,} tiny"
            ),
            Fact(f"{name}: rate", per_s, "GB/s", "bytes ÷ ∪ of their intervals", rows, against),
            Fact(f"{name}: hidden behind kernels", hidden, "%", "|∪ copies ∩ ∪ kernels| ÷ |∪ copies|", rows),
        ]
    small = f"{result.tiny:,} of up to 4 KiB; {result.readbacks:,} to the host of up to 64 KiB"
    counted = sum(group.count for group in result.groups)
    return (*found, Fact("copies", float(counted), "", "rows", f"{counted:,} copy rows", small))


def _gb(size: float) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size:.0f} bytes"


def _rate(group: CopyGroup) -> str:
    if group.per_s is None:
        return f"an unknown rate in {span(group.time_ns)}"
    link = f", {group.link_pct:.0f} % of {group.link.name}" if group.link and group.link_pct is not None else ""
    return f"{group.per_s / 1e9:.1f} GB/s{link}"
