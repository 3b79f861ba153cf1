"""A grid that is too small: one block for each sequence, sixteen of the GPU's hundred SMs at work."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_SEQUENCES, _CONTEXT, _CALLS = 16, 131_072, 8


def build(device: str, fixed: bool) -> Workload:
    """Each block goes through a whole context. Twin: contexts in 32 pieces and a small sum, as flash decoding does."""
    import torch

    from gputop_llm.lab.kernels import COLUMNS, context_sum

    cache = torch.randn(_SEQUENCES, _CONTEXT, COLUMNS, device=device, dtype=torch.bfloat16)
    pieces = 32 if fixed else 1

    def step() -> Any:
        for _ in range(_CALLS):
            partial = context_sum(cache.view(_SEQUENCES * pieces, _CONTEXT // pieces, COLUMNS))
            whole = partial.view(_SEQUENCES, pieces, COLUMNS).sum(dim=1) if pieces > 1 else partial
        return whole.argmax(dim=-1)

    return Workload(_SEQUENCES, prompt=1, output=256, decode=lambda _: step(), prefill=lambda _: step())


CASE = Case(
    "small-grid",
    cause="one block for each of 16 sequences: most SMs have nothing to do",
    remedy="each sequence in 32 blocks, and a small sum",
    truth=Truth(
        first=(),
        kernel=("kernel-small-grid",),
        symptoms=("gpu-busy-not-working",),
        never=("host-bound",),
        gain=(0.5, 0.98),
        unseen="a kernel runs all the time; how many SMs it fills only counters tell",
    ),
    build=build,
    not_on_cpu="a grid is a GPU's",
)
