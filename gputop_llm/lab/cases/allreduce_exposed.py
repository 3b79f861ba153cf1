"""Tensor parallelism that waits for its all-reduces: nothing is computed while the ranks add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gputop_llm.lab import ranks
from gputop_llm.lab.case import Case, Truth, Workload

_TOKENS, _LAYERS = 4096, 8


def step_of(device: str, fixed: bool, rank: int) -> Callable[[], Any]:
    """Each layer's product is followed by its all-reduce. Twin: half of the batch computes while the other adds up."""
    import torch
    import torch.distributed as dist

    width = 8192 if device == "cuda" else 256
    made = {"device": device, "dtype": torch.bfloat16 if device == "cuda" else torch.float32}
    weights = [torch.randn(width, width, **made) / (2 * width) ** 0.5 for _ in range(_LAYERS)]
    tokens = _TOKENS if device == "cuda" else 256
    first = torch.randn(tokens, width, **made)

    def in_turn() -> Any:
        hidden = first
        for weight in weights:
            hidden = hidden @ weight
            dist.all_reduce(hidden)
        return hidden.argmax(dim=-1)

    def overlapped() -> Any:
        halves = list(first.chunk(2))
        under_way: list[Any] = [None, None]
        for weight in weights:
            for half in range(2):
                if under_way[half] is not None:
                    under_way[half].wait()
                halves[half] = halves[half] @ weight
                under_way[half] = dist.all_reduce(halves[half], async_op=True)
        for one in under_way:
            one.wait()
        return torch.cat(halves).argmax(dim=-1)

    return overlapped if fixed else in_turn


def build(device: str, fixed: bool) -> Workload:
    """The first rank's."""
    tokens = _TOKENS if device == "cuda" else 256
    return ranks.workload(step_of, device, fixed, tokens, output=64)


CASE = Case(
    "allreduce-exposed",
    cause="two ranks add up after each layer, and compute nothing meanwhile",
    remedy="one half of the batch computes while the other half is added up",
    truth=Truth(first=("comm-exposed",), gain=(0.05, 0.6)),
    build=build,
    gpus=ranks.RANKS,
)
