"""What the warps of a kernel waited for most."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.ncu import names
from gputop_llm.ncu.model import KernelReport

#: NVIDIA's: a reason below this share of the time between two instructions is none.
_WORTH = 0.3
#: A warp that could issue, or did, doesn't wait.
_NO_WAIT = {"selected", "not_selected"}
_REASONS = {
    "long_scoreboard": ("data from memory (L1, L2, DRAM)", "issue loads earlier and more at once; fetch ahead"),
    "short_scoreboard": ("shared memory or special functions", "fewer bank conflicts; fewer exp and log"),
    "barrier": ("a barrier of its block", "less imbalance between the warps of a block; smaller blocks"),
    "mio_throttle": ("a slot in the queue to shared memory", "wider and fewer shared-memory accesses"),
    "lg_throttle": ("a slot in the queue to memory", "wider and fewer loads and stores"),
    "math_pipe_throttle": ("a busy arithmetic pipe", "spread the work over pipes"),
    "wait": ("a fixed latency of its own instructions", "more independent work in each warp"),
    "no_instruction": ("instructions to be fetched", "smaller code: less unrolling"),
    "drain": ("its last stores", "stores that lie side by side"),
    "membar": ("a memory fence", "fewer or narrower fences"),
    "imc_miss": ("constants to be fetched", "fewer scattered constants"),
    "tex_throttle": ("a slot in the texture queue", "fewer texture or surface accesses"),
    "dispatch_stall": ("the dispatcher", "look at register-bank conflicts"),
    "sleeping": ("a sleep of its own", "no nanosleep in the kernel"),
    "branch_resolving": ("a branch", "fewer divergent branches"),
    "gmma": ("the asynchronous matrix product", "deeper pipelining of the matrix products"),
    "misc": ("something that ncu doesn't name", "look at the lines with most samples"),
}
_TOLD = re.compile(r"represents about (\d+(?:\.\d+)?)% of the total")
#: By the wording of NVIDIA's rule, where no stalls were recorded.
_WORDINGS = (
    ("scoreboard dependency on a L1TEX", "long_scoreboard"),
    ("scoreboard dependency on a MIO", "short_scoreboard"),
    ("sibling warps at a CTA barrier", "barrier"),
    ("MIO (memory input/output) instruction queue", "mio_throttle"),
    ("fixed latency execution dependency", "wait"),
)


@dataclass(frozen=True, slots=True)
class Stall:
    """The reason by ncu's name, what it waits for in words, its share of the time between two instructions (%)."""

    reason: str
    waits_for: str
    advice: str
    share_pct: float


def dominant(kernel: KernelReport) -> Stall | None:
    """The reason with the largest share, if that is worth naming."""
    waited = {
        name[len(names.STALL_START) : -len(names.STALL_END)]: value
        for name, value in kernel.metrics.items()
        if name.startswith(names.STALL_START) and name.endswith(names.STALL_END) and "not_issued" not in name
    }
    total = kernel.first(names.LATENCY) or sum(waited.values())
    own = {reason: value for reason, value in waited.items() if reason not in _NO_WAIT}
    if own and total:
        reason = max(own, key=lambda name: own[name])
        return _stall(reason, own[reason] / total)
    for rule in kernel.rules:
        match = _TOLD.search(rule.message)
        known = next((reason for words, reason in _WORDINGS if words in rule.message), None)
        if match and known:
            return _stall(known, float(match[1]) / 100)
    return None


def _stall(reason: str, part: float) -> Stall | None:
    if part < _WORTH:
        return None
    waits_for, advice = _REASONS.get(reason, (reason.replace("_", " "), "look at the lines with most samples"))
    return Stall(reason, waits_for, advice, 100.0 * part)
