"""Reaching the client in a process: the one that `gputop-llm run` put there, or one that is injected now.

Injection by a borrowed thread comes first: the target's Python takes no part in it. `sys.remote_exec` runs a script on
the main thread, with the GIL, in the middle of what that does; it is for processes that have no thread to borrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from gputop_llm.capture import inject as injection
from gputop_llm.capture import native
from gputop_llm.capture.inject import Channel as InjectedChannel
from gputop_llm.capture.inject import InjectionRefused, NotBorrowed, remote_exec
from gputop_llm.capture.plan import PlannedRank
from gputop_llm.capture.window import Channel


@dataclass(frozen=True, slots=True)
class Reached:
    """A client that can be spoken to; `details` are figures of how it was reached."""

    channel: Channel
    how: Literal["run", "injected", "remote-exec"]
    details: dict[str, Any] = field(default_factory=dict)


def reach_prepared(rank: PlannedRank) -> Reached | None:
    """The client of a process that was started by `gputop-llm run`; None where there is none.

    Raises:
        GputopError: it is there and can't be spoken to.
    """
    channel = native.connect_prepared(rank.pid, rank.start_ticks)
    return None if channel is None else Reached(channel, "run")


def closed(pid: int) -> InjectionRefused | None:
    """Why no client can be injected into a process, with the one thing that lifts it; None when it can.

    Nothing is done to it.
    """
    refusal = injection.openness(pid)
    if isinstance(refusal, NotBorrowed) and remote_exec.openness(pid) is None:
        return None
    return refusal


def inject(rank: PlannedRank, deadline_s: float) -> Reached:
    """Injects the client, or wakes the one of an earlier window.

    Raises:
        GputopError: the process can't be, or should not be, touched now. It goes on as before.
    """
    library = native.library_bytes()
    try:
        channel = injection.inject(rank.pid, rank.start_ticks, library, deadline_s)
    except NotBorrowed:
        if remote_exec.openness(rank.pid) is not None:
            raise
        channel = remote_exec.inject(rank.pid, rank.start_ticks, library, deadline_s)
        return Reached(channel, "remote-exec", _details(channel))
    tid, waited_in = channel.thread
    return Reached(channel, "injected", _details(channel) | {"thread": tid, "waited_in": waited_in})


def _details(channel: InjectedChannel) -> dict[str, Any]:
    return {"took_ms": channel.took_ms, "stopped_ms": channel.stopped_ms, "reused": channel.reused}
