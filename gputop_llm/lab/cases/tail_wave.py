"""A tail wave: one block more than the GPU holds at once, and all SMs but one wait for it."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_THREADS, _TURNS, _CALLS = 1024, 100_000, 4


def build(device: str, fixed: bool) -> Workload:
    """Two blocks of 1,024 threads for each SM (it holds no more), and one beside. Twin: without the one."""
    import torch

    from gputop_llm.lab.kernels import chain

    full = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    out = torch.empty(full if fixed else full + 1, _THREADS, device=device)

    def step() -> Any:
        for _ in range(_CALLS):
            chain(out, _TURNS)
        return out[:16].argmax(dim=-1)

    return Workload(16, prompt=1, output=256, decode=lambda _: step(), prefill=lambda _: step())


CASE = Case(
    "tail-wave",
    cause="one block more than fits: a last wave with one block in it",
    remedy="a grid of whole waves",
    truth=Truth(
        first=(),
        kernel=("kernel-tail-wave",),
        never=("host-bound", "gpu-starved"),
        gain=(0.2, 0.6),
        unseen="a kernel runs all the time; how its blocks fill the SMs only counters tell",
    ),
    build=build,
    not_on_cpu="a grid is a GPU's",
)
