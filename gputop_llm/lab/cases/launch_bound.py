"""Launch-bound decode: two hundred small kernels a step, each launched by the host one at a time."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_BATCH, _WIDTH, _PRODUCTS = 8, 1024, 200


def build(device: str, fixed: bool) -> Workload:
    """Eager: the host needs longer to launch a product than the GPU to compute it. Twin: one CUDA graph a step."""
    import torch

    made = {"device": device, "dtype": torch.bfloat16}
    weights = [torch.randn(_WIDTH, _WIDTH, **made) / _WIDTH**0.5 for _ in range(_PRODUCTS)]
    first = torch.randn(_BATCH, _WIDTH, **made)

    def step() -> Any:
        hidden = first
        for weight in weights:
            hidden = hidden @ weight
        return hidden.argmax(dim=-1)

    decode = _graphed(step) if fixed else step
    return Workload(_BATCH, 1, 512, lambda _: decode(), lambda _: step())


def _graphed(step: Any) -> Any:
    """The same step as one launch. What it reads and writes stays where it is, so a replay needs no argument."""
    import torch

    # Libraries make their handles and workspaces in the first runs, which a graph can't hold.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = step()

    def replay() -> Any:
        graph.replay()
        return tokens

    return replay


CASE = Case(
    "launch-bound",
    cause="eager decode: 200 kernels a step that take less than their launches",
    remedy="the step is one CUDA graph",
    truth=Truth(first=("launch-bound",), symptoms=("host-bound",), gain=(0.3, 0.9)),
    build=build,
    not_on_cpu="a CPU runs an operator when it is called: nothing is launched, and nothing waits for it",
)
