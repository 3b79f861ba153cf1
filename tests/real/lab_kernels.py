"""The lab's Triton kernels against PyTorch, by Triton's interpreter: what they compute, not how fast."""

from __future__ import annotations

import torch

from gputop_llm.lab import kernels

BF16 = torch.bfloat16
row, weight = torch.randn(1, 1024, dtype=BF16), torch.randn(16, 1024, dtype=BF16)
exact = row.float() @ weight.float().T
scale = weight.abs().amax(dim=1) / 127
narrow = (weight / scale[:, None]).round().to(torch.int8)
torch.testing.assert_close(kernels.gemv(row, weight, torch.ones_like(scale)).float(), exact, rtol=0.02, atol=0.1)
torch.testing.assert_close(kernels.gemv(row, narrow, scale).float(), exact, rtol=0.1, atol=2.0)

cache = torch.randn(3, 256, kernels.COLUMNS, dtype=BF16)
torch.testing.assert_close(kernels.context_sum(cache), cache.float().sum(dim=1), rtol=1e-4, atol=1e-3)

table, out = torch.randperm(64, dtype=torch.int32), torch.empty(3, dtype=torch.int32)
kernels.chase(table, out, 4)
at = torch.arange(3)
for _ in range(4):
    at = table[at].long()
torch.testing.assert_close(out.long(), at)

hidden, residual, gain = (
    torch.randn(4, 1024, dtype=BF16),
    torch.randn(4, 1024, dtype=BF16),
    torch.ones(1024, dtype=BF16),
)
added = hidden.float() + residual.float()
normed = added * torch.rsqrt(added.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
quantised = (normed / (normed.abs().amax(dim=-1, keepdim=True) / 127)).round()
# Halves are rounded differently.
torch.testing.assert_close(
    kernels.residual_norm_quant(hidden, residual, gain, 1e-6).float(), quantised, rtol=0.0, atol=1.0
)
print("all kernels agree")
