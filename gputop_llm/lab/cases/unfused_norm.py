"""Unfused residual, RMSNorm and quantisation: a dozen kernels, each of which reads and writes everything once."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload

_TOKENS, _WIDTH, _LAYERS, _EPSILON = 8192, 8192, 8, 1e-6


def build(device: str, fixed: bool) -> Workload:
    """Written as in a paper: one operation a line. Twin: one kernel that keeps the row in registers."""
    import torch

    made = {"device": device, "dtype": torch.bfloat16}
    hidden, residual = torch.randn(_TOKENS, _WIDTH, **made), torch.randn(_TOKENS, _WIDTH, **made)
    weight = torch.ones(_WIDTH, **made)

    def line_by_line() -> Any:
        added = hidden + residual
        wide = added.float()
        scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + _EPSILON)
        normed = wide * scale * weight
        step_size = normed.abs().amax(dim=-1, keepdim=True) / 127
        return (normed / step_size).round().to(torch.int8)

    def fused() -> Any:
        from gputop_llm.lab.kernels import residual_norm_quant

        return residual_norm_quant(hidden, residual, weight, _EPSILON)

    norm = fused if fixed else line_by_line

    def step() -> Any:
        for _ in range(_LAYERS):
            quantised = norm()
        return quantised[:64].argmax(dim=-1)

    return Workload(64, prompt=1, output=256, decode=lambda _: step(), prefill=lambda _: step())


CASE = Case(
    "unfused-norm",
    cause="residual, RMSNorm and quantisation as a dozen elementwise kernels",
    remedy="one fused kernel",
    truth=Truth(
        first=("unfused-elementwise",),
        never=("host-bound", "gpu-starved"),
        gain=(0.5, 0.98),
    ),
    build=build,
    not_on_cpu="the fused twin is a Triton kernel",
)
