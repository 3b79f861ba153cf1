"""torch.profiler from within as a way of capturing: what it looks for, what it says, what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_llm.capture import kineto
from gputop_llm.capture.conflicts import has_torch, other_profiler
from gputop_llm.capture.inject import openness
from gputop_llm.capture.way import TORCH_STAYS, Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.errors import GputopError

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

KEY = "kineto-agent"
TITLE = "torch.profiler from within, injected"
#: A window of 0.5 s, GPU only: it grows with what the window records.
COST = Cost(
    0.6, (15.0, 15.0), 5.0, "vLLM 0.24, 32 streams, one H200, the GPU alone; with operators and shapes 0.83 s at most",
    measured=True,
)  # fmt: skip
OPTIONS = {"cpu": True, "shapes": True, "memory": False, "stacks": False, "stage": None}
#: Its cost grows with the window: what a loaded engine does in a second takes torch a second to sort.
LONGEST_S = 2.0


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether the agent could be run in a process."""
    try:
        kineto.runner_bytes()
    except GputopError as missing:
        return (Route(KEY, TITLE, "closed", missing.why, missing.todo),)
    if (closed := openness(seen.pid)) is not None:
        return (Route(KEY, TITLE, "closed", closed.why, closed.todo),)
    try:
        if (other := other_profiler(seen.pid, seen.proc)) is not None:
            why = f"{other} is loaded in it, and CUPTI serves one profiler at a time"
            return (Route(KEY, TITLE, "closed", why, "start the engine without it"),)
        if not has_torch(seen.pid, seen.proc):
            return (Route(KEY, TITLE, "closed", "torch is not loaded in it", "choose a process that uses torch"),)
    except OSError as error:
        why = f"what is loaded in it can't be read ({(error.strerror or str(error)).lower()})"
        return (Route(KEY, TITLE, "closed", why, "run gputop-llm as root (sudo)"),)
    return (Route(KEY, TITLE, "open"),)


def words(plan: Plan) -> Words:
    """What such a window does."""
    wanted = {name: bool(plan.options.get(name)) for name in OPTIONS}
    extra = [
        *(["CPU operators of all threads"] if wanted["cpu"] else []),
        *(["the shapes of their inputs"] if wanted["cpu"] and wanted["shapes"] else []),
        *(["memory allocations (torch 2.13 tells none of other threads)"] if wanted["memory"] else []),
        *(["Python stacks"] if wanted["stacks"] else []),
    ]
    stage = f"; begins at a {plan.options['stage']} step" if plan.options.get("stage") else ""
    return Words(
        title=TITLE,
        what=f"record what the GPU does in {plan.target}{' with ' + ', '.join(extra) if extra else ''}",
        how=f"a Python script runs torch.profiler's low-level calls in {plan.processes()} on a thread of its own, "
        "started through a thread that waits in the kernel (stopped for about a millisecond). When the window ends, "
        f"torch sorts its events and holds the interpreter's lock meanwhile: the engine stands still{stage}",
        stays=f"a small library stays mapped in each process, idle; {TORCH_STAYS}. All of it goes with the process",
        ends="by itself after its time, even if this program is gone; at once by cancelling. "
        "The engine is never signalled or restarted",
        written="a trace in the target's temporary folder, unlinked before it is read",
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.kineto_taker import KinetoTaker

    return KinetoTaker(setting)


WAY = Way(KEY, COST, look, words, taker, chosen=False, options=OPTIONS)
