"""The kernels of tests/gpu/known_causes.cu, and what a verdict on each must say and must not say."""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """`full`: it needs every section of ncu. `kind` and `there` are None where nothing is demanded of them."""

    kernel: str
    full: bool
    kind: str | None
    there: str | None
    not_there: str

    @property
    def launches(self) -> int:
        """How many a report has; what the full set needs is replayed 38 times."""
        return 2 if self.full else 5


KNOWN = [
    Known("copy_dram", False, "DRAM-bound", "kernel-dram-bound", "kernel-small-grid"),
    Known("read_l2", False, "L2-bound", "kernel-l2-bound", "kernel-dram-bound"),
    Known("fma_chains", False, "compute-bound", "kernel-compute-bound", "kernel-spills"),
    Known("copy_few_blocks", False, "latency-bound", "kernel-small-grid", "kernel-dram-bound"),
    Known("spilling", True, None, "kernel-spills", "kernel-bank-conflicts"),
    Known("strided", True, None, "kernel-uncoalesced", "kernel-spills"),
    Known("bank_conflicts", True, None, "kernel-bank-conflicts", "kernel-uncoalesced"),
    Known("gemm_bf16_plain", True, None, "kernel-tensor-idle", "kernel-spills"),
    Known("gemm_bf16_tensor", True, None, None, "kernel-tensor-idle"),
]
#: They ran on a GPU on which nothing else did, with L2 flushed.
NEVER = {"kernel-counters-mixed", "kernel-warm-l2"}


def missed(known: Known, kind: str, found: set[str]) -> list[str]:
    """What is wrong with a verdict of this class and with these findings; empty if nothing is."""
    wrong = [f"has {one}" for one in sorted(found & {known.not_there, *NEVER})]
    if known.kind is not None and kind != known.kind:
        wrong.append(f"is {kind} instead of {known.kind}")
    if known.there is not None and known.there not in found:
        wrong.append(f"lacks {known.there}")
    return wrong
