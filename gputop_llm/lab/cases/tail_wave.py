"""A tail wave: one block more than the GPU holds at once, and all SMs but one wait for it."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_ENTRIES, _TURNS, _CALLS = 1 << 26, 2000, 4


def build(device: str, fixed: bool) -> Workload:
    """Two blocks of 1,024 threads for each SM (it holds no more), and one beside. Twin: without the one.

    What a block does is to wait for memory, load after load, as a walk through a table of pages does: a lone block
    then takes as long as a full wave.
    """
    import torch

    from gputop_llm.lab.kernels import chase

    full = 2 * torch.cuda.get_device_properties(device).multi_processor_count
    # Larger than the caches.
    table = torch.randperm(_ENTRIES, device=device, dtype=torch.int32)
    out = torch.empty(full if fixed else full + 1, device=device, dtype=torch.int32)

    def step() -> Any:
        for _ in range(_CALLS):
            chase(table, out, _TURNS)
        return out[:16]

    return Workload(16, prompt=1, output=256, decode=lambda _: step(), prefill=lambda _: step())


CASE = Case(
    "tail-wave",
    cause="one block more than fits: a last wave with one block in it",
    remedy="a grid of whole waves",
    truth=Truth(
        first=(),
        kernel=("kernel-tail-wave",),
        never=("host-bound", "gpu-starved"),
        gain=(0.3, 0.6),
        unseen="a kernel runs all the time; how its blocks fill the SMs only counters tell",
    ),
    build=build,
    not_on_cpu="a grid is a GPU's",
)
