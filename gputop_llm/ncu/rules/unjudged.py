"""Launches without a class: too short, or the Speed of Light is not known."""

from __future__ import annotations

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.bound import Kind
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.facts import listed, share

_WHY_MISSING = (
    "usually the metric doesn't exist on this chip or in this ncu, was not asked for, or another profiler held the "
    "counters"
)


def look(seen: Seen) -> Finding | None:
    """The finding; None where the launch has a class."""
    if seen.kind is Kind.SHORT:
        return _short(seen)
    return _unknown(seen) if seen.kind is Kind.UNKNOWN else None


def _short(seen: Seen) -> Finding:
    kernel = seen.kernel
    blocks, threads = kernel.blocks, kernel.threads
    size = f"{blocks:,} block{'' if blocks == 1 else 's'} of {threads:,} threads" if blocks and threads else "its grid"
    return Finding(
        id="kernel-too-short",
        weight=Weight.FINDING,
        headline=f"Too small to judge: {size}, over in {(kernel.duration_ns or 0) / 1e3:.1f} µs, "
        f"SM {share(kernel.sm_pct)}",
        facts=(*seen.light(), Fact("waves per SM", seen.waves.value if seen.waves else None, "", names.WAVES[0])),
        cause="its time is that of beginning and ending a kernel, whatever it does in between",
        advice=(Advice("fuse it with its neighbours, or launch it from a CUDA graph"),),
        recoverable_pct=None,
        recoverable_formula="can't be told from one launch: only fusing it away would give anything",
        confidence="high",
        refuted_by="with real inputs it takes longer",
        next_capture="ncu on the launch with the live shape",
        of="kernel",
    )


def _unknown(seen: Seen) -> Finding:
    kernel = seen.kernel
    missing = [
        label
        for label, value in (("compute (SM) throughput", kernel.sm_pct), ("memory throughput", kernel.memory_pct))
        if value is None
    ]
    also = [
        label
        for label, metrics, value in (
            ("DRAM throughput", names.DRAM, kernel.dram_pct),
            ("L2 hit rate", names.L2_HIT, kernel.first(names.L2_HIT)),
            ("tensor pipe", names.TENSOR_PCT, kernel.first(names.TENSOR_PCT)),
        )
        if value is None and kernel.missing & set(metrics)
    ]
    return Finding(
        id="kernel-unknown",
        weight=Weight.FINDING,
        headline=f"Can't tell what limits it: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing",
        facts=seen.light(),
        cause=f"without a value: {listed([*missing, *also], 8)}; {_WHY_MISSING}",
        advice=(
            Advice("profile again with --section SpeedOfLight, an ncu that knows the chip, and no other profiler"),
        ),
        recoverable_pct=None,
        recoverable_formula="the Speed of Light is not known",
        confidence="none: a missing value is not 0",
        refuted_by="the same report has the metrics under other names",
        next_capture="ncu --set basic on the same kernel",
        of="kernel",
    )
