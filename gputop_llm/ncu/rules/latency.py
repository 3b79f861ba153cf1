"""Latency-bound: neither the SMs nor memory are used well. The first cause that holds, in this order: the grid is too
small, its last wave is nearly empty, too few warps fit, and only then what the warps wait for."""

from __future__ import annotations

import math

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.bound import Kind
from gputop_llm.ncu.launch import limiters
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.ncu.rules.stalls import dominant
from gputop_llm.verdict.facts import share
from gputop_llm.verdict.kernel_names import Family

#: NVIDIA's: a last wave that could take this part of the time, where occupancy falls this short of the theoretical.
_TAIL_SHARE = 0.2
_TAIL_OCCUPANCY = 0.8
#: NVIDIA's: from here on occupancy is no matter.
_FULL_PCT = 80.0
#: NVIDIA's: schedulers that issue this often don't wait.
_ISSUES_PCT = 80.0
_ORDER = "Speed of Light first, then the grid, its tail, occupancy, and only then stalls"

_SPLIT = Advice("split the reduction over more blocks (split-K, stream-K, split-KV), or choose smaller tiles")
_BATCH = Advice(
    "give each launch more work: more sequences at once, or grouped launches for what is independent",
    {"vllm": "--max-num-seqs (up)", "sglang": "--max-running-requests (up)", "trtllm": "max_batch_size (up)"},
)
_MERGE = Advice("fuse it with its neighbours, or let independent kernels run beside it on another stream")


def look(seen: Seen) -> Finding | None:
    """The finding of a latency-bound launch."""
    if seen.kind is not Kind.LATENCY:
        return None
    return _small_grid(seen) or _tail(seen) or _occupancy(seen) or _stall(seen) or _unexplained(seen)


def _small_grid(seen: Seen) -> Finding | None:
    waves = seen.waves
    if waves is None or waves.value >= 1:
        return None
    kernel = seen.kernel
    room = 100.0 * (1.0 - waves.value)
    above = seen.above_roof_pct
    gives = room if above is None else min(room, above)
    blocks, sms = kernel.blocks, kernel.sm_count
    counted = f"{blocks:,} blocks on {sms} SMs" if blocks and sms else f"{blocks:,} blocks" if blocks else "its blocks"
    little = room < 5.0
    said = f"Latency-bound: small grid, {counted} fill {waves.value:.2f} of one wave"
    said += f" (SM {share(kernel.sm_pct)}, memory {share(kernel.memory_pct)})"
    if little:
        said += f"; a full wave alone gives {share(room)}"
    every = blocks is not None and sms is not None and blocks >= sms
    idle = (
        "each SM has a block, but too few warps to cover their waiting" if every else "SMs without a block do nothing"
    )
    product = seen.family in (Family.GEMM, Family.MOE_GEMM, Family.ATTENTION)
    return Finding(
        id="kernel-small-grid",
        weight=Weight.FINDING,
        headline=said,
        facts=(
            Fact("waves per SM", waves.value, "", waves.source),
            Fact("blocks", blocks, "", "grid x × y × z"),
            Fact("SMs", sms, "", "of the device"),
            *seen.light(),
        ),
        cause=f"there is less work in flight than the GPU has room for: {idle}, and there is no second wave whose work "
        "could hide the beginning and end of the first"
        + ("; so it is with decode: few tokens make few tiles" if product else ""),
        advice=(_SPLIT, _BATCH) if product else (_MERGE, _BATCH),
        recoverable_pct=gives,
        recoverable_formula="the smaller of 1 − waves, and 100 − the busiest unit's share of its peak",
        confidence=f"high: counted; {_ORDER}" if kernel.rules or sms else f"medium: {waves.source}; {_ORDER}",
        refuted_by="a grid of a whole wave with the same bytes takes as long",
        next_capture="ncu on the same operation with a larger batch, or with split-K",
        of="kernel",
    )


def _tail(seen: Seen) -> Finding | None:
    waves, kernel = seen.waves, seen.kernel
    if waves is None:
        return None
    whole = math.floor(waves.value)
    partial = waves.value - whole
    if whole < 1 or partial <= 0.0 or 1.0 / (whole + 1) < _TAIL_SHARE:
        return None
    theoretical, achieved = kernel.first(names.THEORETICAL), kernel.first(names.ACHIEVED)
    if theoretical is None or achieved is None or achieved >= _TAIL_OCCUPANCY * theoretical:
        return None
    gives = 100.0 * (1.0 - waves.value / (whole + 1))
    return Finding(
        id="kernel-tail-wave",
        weight=Weight.FINDING,
        headline=f"Latency-bound: tail wave, {waves.value:.2f} waves take the time of {whole + 1}",
        facts=(
            Fact("waves per SM", waves.value, "", waves.source),
            Fact("theoretical occupancy", theoretical, "%", names.THEORETICAL[0]),
            Fact("achieved occupancy", achieved, "%", names.ACHIEVED[0]),
            *seen.light(),
        ),
        cause="the last wave fills only a part of the SMs; the others wait until it is done",
        advice=(Advice("choose tiles that give whole waves, or persistent blocks (stream-K)"),),
        recoverable_pct=gives,
        recoverable_formula="1 − waves ÷ whole waves: if the last wave were full",
        confidence=f"medium: blocks may differ in length; {_ORDER}",
        refuted_by="a grid of whole waves takes as long",
        next_capture="ncu with another tile size",
        of="kernel",
    )


