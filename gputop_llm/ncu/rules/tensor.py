"""A matrix product in 16 bits or fewer whose tensor pipe multiplied nothing.

Counted operations tell, where they were recorded: the pipe's cycles hold HFMA2.MMA too, which is no matrix operation.
"""

from __future__ import annotations

import re

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.model import KernelReport
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.kernel_names import Family

_NARROW = re.compile(
    r"bf16|bfloat16|fp16|f16|\bhalf\b|__half|hgemm|h\d+gemm|h\d{3,}|fp8|e4m3|e5m2|int8|s8s8|i8|nvjet|tensorop|mma",
    re.IGNORECASE,
)
#: With one token there is no second row for the tensor pipe; a split's last step only adds.
_NO_PRODUCT = re.compile(r"gemv|gemvx|splitk_?reduce|reduce_kernel|combine|merge|prepare|scheduler", re.IGNORECASE)
#: Below this share of its peak the pipe counts as idle: the compiler writes constants by HFMA2.MMA, which runs on it
#: (up to 0.006 % in a product without MMA on an H200; decode GEMMs of 8 rows read 1 to 2 %).
_NOTHING_PCT = 0.01
#: Where these are counted, so are the operations of every type that the chip has.
_OPERATIONS = tuple(f"{names.TENSOR_OPS}{dtype}" for dtype in ("bf16", "fp16"))
_FAMILIES = {Family.GEMM, Family.MOE_GEMM, Family.ATTENTION}


def look(seen: Seen) -> Finding | None:
    """The finding; None where the pipe was used, need not be, or wasn't recorded."""
    kernel = seen.kernel
    name = kernel.full_name
    if seen.family not in _FAMILIES or not _NARROW.search(name) or _NO_PRODUCT.search(name):
        return None
    counted = {n: kernel.metrics[n] for n in (*names.TENSOR_PCT, *names.TENSOR_COUNT) if n in kernel.metrics}
    operations = _operations(kernel)
    if operations:
        counted |= operations
        idle = not any(operations.values())
    else:
        # One of the types of operation that is 0 says nothing where the others have no value.
        whole = any("_op_" not in n for n in counted) or not any(n in kernel.missing for n in names.TENSOR_PCT)
        idle = bool(counted) and whole and all(v <= (_NOTHING_PCT if "pct" in n else 0) for n, v in counted.items())
    if not idle:
        return None
    memory = kernel.memory_pct
    return Finding(
        id="kernel-tensor-idle",
        weight=Weight.SEVERE,
        headline="The tensor pipe multiplied nothing, and this is a matrix product in 16 bits or fewer",
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


def _operations(kernel: KernelReport) -> dict[str, float]:
    """Counted operations of the tensor pipe by type; empty unless all of them are known."""
    start, end = names.TENSOR_OPS, names.TENSOR_OPS_END
    found = {n: v for n, v in kernel.metrics.items() if n.startswith(start) and n.endswith(end)}
    whole = all(any(n.startswith(one) for n in found) for one in _OPERATIONS)
    return found if whole and not any(n.startswith(start) for n in kernel.missing) else {}
