"""A window in the nsys session that a server was started in, as a way of capturing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_llm.capture.nsys.found import InTheWay, session_of
from gputop_llm.capture.nsys.state import LOOK_WITHIN_S, session_now, taken
from gputop_llm.capture.way import Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.errors import GputopError

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

#: A window of 1 s in graph mode, nsys 2025.3; idle under `nsys launch` costs nothing that could be seen either.
COST = Cost(
    0.0, None, 5.0, "no dip in the token rate's own noise in one window of 1 s: vLLM 0.24 under nsys in graph mode, "
    "32 streams, one H200", measured=True,
)  # fmt: skip
ENDS = (
    "by itself when the time, bytes, disk or memory bound is reached or the engine stalls; at once by cancelling, or "
    "when this program or its terminal is gone: a watchdog then stops the collection. The engine is never signalled"
)
WRITTEN = (
    "nsys keeps what it collects in its own temporary folder until the window ends; its copy of the environment is "
    "left out of the record"
)


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether the process was started under an nsys that can be used, and whose session is at rest."""
    key, title = "nsys-session", "Nsight Systems window"
    found = session_of(seen.pid, seen.proc)
    if isinstance(found, InTheWay):
        return (Route(key, title, "closed", found.why, found.opens),)
    try:
        why, opens = taken(session_now(found, LOOK_WITHIN_S))
    except GputopError as failure:
        why, opens = failure.why, failure.todo
    return (Route(key, title, "closed" if why else "open", why, opens),)


def words(plan: Plan) -> Words:
    """What a window in a session does."""
    return Words(
        title="Nsight Systems window (nsys start, nsys stop)",
        what=f"record what the GPU, its API calls and NVTX ranges do in {plan.target}",
        how=f"the nsys that {plan.processes()} runs under collects for the window; then it writes its report, "
        "which takes some seconds of one CPU core more",
        stays="nothing: the session goes back to Launched, ready for the next window",
        ends=ENDS,
        written=WRITTEN,
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.nsys.session_taker import SessionTaker

    return SessionTaker(setting)


WAY = Way("nsys-session", COST, look, words, taker)