def _occupancy(seen: Seen) -> Finding | None:
    """Few warps matter only where the schedulers have nothing to issue; low occupancy by itself is no defect."""
    kernel = seen.kernel
    theoretical, issued = kernel.first(names.THEORETICAL), kernel.first(names.ISSUE_ACTIVE)
    if theoretical is None or theoretical >= _FULL_PCT or issued is None or issued >= _ISSUES_PCT:
        return None
    limits = limiters(kernel)
    by = f" by {' and '.join(limits)}" if limits else ""
    return Finding(
        id="kernel-occupancy",
        weight=Weight.FINDING,
        headline=f"Latency-bound: occupancy, held at {share(theoretical)}{by}, and schedulers issue in "
        f"{share(issued)} of the cycles",
        facts=(
            Fact("theoretical occupancy", theoretical, "%", names.THEORETICAL[0]),
            Fact("achieved occupancy", kernel.first(names.ACHIEVED), "%", names.ACHIEVED[0]),
            Fact("cycles that issue", issued, "%", names.ISSUE_ACTIVE[0]),
            Fact("registers", kernel.first(names.REGISTERS), "per thread", names.REGISTERS[0]),
            *seen.light(),
        ),
        cause="too few warps fit on an SM to cover what each of them waits for",
        advice=(
            Advice(
                "fewer registers or less shared memory for a block, if more warps help: persistent kernels that copy "
                "asynchronously are meant to run with few"
            ),
        ),
        recoverable_pct=seen.above_roof_pct,
        recoverable_formula="100 − the busiest unit's share of its peak",
        confidence=f"medium: occupancy is a means, not an end; {_ORDER}",
        refuted_by="more warps with the same work take as long",
        next_capture="ncu --section WarpStateStats --section SchedulerStats",
        of="kernel",
    )


def _stall(seen: Seen) -> Finding | None:
    kernel = seen.kernel
    issued = kernel.first(names.ISSUE_ACTIVE)
    stall = dominant(kernel)
    if stall is None or (issued is not None and issued >= _ISSUES_PCT):
        return None
    above = seen.above_roof_pct
    return Finding(
        id="kernel-stall",
        weight=Weight.FINDING,
        headline=f"Latency-bound: {share(stall.share_pct)} of the time between two instructions of a warp it waits "
        f"for {stall.waits_for}",
        facts=(
            Fact(stall.reason, stall.share_pct, "%", "cycles stalled ÷ cycles between two instructions"),
            Fact("cycles that issue", issued, "%", names.ISSUE_ACTIVE[0]),
            *seen.light(),
        ),
        cause=f"warps wait for {stall.waits_for}, and there is nothing else to issue",
        advice=(Advice(stall.advice),),
        recoverable_pct=stall.share_pct if above is None else min(stall.share_pct, above),
        recoverable_formula="the smaller of the stall's share, and 100 − the busiest unit's share of its peak",
        confidence=f"medium: a stall says where warps wait, not why; {_ORDER}",
        refuted_by="the source line with most samples has no such instruction",
        next_capture="ncu --section SourceCounters: the lines of source where they wait",
        of="kernel",
    )


def _unexplained(seen: Seen) -> Finding:
    asked = [
        section
        for section, known in (
            ("LaunchStats", seen.waves is not None),
            ("Occupancy", seen.kernel.first(names.THEORETICAL) is not None),
            ("WarpStateStats", dominant(seen.kernel) is not None),
            ("SchedulerStats", seen.kernel.first(names.ISSUE_ACTIVE) is not None),
        )
        if not known
    ]
    return Finding(
        id="kernel-latency",
        weight=Weight.FINDING,
        headline=f"Latency-bound: SM {share(seen.kernel.sm_pct)}, memory {share(seen.kernel.memory_pct)}, both below "
        "60 %; why can't be told",
        facts=seen.light(),
        cause="neither side is used well" + (f"; not recorded: {', '.join(asked)}" if asked else ""),
        advice=(Advice("profile again with what is missing") if asked else _MERGE,),
        recoverable_pct=seen.above_roof_pct,
        recoverable_formula="100 − the busiest unit's share of its peak",
        confidence="high for the class, none for its cause",
        refuted_by="a unit that ncu doesn't count is full",
        next_capture=f"ncu {' '.join(f'--section {name}' for name in asked)}" if asked else "ncu --set full",
        of="kernel",
    )
