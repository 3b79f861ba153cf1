"""The engine's own profiler as a way of capturing: what it looks for, what it says, what it costs."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gputop_llm.capture.conflicts import other_profiler
from gputop_llm.capture.endpoint.choose import endpoint_of
from gputop_llm.capture.endpoint.kinds import DEFAULT_STEPS, MOST_STEPS, Closed, Setup, Wish, version_of
from gputop_llm.capture.way import TORCH_STAYS, Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.sources.procfs import ProcFs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gputop_llm.capture.endpoint.kinds import Endpoint
    from gputop_llm.capture.plan import Plan

KEY = "engine-endpoint"
TITLE = "the engine's own profiler"
COST = Cost(1.0, None, 5.0, "from torch.profiler's other windows; the engine's own was not measured on a GPU")
OPTIONS = {"cpu": True, "shapes": False, "memory": False, "stacks": False, "stage": None}
_LOOKS_LIKE = Wish("gputop-llm-0", DEFAULT_STEPS)


def look(seen: Seen) -> tuple[Route, ...]:
    """Whether its engine has such an endpoint, as far as that is told without asking it."""
    target = seen.target
    if target is None or not target.urls:
        why = "the engine's address is not known" if target is not None else "whose process it is, is not known"
        return (Route(KEY, TITLE, "closed", why, "name the engine with --url"),)
    try:
        setup = Setup(target.argv, environ_of(seen.pid, seen.proc), version_of(target.version))
        endpoint_of(target.engine, setup, _LOOKS_LIKE)
        if (other := other_profiler(seen.pid, seen.proc)) is not None:
            raise Closed(f"{other} is loaded in it, and CUPTI serves one profiler at a time")
    except Closed as closed:
        return (Route(KEY, TITLE, "closed", closed.why, closed.todo),)
    except OSError:
        # Only the engine's user and root can look; the engine itself may be asked all the same.
        pass
    return (Route(KEY, TITLE, "open"),)


def words(plan: Plan) -> Words:
    """What such a window does."""
    steps = steps_of(plan)
    try:
        endpoint = planned(plan, "gputop-llm-TAG", ProcFs())
    except Closed as closed:
        where, ends, written = "", f"not at all: {closed.why}", ""
    else:
        where = f" at {plan.url}" if plan.url else ""
        bound = f"after {steps} steps" if endpoint.ends_itself else "after its time, by a request of ours"
        ends = (
            f"{bound}; by a request of ours, too, when it is cancelled, or this program or its terminal is gone. "
            "The engine is never signalled or restarted"
        )
        written = f"the engine's traces in its own {endpoint.folder}, " + (
            "removed once they are read" if endpoint.owned or endpoint.tag else "which stay there"
        )
    stage = f", {plan.options['stage']} steps" if plan.options.get("stage") else ""
    return Words(
        title=TITLE,
        what=f"have {plan.target} record itself with torch.profiler: {steps} steps{stage}",
        how=f"the engine is asked{where} to start its profiler, and writes a trace for each rank; "
        "while it does so it may stand still",
        stays=f"nothing of ours; {TORCH_STAYS}",
        ends=ends,
        written=written,
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.endpoint_taker import EndpointTaker

    return EndpointTaker(setting)


def steps_of(plan: Plan) -> int:
    """How many steps a plan has the engine record."""
    return max(1, min(MOST_STEPS, plan.steps or DEFAULT_STEPS))


def planned(plan: Plan, tag: str, proc: ProcFs) -> Endpoint:
    """How the window of a plan is taken.

    Raises:
        Closed: it can't be.
    """
    options: Mapping[str, Any] = {**OPTIONS, **plan.options}
    what = {name: bool(options[name]) for name in ("cpu", "shapes", "memory", "stacks")}
    wish = Wish(tag, steps_of(plan), stage=options["stage"], **what)
    environ = environ_of(plan.ranks[0].pid, proc)
    return endpoint_of(plan.engine, Setup(plan.argv, environ, version_of(plan.version)), wish)


def environ_of(pid: int, proc: ProcFs) -> dict[str, str]:
    """The environment of a process; empty where it can't be read."""
    with suppress(OSError):
        return proc.environ(pid)
    return {}


WAY = Way(KEY, COST, look, words, taker, options=OPTIONS)
