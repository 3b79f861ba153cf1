"""A sampler that goes through the sequences one by one: hundreds of small kernels at the end of each step."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH, _VOCABULARY = 64, 32_768
_TOP_P, _TEMPERATURE = 0.9, 0.8


def build(device: str, fixed: bool) -> Workload:
    """Temperature, top-p and the draw on one row of logits after the other. Twin: on all rows at once."""
    import torch

    decoder = Decoder(device)
    hidden = decoder.inputs(_BATCH)
    head = torch.randn(decoder.width, _VOCABULARY, device=device, dtype=hidden.dtype) / decoder.width**0.5

    def sample(logits: Any) -> Any:
        """[rows, vocabulary] → [rows]."""
        ordered, index = torch.sort(logits.float() / _TEMPERATURE, dim=-1, descending=True)
        chance = torch.softmax(ordered, dim=-1)
        chance = chance.masked_fill(chance.cumsum(dim=-1) - chance > _TOP_P, 0.0)
        # The race of exponentials draws as torch.multinomial does, which stops to look at its input.
        winner = (chance / torch.empty_like(chance).exponential_()).argmax(dim=-1, keepdim=True)
        return index.gather(-1, winner).squeeze(-1)

    def one_by_one(logits: Any) -> Any:
        return torch.cat([sample(row.unsqueeze(0)) for row in logits])

    draw = sample if fixed else one_by_one
    return Workload(
        _BATCH, prompt=16, output=256, decode=lambda _: draw(decoder(hidden) @ head), prefill=decoder.prefill
    )


CASE = Case(
    "sampler-tail",
    cause="sampling row by row: a dozen kernels for each sequence in each step",
    remedy="the same operations once, on the whole batch",
    truth=Truth(
        first=("launch-bound",),
        gain=(0.2, 0.95),
        not_compared="the finding's share is of the waits between kernels; fewer kernels work less, too",
    ),
    build=build,
    not_on_cpu="a CPU goes through the rows one by one in either form",
)
