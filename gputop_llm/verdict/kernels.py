"""Where the device's time goes: families and kernels by the union of their time, never by a sum of durations.

Kernels are grouped by short name: variants for types or shapes of one kernel count together, the full name with the
most time stands for them. A whole graph replay is a row of its own, its inside unknown.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.printable import printable
from gputop_llm.timeline import launch_shape
from gputop_llm.timeline.model import I32, I64, U8, CopyKind, Kind
from gputop_llm.verdict.advice import EAGER_FLAGS
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Mask
from gputop_llm.verdict.facts import listed, share, span
from gputop_llm.verdict.grouped import FAMILIES, from_graphs, union_lengths
from gputop_llm.verdict.kernel_names import Family, short_name

#: A kernel below this share of the window is never proposed for Nsight Compute.
NCU_WORTH_PCT = 5.0
#: Small operations that a compiler would fuse are a finding from here on, and a severe one from there.
_UNFUSED_WORTH_PCT = 20.0
_UNFUSED_SEVERE_PCT = 40.0
_LISTED = 60
_SHOWN_FAMILIES = 6
#: What Nsight Compute can't look at by itself: it serialises a collective for ever, and sees nothing in a copy.
_NOT_FOR_NCU = {Family.NCCL, Family.COPY, Family.MEMSET, Family.GRAPH}
_MOVES = {Family.COPY, Family.MEMSET}
_COPY_NAMES = {
    CopyKind.HTOD: "copy HtoD",
    CopyKind.DTOH: "copy DtoH",
    CopyKind.DTOD: "copy DtoD",
    CopyKind.HTOH: "copy HtoH",
    CopyKind.PTOP: "copy device to device (peer)",
    CopyKind.UVM: "copy unified memory",
}
GRAPH_NAME = "CUDA graph replay (inside not recorded)"


@dataclass(frozen=True, slots=True)
class HotKernel:
    """One kernel (or kind of copy, or all opaque replays) on one device; times in ns, clipped to the window.

    `work_ns` are summed durations, `mean_ns` their mean. `by_graph` are the calls that a graph replay ran. `grid`
    (blocks) and `block` (threads) are the most frequent shape, of `shape_pct` of the calls; None where not recorded.
    `variants` full names share the short one.
    """

    name: str
    full_name: str
    family: Family
    calls: int
    union_ns: int
    work_ns: int
    mean_ns: float
    longest_ns: int
    by_graph: int
    streams: tuple[int, ...]
    grid: int | None
    block: int | None
    shape_pct: float | None
    variants: int


@dataclass(frozen=True, slots=True)
class HotFamily:
    """A family on one device: its calls, its distinct kernels, and its time (ns)."""

    family: Family
    calls: int
    kernels: int
    union_ns: int
    work_ns: int


@dataclass(frozen=True)
class Hot:
    """One device: families and kernels by union time, the longest first. `unfused_ns` is the union of the small
    operations (elementwise, reductions, activations) that PyTorch ran as kernels of their own, `unfused_calls` theirs.
    """

    device: int
    window_ns: int
    busy_ns: int
    families: tuple[HotFamily, ...]
    kernels: tuple[HotKernel, ...]
    unfused_ns: int
    unfused_calls: int

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0

    @property
    def for_ncu(self) -> tuple[HotKernel, ...]:
        """The kernels that are worth a look with Nsight Compute: none below 5 % of the window."""
        return tuple(k for k in self.kernels if k.family not in _NOT_FOR_NCU and self.pct(k.union_ns) >= NCU_WORTH_PCT)


def analyse(context: Context) -> tuple[Hot, ...]:
    """One entry for each device with activity."""
    family = context.families
    labels, label_of = _labels(context)
    return tuple(_of_device(context, covered, family, labels, label_of) for covered in context.coverage)


def hottest(context: Context) -> tuple[HotKernel, I64] | None:
    """The kernel (or all whole graph replays) with the largest union time on one device, and its rows in `ops`.

    It is the first of its device in the table of kernels that is no copy or memset; None if there is none.
    """
    found = [(kernel, hot.device) for hot in analyse(context) for kernel in hot.kernels if kernel.family not in _MOVES]
    if not found:
        return None
    kernel, device = max(found, key=lambda one: one[0].union_ns)
    timeline = context.timeline
    ops = timeline.ops
    labels, label_of = _labels(context)
    own = (label_of == labels.index(kernel.name)) & (ops.device == device)
    return kernel, np.flatnonzero(own & (ops.end > timeline.start) & (ops.start < timeline.end))


def _labels(context: Context) -> tuple[list[str], I32]:
    """The short names, and for each device row the position of its own."""
    timeline = context.timeline
    ops = timeline.ops
    known: dict[str, int] = {}
    by_name = np.zeros(len(timeline.strings) + 1, dtype=np.int32)
    for name_id in np.unique(ops.name_id[ops.kind == Kind.KERNEL]):
        label = printable(short_name(timeline.name(int(name_id))), 100) or "(no name)"
        by_name[name_id] = known.setdefault(label, len(known))
    label_of = by_name[ops.name_id]
    for kind in np.unique(ops.copy_kind[ops.kind == Kind.COPY]):
        label = _COPY_NAMES.get(CopyKind(int(kind)), "copy") if kind in list(CopyKind) else "copy"
        label_of[(ops.kind == Kind.COPY) & (ops.copy_kind == kind)] = known.setdefault(label, len(known))
    for which, label in ((Kind.MEMSET, "memset"), (Kind.GRAPH, GRAPH_NAME)):
        rows = ops.kind == which
        if rows.any():
            label_of[rows] = known.setdefault(label, len(known))
    return list(known), label_of


def _of_device(context: Context, covered: DeviceCoverage, family: U8, labels: list[str], label_of: I32) -> Hot:
    timeline = context.timeline
    ops = timeline.ops
    rows = np.flatnonzero((ops.device == covered.device) & (ops.end > timeline.start) & (ops.start < timeline.end))
    start = np.maximum(ops.start[rows], timeline.start)
    end = np.minimum(ops.end[rows], timeline.end)
    label, own_family = label_of[rows], family[rows]
    by_label = union_lengths(label, len(labels), start, end)
    by_family = union_lengths(own_family, len(FAMILIES), start, end)
    work = np.bincount(own_family, weights=end - start, minlength=len(FAMILIES))
    calls = np.bincount(own_family, minlength=len(FAMILIES))
    found = []
    for position, each in enumerate(FAMILIES):
        if calls[position]:
            kernels = len(np.unique(label[own_family == position]))
            found.append(HotFamily(each, int(calls[position]), kernels, int(by_family[position]), int(work[position])))
    unfused = _unfused(label, own_family, labels)
    return Hot(
        device=covered.device,
        window_ns=covered.window_ns,
        busy_ns=covered.busy_ns,
        families=tuple(sorted(found, key=lambda f: -f.union_ns)),
        kernels=_hottest(context, rows, label, own_family, labels, by_label),
        unfused_ns=int(union_lengths(np.zeros(int(unfused.sum()), np.int64), 1, start[unfused], end[unfused])[0]),
        unfused_calls=int(unfused.sum()),
    )


def _unfused(label: I32, family: U8, labels: list[str]) -> Mask:
    """Rows of PyTorch's own kernels for one small operation each; what a compiler generated is fused already."""
    small = [FAMILIES.index(f) for f in (Family.ELEMENTWISE, Family.REDUCTION, Family.ACTIVATION)]
    own = np.array(["elementwise_kernel" in n or "reduce_kernel: " in n or "CatArray" in n for n in labels] or [False])
    rows: Mask = np.isin(family, small) & own[label]
    return rows


