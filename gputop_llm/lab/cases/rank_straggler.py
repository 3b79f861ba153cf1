"""A rank with more work than the other, which waits for it in each all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputop_llm.lab import ranks
from gputop_llm.lab.case import Case, Truth, Workload

_BATCH, _LAYERS = 64, 8


def step_of(device: str, fixed: bool, rank: int) -> Callable[[], Any]:
    """The second rank has three quarters of the rows, as one that holds the experts that all want. Twin: half each."""
    import torch
    import torch.distributed as dist

    width, rows = (8192, 4096) if device == "cuda" else (256, 1024)
    made = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    own = rows // 2 if fixed else rows * (1 + 2 * rank) // 4
    weights = [torch.randn(width, width, **made) / width**0.5 for _ in range(_LAYERS)]
    first = torch.randn(own, width, **made)

    def step() -> Any:
        hidden = first
        for weight in weights:
            hidden = hidden @ weight
            # What is added up is small, so that it is waiting, and not moving data, that takes the time.
            total = hidden[:_BATCH].contiguous()
            dist.all_reduce(total)
        return total.argmax(dim=-1)

    return step


def build(device: str, fixed: bool) -> Workload:
    """The first rank's."""
    return ranks.workload(step_of, device, fixed, _BATCH, output=256)


CASE = Case(
    "rank-straggler",
    cause="one of two ranks has three times the other's rows, and the other waits for it in each all-reduce",
    remedy="each has half of them",
    truth=Truth(first=("rank-straggler",), gain=(0.15, 0.5)),
    build=build,
    gpus=ranks.RANKS,
)
