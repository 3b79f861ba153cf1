"""A starved GPU: between two steps the thread that launches them detokenises and logs."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH = 64


def build(device: str, fixed: bool) -> Workload:
    """Text of each sequence made anew, and a line of log for each token. Twin: the thread launches, and no more."""
    decoder = Decoder(device)
    hidden = decoder.inputs(_BATCH)
    words = [f"word{number % 977}" for number in range(32_768)]
    log = logging.getLogger("gputop_llm.lab.host_starved")
    log.propagate = False
    log.setLevel(logging.INFO)
    log.handlers = [logging.StreamHandler(io.StringIO())]
    texts: list[list[int]] = [[] for _ in range(_BATCH)]

    def detokenise_and_log(tokens: list[int]) -> None:
        for sequence, (text, token) in enumerate(zip(texts, tokens, strict=True)):
            text.append(token)
            del text[:-64]
            said = " ".join(words[known % len(words)] for known in text)
            log.info("%s", json.dumps({"sequence": sequence, "token": token, "text": said}))
        stream: Any = log.handlers[0]
        stream.setStream(io.StringIO())

    return Workload(
        _BATCH,
        prompt=16,
        output=512,
        decode=lambda _: decoder(hidden).argmax(dim=-1),
        prefill=decoder.prefill,
        after=None if fixed else detokenise_and_log,
    )


CASE = Case(
    "host-starved",
    cause="the launching thread detokenises and logs each token between two steps",
    remedy="that work is not the launching thread's",
    truth=Truth(first=("host-bound",), symptoms=("host-bound",), gain=(0.15, 0.9)),
    build=build,
)
