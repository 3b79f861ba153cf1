"""Communication: time in collective kernels, how much of it nothing hides, and who comes last.

A collective ends for all ranks at once, so whoever is in it for the shortest time arrived last. That needs no common
clock: arrival skew is the longest less the shortest duration of one collective over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.timeline.intervals import length, overlap_with, union
from gputop_llm.timeline.model import I64, U8, Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Mask
from gputop_llm.verdict.facts import ms, over_devices, share, span, us
from gputop_llm.verdict.grouped import FAMILIES
from gputop_llm.verdict.kernel_names import Family

_WORTH_PCT = 5.0
_SEVERE_PCT = 25.0
#: Hidden communication is worth a word from this share of the window on.
_NOTE_PCT = 1.0
_SKEW_WORTH_PCT = 3.0
#: Collectives that ranks must share before one of them is called a straggler.
_ENOUGH = 10
#: A straggler comes last this often, and at least so many times as often as chance would have it.
_LAST_SHARE = 0.5
_LAST_TIMES_CHANCE = 1.5
#: The edge of the window may cut off this many collectives of one rank.
_EDGE = 8


@dataclass(frozen=True, slots=True)
class Comm:
    """One device: `comm_ns` = |∪ collective kernels|, `exposed_ns` the part of it without a compute kernel or graph
    replay on the same device. `opaque` is true where whole replays may hide collectives.
    """

    device: int
    window_ns: int
    kernels: int
    work_ns: int
    comm_ns: int
    exposed_ns: int
    opaque: bool

    def pct(self, part_ns: float) -> float:
        """A time as a share of the window."""
        return 100.0 * part_ns / self.window_ns if self.window_ns else 0.0

    @property
    def exposed_pct(self) -> float:
        """Exposed communication as a share of the window."""
        return self.pct(self.exposed_ns)


@dataclass(frozen=True, slots=True)
class Skew:
    """Collectives that all of `devices` took part in. `skew_ns` holds p50, p95 and the longest arrival skew.

    `last` counts for each device how often it arrived last, `waited_ns` how long it waited in collectives for others.
    `straggler` is the device that is last far more often than chance; None if none is.
    """

    devices: tuple[int, ...]
    collectives: int
    skew_ns: tuple[int, int, int]
    last: tuple[int, ...]
    waited_ns: tuple[int, ...]
    straggler: int | None


@dataclass(frozen=True, slots=True)
class Communication:
    """All devices with collective kernels, and their skew (None with why in `no_skew`)."""

    devices: tuple[Comm, ...]
    skew: Skew | None
    no_skew: str | None


def analyse(context: Context) -> Communication:
    """Communication of each device that has any, and how ranks arrive."""
    family = context.families
    found = tuple(c for c in (_of_device(context, covered, family) for covered in context.coverage) if c.kernels)
    skew, reason = _skew(context, tuple(c.device for c in found), family)
    return Communication(found, skew, reason)


def _rows(context: Context, device: int) -> Mask:
    ops, timeline = context.timeline.ops, context.timeline
    rows: Mask = (ops.device == device) & (ops.end > timeline.start) & (ops.start < timeline.end)
    return rows


def _of_device(context: Context, covered: DeviceCoverage, family: U8) -> Comm:
    timeline = context.timeline
    ops = timeline.ops
    own = _rows(context, covered.device)
    collective = own & (family == FAMILIES.index(Family.NCCL))
    compute = own & ~collective & ((ops.kind == Kind.KERNEL) | (ops.kind == Kind.GRAPH))

    def clipped(rows: Mask) -> tuple[I64, I64]:
        return np.maximum(ops.start[rows], timeline.start), np.minimum(ops.end[rows], timeline.end)

    start, end = clipped(collective)
    comm = union(start, end)
    hidden = int(overlap_with(*comm, union(*clipped(compute))).sum())
    return Comm(
        device=covered.device,
        window_ns=covered.window_ns,
        kernels=int(collective.sum()),
        work_ns=int((end - start).sum()),
        comm_ns=length(*comm),
        exposed_ns=length(*comm) - hidden,
        opaque=bool((own & (ops.kind == Kind.GRAPH)).any()),
    )


def _skew(context: Context, devices: tuple[int, ...], family: U8) -> tuple[Skew | None, str | None]:
    if len(devices) < 2:
        return None, "collectives of one device only: who comes last shows when all ranks are captured"
    ops = context.timeline.ops
    rows = {d: np.flatnonzero(_rows(context, d) & (family == FAMILIES.index(Family.NCCL))) for d in devices}
    pieces = []
    for name_id in np.unique(ops.name_id[rows[devices[0]]]):
        of_name = [rows[d][ops.name_id[rows[d]] == name_id] for d in devices]
        least, most = min(map(len, of_name)), max(map(len, of_name))
        if least and most - least <= min(_EDGE, least // 2):
            matched = _aligned([ops.end[r] for r in of_name], least)
            durations = [(ops.end - ops.start)[r[at : at + least]] for r, at in zip(of_name, matched, strict=True)]
            pieces.append(np.stack(durations))
    if not pieces:
        return None, "the devices did not run the same collectives"
    duration = np.concatenate(pieces, axis=1)
    shortest = duration.min(axis=0)
    skew = np.sort(duration.max(axis=0) - shortest)
    last = np.bincount(duration.argmin(axis=0)[duration.max(axis=0) > shortest], minlength=len(devices))
    chance = min(0.9, max(_LAST_SHARE, _LAST_TIMES_CHANCE / len(devices)))
    late = int(np.argmax(last))
    straggles = len(skew) >= _ENOUGH and last[late] >= chance * len(skew)
    found = Skew(
        devices=devices,
        collectives=len(skew),
        skew_ns=(_rank(skew, 0.5), _rank(skew, 0.95), int(skew[-1])),
        last=tuple(int(n) for n in last),
        waited_ns=tuple(int(n) for n in (duration - shortest).sum(axis=1)),
        straggler=devices[late] if straggles else None,
    )
    return found, None


def _aligned(ends: list[I64], count: int) -> list[int]:
    """Where to begin in each list so that the n-th ends belong together: the window cuts off some at its edges."""
    reference = min(ends, key=len)
    found = []
    for own in ends:
        apart = [float(np.median(np.abs(own[at : at + count] - reference))) for at in range(len(own) - count + 1)]
        found.append(int(np.argmin(apart)))
    return found


def _rank(ordered: I64, part: float) -> int:
    """The nearest-rank quantile: a value that occurred."""
    return int(ordered[max(0, int(np.ceil(part * len(ordered))) - 1)])


def findings(result: Communication, context: Context) -> list[Finding]:
    """Exposed communication, or the note that compute hides it; a rank that keeps the others waiting."""
    if not result.devices:
        return []
    found = []
    late = _straggler(result.skew, result.devices[0].window_ns, context) if result.skew else None
    worst = max(result.devices, key=lambda c: c.exposed_pct)
    if worst.exposed_pct >= _WORTH_PCT:
        found.append(_exposed(worst, result, context, late))
    else:
        most = max(result.devices, key=lambda c: c.comm_ns)
        if most.pct(most.comm_ns) >= _NOTE_PCT:
            found.append(_hidden(most, result, context))
    if late is not None:
        found.append(late)
    return found


def _facts(comm: Comm, result: Communication, context: Context) -> tuple[Fact, ...]:
    rows = f"{comm.kernels:,} collective kernels"
    text = "collectives inside of whole graph replays are not seen" if comm.opaque else None
    return (
        ms("communication", comm.comm_ns, "|∪ collective kernels|", rows, text),
        Fact("communication, of the window", comm.pct(comm.comm_ns), "%", "|∪ collective kernels| ÷ window", rows),
        ms("exposed communication", comm.exposed_ns, "|∪ collective kernels ∖ ∪ compute kernels| on the same device"),
        Fact("exposed, of the window", comm.exposed_pct, "%", "exposed communication ÷ window", rows),
        *over_devices(
            "exposed communication",
            {context.device_label(c.device): c.exposed_pct for c in result.devices},
            "%",
            "exposed ÷ window",
        ),
        *_skew_facts(result.skew, context),
    )


def _skew_facts(skew: Skew | None, context: Context) -> tuple[Fact, ...]:
    if skew is None:
        return ()
    middle, high, longest = skew.skew_ns
    last = ", ".join(f"{context.device_label(d)} {n:,}" for d, n in zip(skew.devices, skew.last, strict=True))
    text = f"p95 {span(high)}, longest {span(longest)}; last: {last}"
    formula = "longest − shortest duration of a collective over the ranks"
    return (us("arrival skew, median", middle, formula, f"{skew.collectives:,} shared collectives", text),)


def _exposed(comm: Comm, result: Communication, context: Context, late: Finding | None) -> Finding:
    pct = comm.exposed_pct
    # Where most of it is waiting for one rank, that rank is the finding, and this its consequence.
    waiting = late is not None and 2.0 * (late.recoverable_pct or 0.0) >= pct
    return Finding(
        id="comm-exposed",
        weight=Weight.NOTE if waiting else Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
        headline=f"Exposed communication: {share(pct)} of the window is spent in collectives with no compute beside "
        f"({span(comm.exposed_ns)} of {span(comm.comm_ns)})"
        + (f", most of it waiting for {late.subject}" if waiting and late else ""),
        facts=_facts(comm, result, context),
        cause="collectives run while the device computes nothing: it moves data, or waits for ranks that are late",
        advice=(
            Advice("check that ranks talk over NVLink, not PCIe (nvidia-smi topo -m); fewer ranks for a small model"),
            Advice("overlap collectives with compute on another stream, or join small ones"),
        ),
        recoverable_pct=pct,
        recoverable_formula="exposed communication ÷ window: if compute hid all of it",
        confidence="high" if result.skew else f"medium: transfer and waiting can't be told apart ({result.no_skew})",
        refuted_by="the same step on one device (where it fits) has gaps of the same length",
        next_capture=None if result.skew else "Kineto window of all ranks at once: who waits for whom",
        subject=context.subject(comm.device),
    )


def _hidden(comm: Comm, result: Communication, context: Context) -> Finding:
    return Finding(
        id="comm-hidden",
        weight=Weight.NOTE,
        headline=f"Communication takes {span(comm.comm_ns)}, {span(comm.exposed_ns)} of it is exposed, compute hides "
        + ("all of it" if not comm.exposed_ns else "the rest"),
        facts=_facts(comm, result, context),
        cause="collectives run beside compute kernels on the same device",
        advice=(),
        recoverable_pct=comm.exposed_pct,
        recoverable_formula="exposed communication ÷ window",
        confidence="high",
        refuted_by="compute kernels that are slower while a collective runs beside them",
        subject=context.subject(comm.device),
    )


def _straggler(skew: Skew, window_ns: int, context: Context) -> Finding | None:
    if skew.straggler is None or not window_ns:
        return None
    position = skew.devices.index(skew.straggler)
    waits = [ns for d, ns in zip(skew.devices, skew.waited_ns, strict=True) if d != skew.straggler]
    pct = 100.0 * sum(waits) / len(waits) / window_ns
    if pct < _SKEW_WORTH_PCT:
        return None
    label = context.device_label(skew.straggler)
    last_pct = 100.0 * skew.last[position] / skew.collectives
    return Finding(
        id="rank-straggler",
        weight=Weight.SEVERE if pct >= _SEVERE_PCT else Weight.FINDING,
        headline=f"{label} is the straggler: last in {share(last_pct)} of {skew.collectives:,} collectives, "
        f"the others wait {share(pct)} of the window for it",
        facts=(
            *_skew_facts(skew, context),
            *(
                ms(f"waited in collectives, {context.device_label(d)}", ns, "Σ (own − shortest duration)")
                for d, ns in zip(skew.devices, skew.waited_ns, strict=True)
            ),
        ),
        cause=f"{label} reaches the collectives after the others: its host launches later, its clock is lower, or "
        "it has more work",
        advice=(
            Advice(f"compare clocks, throttling and host load of {label} with the others; look at its idle causes"),
        ),
        recoverable_pct=pct,
        recoverable_formula="mean over the other ranks of Σ (own − shortest duration) ÷ window",
        confidence="high" if skew.collectives >= 10 * _ENOUGH else f"medium: {skew.collectives} collectives",
        refuted_by="another rank is last after the processes are placed the other way round",
        subject=label,
    )
