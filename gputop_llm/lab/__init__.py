"""Small workloads with a known cause, each with a twin that lacks it: examples, fixtures, and what hit rates are of.

Listing them needs no torch; running one does (the extra `lab`).
"""

from __future__ import annotations

from gputop_llm.errors import UsageError
from gputop_llm.lab.case import Case
from gputop_llm.lab.cases import (
    allocator,
    allreduce_exposed,
    fp32_gemm,
    gil_thread,
    host_starved,
    launch_bound,
    moe_padding,
    pageable_copies,
    prefill_blocks,
    rank_straggler,
    sampler_tail,
    small_grid,
    tail_wave,
    token_sync,
    unfused_norm,
    weight_bytes,
)

CASES: dict[str, Case] = {
    module.CASE.name: module.CASE
    for module in (
        launch_bound,
        token_sync,
        pageable_copies,
        allocator,
        prefill_blocks,
        weight_bytes,
        small_grid,
        tail_wave,
        fp32_gemm,
        host_starved,
        gil_thread,
        sampler_tail,
        moe_padding,
        unfused_norm,
        allreduce_exposed,
        rank_straggler,
    )
}


def case_of(name: str) -> Case:
    """The case of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in CASES:
        raise UsageError(f"there is no case '{name}'", todo="`gputop-llm lab list` lists them")
    return CASES[name]
