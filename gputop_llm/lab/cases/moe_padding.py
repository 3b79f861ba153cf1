"""MoE with capacity padding under skew: every expert computes as many rows as the fullest one."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload


def build(device: str, fixed: bool) -> Workload:
    """One batched product over [experts, capacity]. Twin: each expert computes the rows that it was sent.

    Each expert has rows enough that its products take longer than the twin's launches of them: with 4,096 tokens and 32
    experts the twin was launch-bound on an H200.
    """
    import torch

    gpu = device == "cuda"
    tokens, experts, width, inner = (16_384, 16, 4096, 8192) if gpu else (256, 16, 256, 512)
    made = {"device": device, "dtype": torch.bfloat16 if gpu else torch.float32}
    up = torch.randn(experts, width, inner, **made) / width**0.5
    down = torch.randn(experts, inner, width, **made) / inner**0.5
    hidden = torch.randn(tokens, width, **made)

    # A quarter of all tokens wants expert 0, the others are spread; the same in each step, told by the host.
    rest = (tokens - tokens // 4) // (experts - 1)
    counts = [tokens - rest * (experts - 1)] + [rest] * (experts - 1)
    capacity = max(counts)
    ends = torch.tensor(counts).cumsum(0).tolist()
    starts = [0, *ends[:-1]]
    place = torch.cat([torch.arange(n) + e * capacity for e, n in enumerate(counts)]).to(device)
    padded = torch.zeros(experts * capacity, width, **made)

    def capacity_padded() -> Any:
        padded[place] = hidden
        out = torch.bmm(torch.bmm(padded.view(experts, capacity, width), up), down)
        return out.view(-1, width)[place]

    def compact() -> Any:
        return torch.cat(
            [hidden[start:end] @ up[e] @ down[e] for e, (start, end) in enumerate(zip(starts, ends, strict=True))]
        )

    mix = compact if fixed else capacity_padded
    return Workload(tokens, prompt=1, output=64, decode=lambda _: mix().argmax(dim=-1), prefill=lambda _: mix())


CASE = Case(
    "moe-padding",
    cause="experts padded to the fullest one's rows: three of four rows are zeros",
    remedy="each expert computes its own rows",
    truth=Truth(
        first=(),
        never=("host-bound", "gpu-starved"),
        gain=(0.5, 0.95),
        unseen="rows of zeros take as long as others: no counter tells them apart",
    ),
    build=build,
)