def _hottest(
    context: Context, rows: I64, label: I32, family: U8, labels: list[str], by_label: I64
) -> tuple[HotKernel, ...]:
    timeline = context.timeline
    ops = timeline.ops
    by_graph = from_graphs(ops, context.uses)[rows]
    # Small integers are sorted by radix, eight times as fast.
    order = np.argsort(label.astype(np.uint16) if len(labels) < 65536 else label, kind="stable")
    first = np.concatenate(([0], np.cumsum(np.bincount(label, minlength=len(labels)))))
    found = []
    for position in np.argsort(-by_label, kind="stable")[:_LISTED]:
        own = order[first[position] : first[position + 1]]
        if not len(own):
            continue
        taken = rows[own]
        duration = np.minimum(ops.end[taken], timeline.end) - np.maximum(ops.start[taken], timeline.start)
        names, variant = np.unique(ops.name_id[taken], return_inverse=True)
        longest = int(names[np.argmax(np.bincount(variant, weights=duration))])
        kernel = ops.kind[taken[0]] == Kind.KERNEL
        grid, block, shape_pct = _shape(ops.grid[taken], ops.block[taken])
        found.append(
            HotKernel(
                name=labels[position],
                full_name=printable(timeline.name(longest)) if kernel else labels[position],
                family=FAMILIES[int(family[own[0]])],
                calls=len(own),
                union_ns=int(by_label[position]),
                work_ns=int(duration.sum()),
                mean_ns=float(duration.mean()),
                longest_ns=int(duration.max()),
                by_graph=int(by_graph[own].sum()),
                streams=tuple(int(s) for s in np.unique(ops.stream[taken])[:16]),
                grid=grid,
                block=block,
                shape_pct=shape_pct,
                variants=len(names) if kernel else 1,
            )
        )
    return tuple(found)


