"""A matrix product in 16 bits or fewer whose tensor pipe did nothing."""

from __future__ import annotations

import re

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.kernel_names import Family

_NARROW = re.compile(
    r"bf16|bfloat16|fp16|f16|\bhalf\b|__half|hgemm|h\d+gemm|h\d{3,}|fp8|e4m3|e5m2|int8|s8s8|i8|nvjet|tensorop|mma",
    re.IGNORECASE,
)
#: With one token there is no second row for the tensor pipe; a split's last step only adds.
_NO_PRODUCT = re.compile(r"gemv|gemvx|splitk_?reduce|reduce_kernel|combine|merge|prepare|scheduler", re.IGNORECASE)
_FAMILIES = {Family.GEMM, Family.MOE_GEMM, Family.ATTENTION}


def look(seen: Seen) -> Finding | None:
    """The finding; None where the pipe was used, need not be, or wasn't recorded."""
    kernel = seen.kernel
    name = kernel.full_name
    if seen.family not in _FAMILIES or not _NARROW.search(name) or _NO_PRODUCT.search(name):
        return None
    counted = {n: kernel.metrics[n] for n in (*names.TENSOR_PCT, *names.TENSOR_COUNT) if n in kernel.metrics}
    # One of the types of operation that is 0 says nothing where the others have no value.
    whole = any("_op_" not in n for n in counted) or not any(n in kernel.missing for n in names.TENSOR_PCT)
    if not counted or not whole or any(value > 0 for value in counted.values()):
        return None
    memory = kernel.memory_pct
    return Finding(
        id="kernel-tensor-idle",
        weight=Weight.SEVERE,
        headline="The tensor pipe did nothing, and this is a matrix product in 16 bits or fewer",
        facts=tuple(
            Fact(n, value, "%" if n.endswith("pct") or "pct_of" in n else "", n) for n, value in counted.items()
        ),
        cause="the kernel multiplies on the ordinary pipes: a fallback for a type, an alignment or a shape that the "
        "fast kernels don't take",
        advice=(
            Advice(
                "make shapes and strides multiples of 16 bytes, keep both inputs in one 16-bit type, and look why the "
                "library fell back"
            ),
        ),
        recoverable_pct=None if memory is None else max(0.0, 100.0 - memory),
        recoverable_formula="100 − the memory side's share of its peak: what would be left if computing took no time",
        confidence="high that the pipe is idle; that it should not be is told by the kernel's name",
        refuted_by="the kernel's SASS has MMA instructions",
        next_capture="ncu --section SourceCounters on it, and look for HMMA or HGMMA",
        of="kernel",
    )
