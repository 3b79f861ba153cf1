"""Prefill blocks decode: a long prompt in one step, while every other sequence waits for its next token."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder


def build(device: str, fixed: bool) -> Workload:
    """A prompt of 4,096 tokens whole. Twin: 128 of them in each decode step, whose weights are read anyway."""
    import torch

    decoder = Decoder(device)
    # A new prompt comes about as often as one is through in chunks, so that nearly all steps of the twin are alike.
    batch, prompt, output, chunk = (32, 4096, 992, 128) if device == "cuda" else (8, 512, 120, 32)
    hidden = decoder.inputs(batch)
    prompts = decoder.inputs(prompt)

    def decode(beside: int) -> Any:
        # One pass over the weights for both: decode waits for bytes, so a few more rows are nearly free.
        rows = torch.cat((hidden, prompts[:beside])) if beside else hidden
        return decoder(rows)[:batch].argmax(dim=-1)

    return Workload(
        batch,
        prompt,
        output,
        decode,
        prefill=decoder.prefill,
        chunk=chunk if fixed else None,
        staggered=True,
    )


CASE = Case(
    "prefill-blocks",
    cause="long prompts are prefilled in one step each, and decode waits for it",
    remedy="chunked prefill: pieces of the prompt ride along in decode steps",
    truth=Truth(
        first=("prefill-delays-decode",),
        gain=(0.3, 0.99),
        gain_of="gap_p99_ms",
        not_compared="the finding's share is of decode's latency: the prefill itself must still be done",
    ),
    build=build,
)
