"""A sync for each token: the host asks the GPU for every sequence's token by itself, and waits each time."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH = 64


def build(device: str, fixed: bool) -> Workload:
    """`.item()` for each sequence stops the host until the GPU is done. Twin: one copy, looked at a step later."""
    decoder = Decoder(device)
    hidden = decoder.inputs(_BATCH)

    def one_by_one(tokens: Any) -> list[int]:
        # Each is a copy of 8 bytes and a wait; until the last is over, the next step isn't even launched.
        return [int(token.item()) for token in tokens]

    return Workload(
        _BATCH,
        prompt=16,
        output=512,
        decode=lambda _: decoder(hidden).argmax(dim=-1),
        prefill=decoder.prefill,
        deliver=None if fixed else one_by_one,
    )


CASE = Case(
    "token-sync",
    cause="`.item()` for each sequence in each step: 64 blocking copies of 8 bytes",
    remedy="the batch's tokens in one copy into pinned memory, looked at a step later",
    truth=Truth(first=("sync-bound",), gain=(0.15, 0.8)),
    build=build,
    not_on_cpu="tokens are in the host's memory already: there is nothing to wait for",
)