def _shape(grid: I64, block: I64) -> tuple[int | None, int | None, float | None]:
    grid, block = launch_shape.product(grid), launch_shape.product(block)
    known = (grid > 0) & (block > 0)
    if not known.any():
        return None, None, None
    # A block has at most 1,024 threads.
    shapes, counts = np.unique(grid[known] * 2048 + block[known], return_counts=True)
    most = int(np.argmax(counts))
    return int(shapes[most] // 2048), int(shapes[most] % 2048), 100.0 * int(counts[most]) / len(grid)


def findings(results: tuple[Hot, ...], context: Context) -> list[Finding]:
    """Where the time goes, and small operations that take much of it. About the device with the most work."""
    if not results:
        return []
    hot = max(results, key=lambda r: r.busy_ns)
    found = [_where(hot, context)]
    if hot.pct(hot.unfused_ns) >= _UNFUSED_WORTH_PCT:
        found.append(_unfused_finding(hot, context))
    return found


def _where(hot: Hot, context: Context) -> Finding:
    first = hot.families[:_SHOWN_FAMILIES]
    said = ", ".join(f"{f.family.value} {share(hot.pct(f.union_ns))}" for f in first[:4])
    opaque = sum(f.union_ns for f in hot.families if f.family is Family.GRAPH)
    proposed = hot.for_ncu
    cause = "time on the device, by what the kernels' names say they are for"
    if opaque:
        cause += (
            f"; {share(hot.pct(opaque))} of the window is graph replays recorded whole: what runs inside is unknown"
        )
    return Finding(
        id="hot-kernels",
        weight=Weight.NOTE,
        headline=f"GPU time, of the window: {said}",
        facts=(*(_family_fact(hot, f) for f in first), *(_kernel_fact(hot, k) for k in hot.kernels[:5])),
        cause=cause,
        advice=(),
        recoverable_pct=None,
        recoverable_formula="can't be told from time alone: the longest kernel need not be the worst",
        confidence="high: times are recorded; families are told by name",
        refuted_by="a kernel whose name says something else than it does",
        next_capture=_next_capture(hot, opaque, proposed),
        subject=context.subject(hot.device),
    )


def _next_capture(hot: Hot, opaque_ns: int, proposed: tuple[HotKernel, ...]) -> str | None:
    if 2 * opaque_ns >= hot.busy_ns:
        return "a short Kineto window: the kernels inside of the graph replays (their mix, not their idle time)"
    if not proposed:
        return None
    names = listed((k.name for k in proposed), 2)
    return f"ncu on {names} (`gputop-llm rerun`, beside the server): at least {NCU_WORTH_PCT:.0f} % of the window each"


def _family_fact(hot: Hot, family: HotFamily) -> Fact:
    return Fact(
        family.family.value,
        hot.pct(family.union_ns),
        "%",
        "|∪ its device rows| ÷ window",
        f"{family.calls:,} rows of {family.kernels:,} kernels",
        f"{span(family.union_ns)}, {100 * family.union_ns / hot.busy_ns:.0f} % of the busy time"
        if hot.busy_ns
        else None,
    )


def _kernel_fact(hot: Hot, kernel: HotKernel) -> Fact:
    said = [f"{kernel.calls:,} calls, mean {span(kernel.mean_ns)}"]
    if kernel.family is not Family.GRAPH and kernel.by_graph:
        said.append(f"{100 * kernel.by_graph / kernel.calls:.0f} % by graphs")
    if kernel.grid is not None:
        said.append(f"{kernel.grid:,} blocks of {kernel.block:,} threads in {share(kernel.shape_pct)} of them")
    if len(kernel.streams) > 1:
        said.append(f"{len(kernel.streams)} streams")
    return Fact(
        kernel.name, hot.pct(kernel.union_ns), "%", "|∪ its rows| ÷ window", f"{kernel.calls:,} rows", "; ".join(said)
    )


def _unfused_finding(hot: Hot, context: Context) -> Finding:
    pct = hot.pct(hot.unfused_ns)
    small = [f for f in hot.kernels if "elementwise_kernel" in f.name or "reduce_kernel: " in f.name]
    flags = {engine: f"no {flag}" for engine, flag in EAGER_FLAGS.items() if engine == "vllm"}
    return Finding(
        id="unfused-elementwise",
        weight=Weight.SEVERE if pct >= _UNFUSED_SEVERE_PCT else Weight.FINDING,
        headline=f"Small operations take {share(pct)} of the window: {hot.unfused_calls:,} elementwise and reduction "
        "kernels that read and write everything once more",
        facts=(
            Fact(
                "PyTorch kernels for one small operation each",
                pct,
                "%",
                "|∪ elementwise, reduction and activation kernels of PyTorch| ÷ window",
                f"{hot.unfused_calls:,} rows",
            ),
            *(_kernel_fact(hot, k) for k in small[:5]),
        ),
        cause="each operation is a kernel of its own and moves its tensors through memory once",
        advice=(
            Advice("let a compiler fuse them (torch.compile), or use fused norm, rope and activation kernels", flags),
        ),
        recoverable_pct=pct,
        recoverable_formula="|∪ these kernels| ÷ window: if fusing took them all into the kernels around them",
        confidence="high",
        refuted_by="the same model compiled takes as long for a step",
        next_capture="the same window with the model compiled",
        subject=context.subject(hot.device),
    )
