"""The driver's allocator in the hot path: each step takes its workspace from the driver and gives it back."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH, _WORKSPACE_BYTES = 32, 512 << 20


def build(device: str, fixed: bool) -> Workload:
    """`empty_cache()` turns every free into cudaFree, which waits for the GPU. Twin: PyTorch's cache is the pool."""
    import torch

    decoder = Decoder(device)
    hidden = decoder.inputs(_BATCH)

    def step(_: int) -> Any:
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        workspace[: 1 << 20].zero_()
        tokens = decoder(hidden).argmax(dim=-1)
        del workspace
        if not fixed:
            torch.cuda.empty_cache()
        return tokens

    return Workload(_BATCH, 16, 512, step, decoder.prefill)


CASE = Case(
    "allocator",
    cause="torch.cuda.empty_cache() after each step: cudaFree and cudaMalloc every time",
    remedy="the caching allocator keeps what was freed",
    truth=Truth(first=("allocator-in-hot-path",), gain=(0.1, 0.9)),
    build=build,
    not_on_cpu="there is no driver to take memory from",
)
