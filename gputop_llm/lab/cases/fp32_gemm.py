"""Matrix products in 32 bits: the GPU is busy throughout, on pipes that have a tenth of the tensor cores' rate."""

from __future__ import annotations

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH = 512


def build(device: str, fixed: bool) -> Workload:
    """FP32 with TF32 off, as PyTorch has it by default. Twin: bf16."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    decoder = Decoder(device, torch.bfloat16 if fixed else torch.float32)
    hidden = decoder.inputs(_BATCH)
    return Workload(
        _BATCH,
        prompt=1,
        output=64,
        decode=lambda _: decoder(hidden).argmax(dim=-1),
        prefill=decoder.prefill,
    )


CASE = Case(
    "fp32-gemm",
    cause="matrix products in FP32: the tensor cores do nothing",
    remedy="bf16",
    truth=Truth(
        first=(),
        kernel=("kernel-compute-bound",),
        never=("compute-bound", "host-bound", "gpu-starved"),
        gain=(0.7, 0.98),
        unseen="the GPU is busy with matrix products all the time; which pipe computes them only counters tell",
    ),
    build=build,
    not_on_cpu="a CPU has no tensor cores",
)
