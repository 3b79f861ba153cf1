"""What `gputop-llm capture` is asked to record besides the GPU, of which ranks, and at which step."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gputop_llm.capture import native_way
from gputop_llm.capture.plan import GPU_KINDS, Plan
from gputop_llm.capture.repeat import WITH
from gputop_llm.capture.way import Seen
from gputop_llm.capture.ways import WAYS, open_routes, way_of
from gputop_llm.captures import CaptureRoute
from gputop_llm.errors import UsageError
from gputop_llm.model import Frame, Target
from gputop_llm.sources.procfs import ProcFs

#: The engine's own profiler is told once for all of its ranks.
_ALL_RANKS = ("engine-endpoint",)


def options_of(arguments: Namespace) -> dict[str, Any]:
    """The options of a way that are asked for.

    Raises:
        UsageError: --with has a word that means nothing.
    """
    options: dict[str, Any] = {}
    if arguments.including is not None:
        words = [word.strip() for word in arguments.including.split(",")]
        if unknown := [word for word in words if word not in WITH]:
            raise UsageError(f"--with knows no {unknown[0]!r}", todo=f"give some of {', '.join(WITH)}")
        options = {name: name in [WITH[word] for word in words] for name in WITH.values() if name}
        options["cpu"] = options["cpu"] or options["shapes"]
    if arguments.at is not None:
        options["stage"] = arguments.at
    return options


def plan_with(route: CaptureRoute, frame: Frame, target: Target, arguments: Namespace) -> Plan:
    """The plan with these wishes, by the route that is named, or by the best open one that can do them.

    Raises:
        GputopError: there is no such route, it can't do them, or the target can't be captured.
    """
    options = options_of(arguments)
    gpu_alone = (
        arguments.route == native_way.KEY
        and options.get("cpu") is False
        and not any(options.get(name) for name in WITH.values())
    )
    if gpu_alone:
        # A native window knows no other of these wishes: it leaves the API calls out.
        options = {name: wish for name, wish in options.items() if name not in WITH.values()}
    long = (arguments.seconds, arguments.steps)
    if arguments.route is None and options:
        plan = _best(route, frame, target, long, options)
    else:
        plan = route.plan(frame, target, *long, arguments.route, options or None)
    unknown = options.keys() - way_of(plan.route).options.keys()
    if unknown:
        able = ", ".join(_able(options))
        raise UsageError(
            f"--route {plan.route} can't do that", f"it knows no {', '.join(sorted(unknown))}", f"{able} can"
        )
    if gpu_alone:
        plan = replace(plan, kinds=GPU_KINDS)
    return of_ranks(plan, arguments.ranks)


def _able(options: Mapping[str, Any]) -> list[str]:
    return [way.key for way in WAYS if options.keys() <= way.options.keys()]


def _best(
    route: CaptureRoute, frame: Frame, target: Target, long: tuple[float | None, int | None], options: Mapping[str, Any]
) -> Plan:
    plan = None
    for key in _able(options):
        plan = route.plan(frame, target, *long, key, options)
        seen = [Seen(rank.pid, rank.start_ticks, ProcFs(), target) for rank in plan.ranks]
        if open_routes(way_of(key), seen):
            return plan
    if plan is None:
        raise UsageError("no route can do all of that", todo="ask for less at a time")
    return plan


def of_ranks(plan: Plan, text: str | None) -> Plan:
    """The plan for some of its processes, named by number ("0,3"); None: for all of them.

    Raises:
        UsageError: there are no such ranks, or its route takes all of them.
    """
    if text is None:
        return plan
    try:
        wanted = {int(word) for word in text.split(",")}
    except ValueError:
        raise UsageError("--ranks wants numbers", f"got {text!r}", "for example --ranks 0,3") from None
    if missing := sorted(wanted - {rank.number for rank in plan.ranks}):
        last = plan.ranks[-1].number
        raise UsageError(f"there is no rank {missing[0]}", f"this target has 0 to {last}")
    if plan.route in _ALL_RANKS and len(wanted) < len(plan.ranks):
        raise UsageError(f"--ranks doesn't go with --route {plan.route}", "the engine records all of its ranks")
    chosen = tuple(rank for rank in plan.ranks if rank.number in wanted)
    return replace(plan, ranks=chosen, some_ranks=len(chosen) < len(plan.ranks))
