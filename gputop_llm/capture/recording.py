"""The window itself, in the worker: from the clients' hello to their end, under guards."""

from __future__ import annotations

import time
from collections.abc import Callable

from gputop_llm.capture.guards import LATE_S, Guards
from gputop_llm.capture.plan import Plan
from gputop_llm.capture.preflight import Refused
from gputop_llm.capture.way import Recorded
from gputop_llm.capture.window import Window
from gputop_llm.errors import GputopError
from gputop_llm.timeline.native_format import VERSION, EndReason

HELLO_WITHIN_S = 10.0
#: After a stop: disabling and flushing took 8 to 13 ms for half a second of a loaded engine.
END_WITHIN_S = 10.0
#: The same for a target that is stopped or gone, which can't answer.
_GONE_END_WITHIN_S = 0.3
_SEEN_ENDING_S = 0.5
_TICK_S = 0.05
_EARLY = {
    EndReason.TOO_MANY_BYTES: "it had sent as many bytes as it may",
    EndReason.PROFILER_TOOK_OVER: "another profiler took CUPTI over",
    EndReason.STOPPED: "it was told to stop",
}


def greet(window: Window, cancelled: Callable[[], bool]) -> None:
    """Waits until every client has said hello.

    Raises:
        Refused: a client says that it can't record, and why; or it is of another version.
        GputopError: one isn't heard of.
    """
    until = time.monotonic() + HELLO_WITHIN_S
    while not window.greeted and time.monotonic() < until and not cancelled():
        window.collect(_TICK_S)
    for member in window.members:
        stream = member.stream
        if stream.refusal is not None:
            raise Refused("cannot capture", f"{stream.refusal.text} ({member.name.partition('.')[0]})")
        if stream.broken is not None or stream.disk is not None:
            raise GputopError("cannot capture", stream.broken or stream.disk or "")
        if member.gone:
            raise GputopError("cannot capture", f"the client in the target ended at once ({member.name})")
        if stream.hello is not None and stream.hello.version != VERSION:
            raise Refused(
                "cannot capture",
                f"the client in the process speaks version {stream.hello.version} of the record, and this gputop-llm "
                f"version {VERSION} ({member.name.partition('.')[0]})",
                "start the engine by this gputop-llm (`gputop-llm run -- COMMAND`), or capture with the one that did",
            )
        if stream.hello is None and not cancelled():
            raise GputopError(
                "cannot capture",
                f"the client in the target was not heard of within {HELLO_WITHIN_S:g} s ({member.name})",
                "the process may be stopped, or hold its loader's lock; try again",
            )


def record(
    window: Window,
    plan: Plan,
    guards: Guards,
    cancelled: Callable[[], bool],
    tell: Callable[[Window], None],
) -> Recorded:
    """Runs the window to its end; `tell` is called some times a second."""
    window.start()
    assert window.starts_ns is not None
    was_cancelled = False
    trouble: str | None = None
    give_up = float("inf")
    while not window.over and time.monotonic() < give_up:
        window.collect(_TICK_S)
        tell(window)
        if window.stopped:
            continue
        since_s = (time.monotonic_ns() - window.starts_ns) / 1e9
        was_cancelled = cancelled()
        trouble = guards.trouble(window.bytes, since_s) or _lost(window)
        if was_cancelled or trouble is not None:
            window.stop()
            wait_s = END_WITHIN_S if guards.all_there() else _GONE_END_WITHIN_S
            give_up = time.monotonic() + wait_s
    # All may have ended before a guard looked.
    if trouble is None and not was_cancelled and any(m.stream.end is None for m in window.members):
        trouble = _seen_ending(guards)
    return Recorded(was_cancelled and trouble is None, trouble or _early(window, was_cancelled))


def _seen_ending(guards: Guards) -> str | None:
    """What became of a target whose client is gone. A process closes its pipes a moment before it is seen to end."""
    until = time.monotonic() + _SEEN_ENDING_S
    while (trouble := guards.target()) is None and time.monotonic() < until:
        time.sleep(_TICK_S)
    return trouble


def deadline_s(plan: Plan) -> float:
    """The longest that `record` may take."""
    return plan.window_s + LATE_S + END_WITHIN_S + 2.0


def _lost(window: Window) -> str | None:
    """A rank from which nothing more will come, without its end: the others need not go on."""
    for member in window.members:
        stream = member.stream
        if stream.disk is not None:
            return f"{member.name} can't be written: {stream.disk}"
        if stream.broken is not None:
            return f"the client of {member.name} broke the rules: {stream.broken}"
        if stream.refusal is not None:
            return stream.refusal.text
    return None


def _early(window: Window, cancelled: bool) -> str | None:
    """Why a client ended by itself before its time; None where all ended as planned."""
    if (lost := _lost(window)) is not None:
        return lost
    for member in window.members:
        end = member.stream.end
        if end is None:
            return None if cancelled else f"the client of {member.name} ended without an end"
        if end.reason != EndReason.TIME_UP and not cancelled:
            why = _EARLY.get(EndReason(end.reason)) if end.reason in set(EndReason) else None
            return f"the client of {member.name} ended early: {why or f'reason {end.reason}'}"
    return None
