"""Reaching the client in a process: the one that `gputop-llm run` put there, or one that is injected now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gputop_llm.capture import inject as injection
from gputop_llm.capture import native
from gputop_llm.capture.plan import PlannedRank
from gputop_llm.capture.window import Channel


@dataclass(frozen=True, slots=True)
class Reached:
    """A client that can be spoken to; `details` are figures of how it was reached."""

    channel: Channel
    how: Literal["run", "injected"]
    details: dict[str, Any] = field(default_factory=dict)


def reach_prepared(rank: PlannedRank) -> Reached | None:
    """The client of a process that was started by `gputop-llm run`; None where there is none.

    Raises:
        GputopError: it is there and can't be spoken to.
    """
    channel = native.connect_prepared(rank.pid, rank.start_ticks)
    return None if channel is None else Reached(channel, "run")


def inject(rank: PlannedRank, deadline_s: float) -> Reached:
    """Injects the client, or wakes the one of an earlier window.

    Raises:
        GputopError: the process can't be, or should not be, touched now. It goes on as before.
    """
    channel = injection.inject(rank.pid, rank.start_ticks, native.library_bytes(), deadline_s)
    tid, waited_in = channel.thread
    return Reached(
        channel,
        "injected",
        {
            "took_ms": channel.took_ms,
            "stopped_ms": channel.stopped_ms,
            "reused": channel.reused,
            "thread": tid,
            "waited_in": waited_in,
        },
    )
