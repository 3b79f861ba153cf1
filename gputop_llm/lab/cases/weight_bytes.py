"""Decode of one sequence waits for the bytes of the weights: half of the bytes take half of the time."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_WIDTH, _LAYERS = 16_384, 8


def build(device: str, fixed: bool) -> Workload:
    """Weights in 16 bits. Twin: in 8 bits with a scale for each row, by the same kernel."""
    import torch

    from gputop_llm.lab.kernels import gemv

    made = {"device": device, "dtype": torch.bfloat16}
    hidden = torch.randn(1, _WIDTH, **made)
    layers = []
    for _ in range(_LAYERS):
        weight = torch.randn(_WIDTH, _WIDTH, **made) / _WIDTH**0.5
        scale = weight.abs().amax(dim=1) / 127 if fixed else torch.ones(_WIDTH, **made)
        layers.append(((weight / scale[:, None]).round().to(torch.int8) if fixed else weight, scale))

    def step() -> Any:
        out = hidden
        for weight, scale in layers:
            out = gemv(out, weight, scale)
        return out.argmax(dim=-1)

    return Workload(1, prompt=1, output=512, decode=lambda _: step(), prefill=lambda _: step())


CASE = Case(
    "weight-bytes",
    cause="decode reads all weights in 16 bits for one token",
    remedy="weights in 8 bits",
    truth=Truth(
        first=(),
        kernel=("kernel-dram-bound",),
        never=("host-bound", "gpu-starved"),
        # Half of the bytes save 29 to 31 % on an H200.
        gain=(0.2, 0.6),
        unseen="the GPU is busy with matrix products all the time; that they wait for bytes only counters tell",
    ),
    build=build,
    not_on_cpu="a core's own arithmetic is the limit there, not the bytes",
)
