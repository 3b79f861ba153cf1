"""Copies from pageable memory: what each step needs comes over the link while no kernel runs."""

from __future__ import annotations

from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH, _COLUMNS = 32, 131_072


def build(device: str, fixed: bool) -> Workload:
    """8.4 MB a step, as of an offloaded cache. Pageable: the host waits for it. Twin: pinned, a step ahead, beside."""
    import torch

    decoder = Decoder(device)
    source = torch.randn(_BATCH, _COLUMNS).to(torch.bfloat16)
    landed = [torch.empty(_BATCH, _COLUMNS, dtype=torch.bfloat16, device=device) for _ in range(2)]
    hidden = decoder.inputs(_BATCH)

    def compute(arrived: Any) -> Any:
        return decoder(hidden + arrived[:, : decoder.width]).argmax(dim=-1)

    def blocking(_: int) -> Any:
        landed[0].copy_(source)
        return compute(landed[0])

    if not fixed:
        return Workload(_BATCH, 16, 512, blocking, decoder.prefill)

    pinned = source.pin_memory()
    link = torch.cuda.Stream()
    copied = [torch.cuda.Event() for _ in range(2)]
    read = [torch.cuda.Event() for _ in range(2)]
    turn = 0

    def fetch(slot: int) -> None:
        with torch.cuda.stream(link):
            # Not before the step that reads what lies there is done with it.
            link.wait_event(read[slot])
            landed[slot].copy_(pinned, non_blocking=True)
            copied[slot].record(link)

    def overlapped(_: int) -> Any:
        nonlocal turn
        now, turn = turn, 1 - turn
        fetch(turn)
        torch.cuda.current_stream().wait_event(copied[now])
        tokens = compute(landed[now])
        read[now].record()
        return tokens

    fetch(0)
    return Workload(_BATCH, 16, 512, overlapped, decoder.prefill)


CASE = Case(
    "pageable-copies",
    cause="8.4 MB from pageable memory before each step, with the host waiting for them",
    remedy="pinned memory, a stream of its own, one step ahead",
    truth=Truth(
        first=("pageable-copies", "copies-exposed", "transfer-bound"),
        gain=(0.15, 0.8),
    ),
    build=build,
    not_on_cpu="there is no link to copy over",
)
