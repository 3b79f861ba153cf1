"""Spills, bank conflicts and uncoalesced accesses, where they cost more than 5 % of the kernel's time."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.model import KernelReport
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.facts import share

WORTH_PCT = 5.0
_ELAPSED = ".avg.pct_of_peak_sustained_elapsed"
_SECTOR_BYTES = 32.0
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared"
_LOCAL = tuple(f"smsp__sass_inst_executed_op_local_{way}.sum" for way in ("ld", "st"))
_EXECUTED = ("smsp__inst_executed.sum", "sm__inst_executed.sum")
_EXCESSIVE = ("derived__memory_l2_theoretical_sectors_global_excessive",)
_SECTORS = ("memory_l2_theoretical_sectors_global",)


def look(seen: Seen) -> Iterator[Finding]:
    """What of the three is worth telling."""
    for rule in (_spills, _bank_conflicts, _uncoalesced):
        if (finding := rule(seen.kernel)) is not None:
            yield finding


def _spills(kernel: KernelReport) -> Finding | None:
    pct = kernel.first(("derived__local_spilling_requests_pct",))
    formula = "local-memory requests by spilling ÷ all requests to L1"
    loads, stores, executed = (kernel.first((name,)) for name in (*_LOCAL, _EXECUTED[0]))
    if pct is None and loads is not None and stores is not None and executed:
        pct, formula = 100.0 * (loads + stores) / executed, "local loads and stores ÷ all instructions"
    if pct is None or pct <= WORTH_PCT:
        return None
    registers = kernel.first(names.REGISTERS)
    return _finding(
        "kernel-spills",
        f"Registers spill to memory: {share(pct)} of the requests are loads and stores of spilled values",
        pct,
        formula,
        (Fact("spilling", pct, "%", formula), Fact("registers", registers, "per thread", names.REGISTERS[0])),
        "the kernel keeps more values than its registers hold",
        "allow more registers (larger maxnreg, fewer warps in a block), or smaller tiles",
    )


def _bank_conflicts(kernel: KernelReport) -> Finding | None:
    conflicts = kernel.first((f"{_CONFLICTS}.sum",))
    if conflicts is None:
        parts = [kernel.metrics.get(f"{_CONFLICTS}_op_{way}.sum") for way in ("ld", "st")]
        conflicts = sum(part or 0.0 for part in parts) if any(part is not None for part in parts) else None
    wavefronts = kernel.first((f"{_WAVEFRONTS}.sum",))
    if conflicts is None or not wavefronts:
        return None
    part = conflicts / wavefronts
    busy = kernel.first((f"l1tex__data_pipe_lsu_wavefronts{_ELAPSED}", f"{_WAVEFRONTS}{_ELAPSED}"))
    # Without the pipe's use the share of its time that they took isn't known: what it may be at most is no cost.
    if busy is None or part * busy <= WORTH_PCT:
        return None
    cost = part * busy
    return _finding(
        "kernel-bank-conflicts",
        f"Bank conflicts: {share(100 * part)} of the shared-memory wavefronts, {share(cost)} of the time",
        cost,
        "conflicts ÷ wavefronts × the share of the time in which that pipe was busy",
        (
            Fact("conflicts", 100 * part, "%", f"{_CONFLICTS} ÷ {_WAVEFRONTS}"),
            Fact("L1 data pipe", busy, "%", "of its peak"),
        ),
        "threads of a warp read or write different rows of the same shared-memory bank",
        "pad or swizzle the shared-memory layout",
    )


def _uncoalesced(kernel: KernelReport) -> Finding | None:
    excessive, sectors = kernel.first(_EXCESSIVE), kernel.first(_SECTORS)
    part = excessive / sectors if excessive is not None and sectors else None
    formula = "sectors beyond the ideal ÷ all sectors of global accesses"
    if part is None:
        part, formula = _wasted(kernel), "1 − bytes used of each 32-byte sector ÷ 32"
    levels = [pct for pct in (kernel.l2_pct, kernel.first(names.L1)) if pct is not None]
    if part is None or not levels or part * max(levels) <= WORTH_PCT:
        return None
    cost = part * max(levels)
    return _finding(
        "kernel-uncoalesced",
        f"Uncoalesced access: {share(100 * part)} of the sectors carry nothing that is used",
        cost,
        "wasted share of the sectors × the share of its peak that L1 or L2 is used",
        (Fact("wasted", 100 * part, "%", formula), Fact("L1 or L2, the busier", max(levels), "%", "of its peak")),
        "threads of a warp read addresses that don't lie side by side",
        "let neighbouring threads take neighbouring elements; transpose through shared memory",
    )


def _wasted(kernel: KernelReport) -> float | None:
    """Of global loads and stores the worse one; a way without any access reads 0 and is left out."""
    used = [
        kernel.metrics.get(f"smsp__sass_average_data_bytes_per_sector_mem_global_op_{way}.ratio")
        for way in ("ld", "st")
    ]
    known = [value for value in used if value]
    return max(0.0, 1.0 - min(known) / _SECTOR_BYTES) if known else None


def _finding(
    id: str, headline: str, pct: float, formula: str, facts: tuple[Fact, ...], cause: str, advice: str
) -> Finding:
    return Finding(
        id=id,
        weight=Weight.FINDING,
        headline=headline,
        facts=facts,
        cause=cause,
        advice=(Advice(advice),),
        recoverable_pct=min(pct, 100.0),
        recoverable_formula=formula,
        confidence="medium: counted, but other units may hide the cost",
        refuted_by="the kernel without them takes as long",
        next_capture="ncu --section SourceCounters --section MemoryWorkloadAnalysis_Tables: the lines of source",
        of="kernel",
    )
