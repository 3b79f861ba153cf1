"""NVIDIA's own rules beside ours: its class, and the rule with the largest estimate. A disagreement is shown."""

from __future__ import annotations

from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu.bound import MEMORY_KINDS, Kind
from gputop_llm.ncu.model import KernelReport, NvidiaRule
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.printable import printable
from gputop_llm.verdict.facts import share

CLASS_RULE = "SOLBottleneck"
#: What we call it where NVIDIA says so.
_AGREES: dict[str, frozenset[str]] = {
    "Small Grid": frozenset(("kernel-small-grid", "kernel-too-short")),
    "Latency Issue": frozenset(("kernel-tail-wave", "kernel-occupancy", "kernel-stall", "kernel-latency")),
    "High Compute Throughput": frozenset(("kernel-compute-bound",)),
    "Compute": frozenset(("kernel-compute-bound",)),
    "High Memory Throughput": frozenset(f"kernel-{kind.value.lower()}" for kind in MEMORY_KINDS),
    "Memory": frozenset(f"kernel-{kind.value.lower()}" for kind in MEMORY_KINDS),
}
#: Either side is named by these.
_EITHER = ("Balanced", "High Throughput", "Bottleneck")
#: Rules about the same thing as a finding of ours.
_SAME = {
    "LaunchConfiguration": frozenset(("kernel-small-grid", "kernel-tail-wave", "kernel-too-short")),
    "TheoreticalOccupancy": frozenset(("kernel-occupancy",)),
    "AchievedOccupancy": frozenset(("kernel-tail-wave", "kernel-occupancy")),
    "Occupancy": frozenset(("kernel-occupancy",)),
    "CPIStall": frozenset(("kernel-stall",)),
    "IssueSlotUtilization": frozenset(("kernel-stall", "kernel-occupancy", "kernel-latency")),
    "HighPipeUtilization": frozenset(("kernel-compute-bound",)),
    "UncoalescedGlobalAccess": frozenset(("kernel-uncoalesced",)),
    "UncoalescedSharedAccess": frozenset(("kernel-bank-conflicts",)),
    "SharedMemoryConflicts": frozenset(("kernel-bank-conflicts",)),
}
_WHY = {
    "MemoryL2Compression": "compression needs memory that was allocated as compressible, and weights hardly compress",
    "CPIStall": "a stall says where warps wait, not why; the grid and occupancy come first",
    "TheoreticalOccupancy": "occupancy below 100 % is no defect by itself",
    "AchievedOccupancy": "occupancy below 100 % is no defect by itself",
    "Occupancy": "occupancy below 100 % is no defect by itself",
    "IssueSlotUtilization": "idle issue slots are what every cause of latency looks like",
    "HighPipeUtilization": "idle pipes are what every cause of latency looks like",
    "WorkloadImbalance": "SMs without a block are what a small grid looks like",
}


def class_of(kernel: KernelReport) -> NvidiaRule | None:
    """NVIDIA's class of the launch."""
    return next((rule for rule in kernel.rules if rule.identifier == CLASS_RULE), None)


def largest(kernel: KernelReport) -> NvidiaRule | None:
    """The rule with the largest estimate for the whole kernel; for a part of it where none is for the whole."""
    said = [rule for rule in kernel.rules if rule.speedup_pct is not None]
    return max(said, key=lambda rule: (rule.whole_kernel is True, rule.speedup_pct or 0.0), default=None)


def fact(kernel: KernelReport) -> Fact:
    """What NVIDIA's rules say, as a figure beside ours: the class in its name, the largest estimate as its value."""
    named, top = class_of(kernel), largest(kernel)
    if not kernel.rules:
        return Fact("NVIDIA's rules", None, "%", text="none is stored in this file")
    name = f"NVIDIA's class is {_title(named)}; its largest estimate" if named else "NVIDIA's largest estimate"
    if top is None:
        return Fact(name, None, "%", CLASS_RULE, text="it estimates nothing")
    of = "of the whole kernel" if top.whole_kernel else "of the part that it looks at"
    return Fact(name, top.speedup_pct, "%", top.identifier, text=f"{_title(top)}, {of}")


def disagreement(seen: Seen, ours: Finding) -> Finding | None:
    """A note where NVIDIA names another class, or its largest estimate another lever than `ours`."""
    kernel = seen.kernel
    named, top = class_of(kernel), largest(kernel)
    parts = []
    if named is not None and named.title and not _same_class(named.title, ours.id):
        parts.append(f'its class is "{_title(named)}", ours {seen.kind.value}')
    if top is not None and not _same_lever(top, ours.id):
        why = f" ({_WHY[top.identifier]})" if top.identifier in _WHY else ""
        parts.append(f'its largest estimate, {share(top.speedup_pct)}, is for "{_title(top)}"{why}')
    if not parts or seen.kind is Kind.UNKNOWN:
        return None
    return Finding(
        id="nvidia-disagrees",
        weight=Weight.NOTE,
        headline=f"NVIDIA's rules see it otherwise: {'; '.join(parts)}",
        facts=tuple(
            Fact(rule.identifier, rule.speedup_pct, "%", "NVIDIA's estimate", text=printable(rule.message, 400))
            for rule in (named, top)
            if rule is not None
        ),
        cause="NVIDIA's rules are each about one section; ours go from the Speed of Light down and stop at the first "
        "cause",
        advice=(),
        recoverable_pct=None,
        recoverable_formula="NVIDIA's estimate is in the figures",
        confidence="both are shown so that the reader can judge",
        refuted_by="trying the other lever first gives more",
        of="kernel",
    )


def _same_class(title: str, ours: str) -> bool:
    if title.startswith(_EITHER):
        return ours == "kernel-compute-bound" or ours in _AGREES["Memory"]
    return title not in _AGREES or ours in _AGREES[title]


def _same_lever(rule: NvidiaRule, ours: str) -> bool:
    return ours in _SAME.get(rule.identifier, frozenset()) or (
        rule.identifier == CLASS_RULE and _same_class(rule.title, ours)
    )


def _title(rule: NvidiaRule) -> str:
    return printable(rule.title or rule.identifier, 80)
