"""A window between cudaProfilerStart and cudaProfilerStop, called from within while an nsys waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_llm.capture import kineto
from gputop_llm.capture.inject import openness
from gputop_llm.capture.nsys.found import InTheWay, session_of
from gputop_llm.capture.nsys.session_way import ENDS, WRITTEN
from gputop_llm.capture.nsys.state import ARMED, LOOK_WITHIN_S, command_of, first_option, session_now
from gputop_llm.capture.way import Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.errors import GputopError

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

KEY, TITLE = "nsys-gated", "Nsight Systems window between cudaProfilerStart and cudaProfilerStop"
COST = Cost(
    0.0, None, 5.0, "as a window of nsys start and stop, and one thread borrowed for a millisecond; this way was never "
    "run on a GPU",
)  # fmt: skip
#: The agent ends a range by itself after so long.
LONGEST_S = 10.0
RANGE, REPEAT = "cudaProfilerApi", "repeat"
_MAPS_BYTES = 32 << 20
_START = f"nsys profile -c {RANGE} --capture-range-end={REPEAT} -o FILE COMMAND"
_OPENS = f"start the server by `gputop-llm run --nsys -- COMMAND`, or by `{_START}`"


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether an nsys waits for the process, or can be told to; and whether the range can be begun from within."""
    why, opens = _closed(seen)
    return (Route(KEY, TITLE, "closed" if why else "open", why, opens),)


def words(plan: Plan) -> Words:
    """What such a window does."""
    return Words(
        title=TITLE,
        what=f"record what the GPU, its API calls and NVTX ranges do in {plan.target}",
        how=f"the nsys that {plan.processes()} runs under waits for a range. A Python script begins and ends it in PID "
        f"{plan.ranks[0].pid}, on a thread of its own, started through a thread that waits in the kernel (stopped for "
        "about a millisecond); then nsys writes its report, which takes some seconds of one CPU core more",
        stays=f"a small library stays mapped in PID {plan.ranks[0].pid}, idle, until that ends. An nsys that was "
        "started to wait for ranges waits no longer: the next window is one of nsys start and stop",
        ends=f"{ENDS}, and the range in the process ends by itself",
        written=f"{WRITTEN}; an nsys that was told where to write leaves its own report there",
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.nsys.gated_taker import GatedTaker

    return GatedTaker(setting)


WAY = Way(KEY, COST, look, words, taker)


def _closed(seen: Seen) -> tuple[str, str]:
    """Why it is closed, and what opens it; ("", "") where it is open."""
    found = session_of(seen.pid, seen.proc)
    if isinstance(found, InTheWay):
        return found.why, _OPENS if found.opens.startswith("start") else found.opens
    try:
        session = session_now(found, LOOK_WITHIN_S)
    except GputopError as failure:
        return failure.why, failure.todo
    if session.state == ARMED:
        if (why := _not_ours(command_of(seen.pid, seen.proc))) is not None:
            return why, f"start the server by `{_START}`"
    elif session.collecting:
        why = f"somebody else collects in the nsys session {session.name} (it is in state {session.state})"
        return why, f"nsys stop --session={session.name} ends that"
    if b"/libcudart.so" not in seen.proc.read(f"{seen.pid}/maps", _MAPS_BYTES):
        return "CUDA's runtime (libcudart) is not loaded in it", "choose a process on a GPU that uses torch"
    try:
        kineto.runner_bytes()
    except GputopError as missing:
        return missing.why, missing.todo
    closed = openness(seen.pid)
    return ("", "") if closed is None else (closed.why, closed.todo)


def _not_ours(argv: tuple[str, ...]) -> str | None:
    """Why a range must not be begun for an nsys that waits, by its command line.

    At a range's end nsys profile by default ends the server.
    """
    if argv[1:2] != ("profile",):
        return "somebody's `nsys start` waits for a range in its session, or what it waits for can't be seen"
    if (kind := first_option(argv, "-c", "--capture-range")) != RANGE:
        return f"its nsys waits for a range of another kind ({kind or 'unknown'})"
    if (end := first_option(argv, "--capture-range-end") or "stop-shutdown") != REPEAT:
        return f"its nsys was started with --capture-range-end={end}: at the range's end it may end the server"
    return None
