"""Reaching the client in a process: the one that `gputop-llm run` put there, or one that is injected now."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any, Literal

from gputop_llm.capture.plan import PlannedRank
from gputop_llm.capture.window import Channel
from gputop_llm.errors import GputopError


@dataclass(frozen=True, slots=True)
class Reached:
    """A client that can be spoken to; `details` are figures of how it was reached."""

    channel: Channel
    how: Literal["run", "injected"]
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Closed:
    """Why a way is closed, and the one thing that opens it."""

    why: str
    opens: str


def injection_closed(pid: int) -> Closed | None:
    """Why nothing can be injected into a process; None when it can."""
    why = _inject().openness(pid)
    if why is None:
        return None
    return Closed(why.why or why.what, why.todo) if isinstance(why, GputopError) else Closed(str(why), "")


def reach_prepared(rank: PlannedRank) -> Reached | None:
    """The client of a process that was started by `gputop-llm run`; None where there is none.

    Raises:
        GputopError: it is there and can't be spoken to.
    """
    channel = _native().connect_prepared(rank.pid, rank.start_ticks)
    return None if channel is None else Reached(channel, "run")


def inject(rank: PlannedRank, deadline_s: float) -> Reached:
    """Injects the client, or wakes the one of an earlier window.

    Raises:
        GputopError: the process can't be, or should not be, touched now. It goes on as before.
    """
    channel = _inject().inject(rank.pid, rank.start_ticks, _native().library_bytes(), deadline_s)
    tid, syscall = channel.thread
    return Reached(
        channel,
        "injected",
        {"took_ms": channel.took_ms, "reused": channel.reused, "thread": tid, "waited_in": str(syscall)},
    )


def _inject() -> Any:
    return importlib.import_module("gputop_llm.capture.inject")


def _native() -> Any:
    return importlib.import_module("gputop_llm.capture.native")
