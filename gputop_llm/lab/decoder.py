"""The base that most cases share: the matrix products and norms of a decoder, on a GPU long enough to hide the host.

Attention is left out (no case is about it), and each step has the same input: only its time matters.
"""

from __future__ import annotations

from typing import Any


class Decoder:
    """A stack of gated blocks. Called with [tokens, width], gives [tokens, width].

    On a GPU a step reads 4.3 GB of weights (about 1 ms on an H200) in about twenty launches, so that the host is far
    ahead of it. On a CPU it is small.
    """

    def __init__(self, device: str, dtype: Any = None) -> None:
        import torch

        self.width, layers = (8192, 4) if device == "cuda" else (128, 4)
        dtype = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
        made = {"device": device, "dtype": dtype}
        self.blocks = [
            (
                torch.randn(self.width, 4 * self.width, **made) / self.width**0.5,
                torch.randn(4 * self.width, self.width, **made) / (4 * self.width) ** 0.5,
            )
            for _ in range(layers)
        ]
        self._made = made

    def inputs(self, tokens: int) -> Any:
        """Random hidden states of so many tokens: [tokens, width]."""
        import torch

        return torch.randn(tokens, self.width, **self._made)

    def prefill(self, tokens: int) -> Any:
        """One pass over the prompts of so many tokens."""
        return self(self.inputs(tokens))

    def __call__(self, hidden: Any) -> Any:
        import torch.nn.functional as F

        for up, down in self.blocks:
            normed = F.layer_norm(hidden, (self.width,))
            hidden = hidden + F.silu(normed @ up) @ down
        return hidden
