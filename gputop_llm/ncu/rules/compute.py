"""Compute-bound: which pipe."""

from __future__ import annotations

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu.bound import NEAR_ROOF_PCT, Kind, Pipe, busiest_pipe
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.facts import share
from gputop_llm.verdict.kernel_names import Family

_BY_PIPE = {
    "tensor": Advice(
        "a narrower type (FP8, FP4) doubles what the tensor pipe does in a cycle; less padding does too",
        {"vllm": "--quantization fp8", "sglang": "--quantization fp8", "trtllm": "quantization: FP8"},
    ),
    "issue slots": Advice("fewer instructions for the same work: wider loads, hoisted address arithmetic, unrolling"),
    "XU (transcendental, conversion)": Advice("fewer exp, log, sin and type conversions: exp2, packed conversions"),
    "FP64": Advice("look for a literal or a constant in double precision"),
}
_OTHER = Advice("move work to a pipe that is idle, or do less of it: packed 16-bit arithmetic, the tensor pipe")


def look(seen: Seen) -> Finding | None:
    """The finding of a compute-bound launch."""
    if seen.kind is not Kind.COMPUTE:
        return None
    kernel = seen.kernel
    pipe = busiest_pipe(kernel)
    pct = kernel.sm_pct or 0.0
    near = pct >= NEAR_ROOF_PCT
    what = f", most in {pipe.name} ({share(pipe.pct)})" if pipe else ", by which pipe was not recorded"
    return Finding(
        id="kernel-compute-bound",
        # At the tensor pipe's roof a GEMM is as it should be; at another's the work may be on the wrong one.
        weight=Weight.NOTE if near and pipe is not None and pipe.name == "tensor" else Weight.FINDING,
        headline=f"Compute-bound: SM at {share(pct)} of its peak{what}; memory {share(kernel.memory_pct)}",
        facts=(*seen.light(), *((Fact(f"{pipe.name} pipe", pipe.pct, "%", "of its peak"),) if pipe else ())),
        cause=_cause(seen, pipe),
        advice=(_BY_PIPE.get(pipe.name, _OTHER),) if pipe else (_OTHER,),
        recoverable_pct=max(0.0, 100.0 - pct),
        recoverable_formula="100 − the share of the SM's peak that is used: the same work at full speed",
        confidence="high: counted" if pipe else "medium: the pipes were not recorded",
        refuted_by="higher SM clocks don't make it faster",
        next_capture=None if pipe else "ncu --section ComputeWorkloadAnalysis",
        of="kernel",
    )


def _cause(seen: Seen, pipe: Pipe | None) -> str:
    cause = "the SMs are used well and more than memory"
    if pipe is not None and pipe.name == "tensor" and seen.family in (Family.GEMM, Family.MOE_GEMM, Family.ATTENTION):
        cause += "; so it is with prefill: many tokens for each pass over the weights"
    return cause
