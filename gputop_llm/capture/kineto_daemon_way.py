"""torch.profiler on demand as a way of capturing: in processes that were started to be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_llm.capture.conflicts import has_torch, other_profiler
from gputop_llm.capture.kineto.daemon import ASKS_EVERY_S, NAME, same_network, served
from gputop_llm.capture.way import TORCH_STAYS, Cost, Route, Seen, Setting, Taker, Way, Words

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

KEY = "kineto-daemon"
TITLE = "torch.profiler on demand"
COST = Cost(
    0.3, None, 5.0, "0.1 to 0.3 s in a CPU-only PyTorch loop; torch sorts on a thread of its own, without the "
    "interpreter's lock. Not measured on a GPU",
)  # fmt: skip
OPTIONS = {"cpu": True, "shapes": True, "memory": False, "stacks": False}
LONGEST_S = 2.0
VARIABLE, SOCKETS = "KINETO_USE_DAEMON", "KINETO_IPC_SOCKET_DIR"
_OPENS = f"start the server with {VARIABLE}=1 in its environment (torch 2.7 or later)"


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether a process asks for orders, and we may be the one that it asks."""
    why, opens = _closed(seen)
    return (Route(KEY, TITLE, "closed" if why else "open", why, opens),)


def words(plan: Plan) -> Words:
    """What such a window does."""
    extra = [
        text
        for name, text in (
            ("cpu", "CPU operators of all threads"), ("shapes", "the shapes of their inputs"),
            ("memory", "memory allocations"), ("stacks", "Python stacks"),
        ) if plan.options.get(name)
    ]  # fmt: skip
    return Words(
        title=TITLE,
        what=f"record what the GPU does in {plan.target}{' with ' + ', '.join(extra) if extra else ''}",
        how=f"{plan.processes()} asked for orders every {ASKS_EVERY_S:g} s since it began: the next question is "
        f"answered by us, in place of a {NAME} daemon; all ranks begin together, in {4 + 2 * ASKS_EVERY_S:g} s. "
        "Nothing is injected",
        stays=f"nothing of ours; {TORCH_STAYS}",
        ends="by itself after its time. Once a process has its order, it can't be taken back",
        written="a trace in the target's /tmp, removed once it is read",
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.kineto_daemon_taker import DaemonTaker

    return DaemonTaker(setting)


WAY = Way(KEY, COST, look, words, taker, options=OPTIONS)


def _closed(seen: Seen) -> tuple[str, str]:
    """Why it is closed, and what opens it; ("", "") where it is open."""
    try:
        environ = seen.proc.environ(seen.pid)
        if not environ.get(VARIABLE):
            return f"it was not started with {VARIABLE}", _OPENS
        if environ.get(SOCKETS):
            return f"its sockets are in a folder ({SOCKETS})", f"start the server without {SOCKETS}"
        if not same_network(seen.pid, seen.proc):
            return "it has a network namespace of its own", "run gputop-llm in the same container"
        if not has_torch(seen.pid, seen.proc):
            return "torch is not loaded in it", "choose a process that uses torch"
        if (other := other_profiler(seen.pid, seen.proc)) is not None:
            return f"{other} is loaded in it, and CUPTI serves one profiler at a time", "start the engine without it"
    except OSError as error:
        return f"it can't be looked at ({(error.strerror or str(error)).lower()})", "run gputop-llm as root (sudo)"
    if served(seen.proc):
        return f"a {NAME} daemon serves on this node", "use its `dyno`, or end it"
    return "", ""
