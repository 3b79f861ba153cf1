"""Memory-bound: which level, how near its roof, and that then only fewer bytes help."""

from __future__ import annotations

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.ncu import names
from gputop_llm.ncu.bound import MEMORY_KINDS, NEAR_ROOF_PCT, Kind
from gputop_llm.ncu.model import KernelReport
from gputop_llm.ncu.rules.finding import Seen
from gputop_llm.verdict.facts import share
from gputop_llm.verdict.kernel_names import Family

_FEWER_BYTES = Advice(
    "move fewer bytes: weights or KV cache in 8 or 4 bits, or more sequences for each pass over the weights",
    {
        "vllm": "--quantization fp8, --kv-cache-dtype fp8, --max-num-seqs (up)",
        "sglang": "--quantization fp8, --kv-cache-dtype fp8_e5m2, --max-running-requests (up)",
        "trtllm": "quantization: FP8, kv_cache_config: {dtype: fp8}, max_batch_size (up)",
    },
)
_REUSE = Advice(
    "use what is read more often before it is dropped: larger tiles, fused neighbours, blocks that share rows"
)
_LEVEL = {Kind.DRAM: "DRAM", Kind.L2: "L2", Kind.L1: "L1 and shared memory", Kind.MEMORY: "memory"}


def look(seen: Seen) -> Finding | None:
    """The finding of a memory-bound launch."""
    if seen.kind not in MEMORY_KINDS:
        return None
    kernel = seen.kernel
    pct = {Kind.DRAM: kernel.dram_pct, Kind.L2: kernel.l2_pct}.get(seen.kind) or kernel.memory_pct
    near = pct is not None and pct >= NEAR_ROOF_PCT
    level = _LEVEL[seen.kind]
    return Finding(
        id=f"kernel-{seen.kind.value.lower()}",
        weight=Weight.NOTE if near else Weight.FINDING,
        headline=f"{level[:1].upper()}{level[1:]}-bound at {share(pct)} of its peak (SM {share(kernel.sm_pct)})"
        + (", by which level was not recorded" if seen.kind is Kind.MEMORY else "")
        + (": near its roof, the lever is fewer bytes" if near else ""),
        facts=(
            *seen.light(),
            Fact("L2 hit rate", kernel.first(names.L2_HIT), "%", names.L2_HIT[0]),
            Fact("L1 hit rate", kernel.first(names.L1_HIT), "%", names.L1_HIT[0]),
            Fact(
                "sectors of a load",
                _sectors(seen.kernel),
                "per request",
                "of global loads; 4 where 32 threads read 4 bytes",
            ),
            Fact("moved by DRAM", kernel.dram_bytes, "bytes", "counted, or rate × duration"),
            Fact("needed by the shape", seen.point.bytes_needed, "bytes", "inputs once and the result once"),
        ),
        cause=_cause(seen, level),
        advice=(_FEWER_BYTES,) if seen.kind is Kind.DRAM else (_REUSE, _FEWER_BYTES),
        recoverable_pct=None if pct is None else max(0.0, 100.0 - pct),
        recoverable_formula=f"100 − the share of {level}'s peak that is used: the same bytes at full speed",
        confidence="high: counted" if seen.kind is not Kind.MEMORY else "medium: which level was not recorded",
        refuted_by="the same kernel with half of the bytes (8-bit weights) takes as long",
        next_capture=None if near else "ncu --set full: hit rates and sectors per request of each level",
        of="kernel",
    )


def _sectors(kernel: KernelReport) -> float | None:
    known = kernel.first(names.SECTORS_OF_A_LOAD)
    sectors, requests = kernel.first(names.LOAD_SECTORS), kernel.first(names.LOAD_REQUESTS)
    return sectors / requests if known is None and sectors is not None and requests else known


def _cause(seen: Seen, level: str) -> str:
    cause = f"{level} is used well and more than the SMs: the time is that of moving bytes"
    if seen.kind is Kind.DRAM and seen.family in (Family.GEMM, Family.MOE_GEMM):
        cause += "; so it is with decode: each step reads every weight once for a few tokens"
    if seen.kind is Kind.DRAM and seen.family is Family.ATTENTION:
        cause += "; so it is with decode: each step reads the whole KV cache once"
    return cause
