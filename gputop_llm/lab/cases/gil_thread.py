"""A thread that holds the interpreter's lock: whenever the launching thread waits, it must queue for the lock again."""

from __future__ import annotations

import threading

from gputop_llm.lab.case import Case, Truth, Workload
from gputop_llm.lab.decoder import Decoder

_BATCH = 64


def build(device: str, fixed: bool) -> Workload:
    """A second Python thread that never waits; it lets go of the lock every 5 ms. Twin: it isn't there."""
    decoder = Decoder(device)
    hidden = decoder.inputs(_BATCH)

    def count() -> None:
        number = 0
        while True:
            number = (number * 31 + 7) % 1_000_003

    if not fixed:
        threading.Thread(target=count, name="counts", daemon=True).start()
    return Workload(
        _BATCH,
        prompt=16,
        output=512,
        decode=lambda _: decoder(hidden).argmax(dim=-1),
        prefill=decoder.prefill,
    )


CASE = Case(
    "gil-thread",
    cause="a busy Python thread in the engine's process holds the interpreter's lock for 5 ms at a time",
    remedy="no such thread",
    truth=Truth(first=("host-bound", "gil-contention"), gain=(0.3, 0.999)),
    build=build,
)
