"""What is wrong with the conditions of a profile: a warm L2, other work in the counters, more bytes than needed."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.units import size
from gputop_llm.verdict.facts import listed, share
from gputop_llm.verdict.kernel_names import Family

#: Traffic beyond the least that the shape needs, from here on worth telling.
_EXTRA_WORTH = 1.2
_READ_ONCE_A_STEP = {Family.GEMM, Family.MOE_GEMM, Family.ATTENTION, Family.OTHER}


def look(seen: Seen) -> Iterator[Finding]:
    """What of it holds."""
    for rule in (_warm, _foreign, _extra):
        if (finding := rule(seen)) is not None:
            yield finding


def _warm(seen: Seen) -> Finding | None:
    warm = seen.warm
    if warm is None:
        return None
    needed = f" of the {size(warm.needed_bytes)} that the shape needs" if warm.needed_bytes else ""
    return Finding(
        id="kernel-warm-l2",
        # What a kernel before it has just written is in L2 in the live run too.
        weight=Weight.FINDING if seen.family in _READ_ONCE_A_STEP else Weight.NOTE,
        headline=f"Profiled with a warm L2: hit rate {share(warm.hit_pct)}, DRAM moved {size(warm.dram_bytes)}{needed}",
        facts=(
            Fact("L2 hit rate", warm.hit_pct, "%", names.L2_HIT[0]),
            Fact("fetched by L2", warm.fetched_pct, "%", "sectors filled from the device ÷ sectors asked for"),
            Fact("moved by DRAM", warm.dram_bytes, "bytes", "counted, or rate × duration"),
            Fact("needed by the shape", warm.needed_bytes, "bytes", "inputs once and the result once"),
            Fact("L2", seen.kernel.first(names.L2_SIZE), "bytes", names.L2_SIZE[0]),
        ),
        cause="the launch before left the data in L2"
        + (f" ({warm.flag} keeps it there)" if warm.flag else "")
        + "; in a live decode step the weights come from DRAM: there it takes longer, and may be DRAM-bound",
        advice=(
            Advice(
                "profile again with --cache-control all, or rotate through buffers that are larger than L2 together"
            ),
        ),
        recoverable_pct=None,
        recoverable_formula="duration and roof of the live run are not in this profile",
        confidence="high that L2 was warm; that it isn't in the live run holds for weights and KV cache",
        refuted_by="--cache-control all gives the same duration",
        next_capture="ncu --cache-control all on the same kernel",
        of="kernel",
    )


def _foreign(seen: Seen) -> Finding | None:
    foreign = seen.foreign
    if foreign is None:
        return None
    return Finding(
        id="kernel-counters-mixed",
        weight=Weight.FINDING,
        headline="Other work is in the counters: shares of a whole read "
        f"{listed((f'{value:,.0f} %' for value in foreign.impossible.values()), 2)}",
        facts=tuple(Fact(name, value, "%", "above 100") for name, value in foreign.impossible.items()),
        cause="the GPU was shared while ncu counted (or the kernel does something else at each replay): passes of "
        "different work were divided by one another, DRAM and L2 figures hold traffic of others",
        advice=(Advice("profile on a GPU that does nothing else; beside a loaded server read ratios, not absolutes"),),
        recoverable_pct=None,
        recoverable_formula="which part of the figures is the kernel's own can't be told",
        confidence="high: a share of a whole can't be above 100 %",
        refuted_by="it reads the same on an idle GPU",
        next_capture="the same ncu command with nothing else on the GPU",
        of="kernel",
    )


def _extra(seen: Seen) -> Finding | None:
    moved, needed = seen.kernel.dram_bytes, seen.point.bytes_needed
    if moved is None or needed is None or moved < _EXTRA_WORTH * needed:
        return None
    return Finding(
        id="kernel-extra-bytes",
        weight=Weight.FINDING,
        headline=f"DRAM moves {moved / needed:.1f} × the bytes that the shape needs: {size(moved)} of {size(needed)}",
        facts=(
            Fact("moved by DRAM", moved, "bytes", "counted, or rate × duration"),
            Fact("needed by the shape", needed, "bytes", "(m k + k n + m n) × bytes of an element"),
        ),
        cause="inputs are read more than once, or something else is moved too: padding, partial results of a split, "
        "other work on the GPU",
        advice=(Advice("larger tiles along the dimension that is read again; order blocks so that they share L2"),),
        recoverable_pct=100.0 * (1.0 - needed / moved),
        recoverable_formula="1 − needed ÷ moved: if all time were DRAM's",
        confidence="medium: the shape is that of the capture's most frequent call",
        refuted_by="another shape was profiled",
        next_capture=None,
        of="kernel",
    )
