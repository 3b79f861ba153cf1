"""The native window as a way of capturing: what it looks for, what it says, what is in the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gputop_llm.capture import native
from gputop_llm.capture.conflicts import has_cuda, has_cupti, other_profiler
from gputop_llm.capture.inject import openness, remote_exec
from gputop_llm.capture.way import Cost, Route, Seen, Setting, Taker, Way, Words
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

if TYPE_CHECKING:
    from gputop_llm.capture.plan import Plan

Closed = Callable[[int], GputopError | None]

KEY = "native"
#: How much longer the wait of a borrowed thread may last, seconds (`inject.waits.LONGEST_LIMIT_S`).
LATER_S = 1.0
#: Whether Python stacks are sampled meanwhile.
STACKS = "stacks"
#: Windows of 0.5 s, CUPTI 13.0; docs/capture.md has the figures.
COST = Cost(0.0, (2.0, 13.0), 5.0, "vLLM 0.24, 32 streams, one H200; the rate swings by 8 % by itself", True)
#: benchmarks/stacks_cost.py; the sampler chooses its rate so.
_STACKS_COST = (
    "the samples cost at most about a tenth of a CPU core for each process, and slow nothing in it (as seen: a busy "
    "Python process; not measured beside a GPU)"
)
#: What windows left for good; docs/capture.md has the figures.
_LEFT_BY_CALLS = (
    "7 to 28 % fewer tokens where the host is the limit, under 1 % where the GPU is (as seen: the lab's workloads, one "
    "H200; `--route native --with gpu` leaves less)"
)
_LEFT_BY_GPU = "8 % fewer tokens in a workload of small kernels (as seen once: one H200)"
_NEEDS_CUPTI = "CUPTI is not loaded in it"
_LOAD_CUPTI = "start the engine in a Python that imports torch, which loads it"
_BY_RUN = "start the engine by `gputop-llm run -- COMMAND`"


def look(seen: Seen) -> tuple[Route, ...]:
    """Injected, into a server that was started for it, and by the target's own Python."""
    return (
        _injected("native-ptrace", "native window, injected", openness, seen.pid, seen.proc),
        _prepared(seen.pid, seen.start_ticks, seen.proc),
        _injected("remote-exec", "native window by sys.remote_exec", remote_exec.openness, seen.pid, seen.proc),
    )


def words(plan: Plan) -> Words:
    """What a native window does."""
    together, costs = "; all at once" if len(plan.ranks) > 1 else "", ""
    if plan.options.get(STACKS):
        together += "; Python stacks are sampled from outside by py-spy, which stops nothing"
        costs = _STACKS_COST
    return Words(
        title="native window",
        what=f"record what the GPU {'and its API calls do' if _with_calls(plan) else 'does'} in {plan.target}",
        how=f"a small library is loaded into {plan.processes()}, through a thread that waits in the kernel "
        f"(stopped for about a millisecond; its wait may last up to {LATER_S:g} s longer, twice at most), "
        f"and records on a thread of its own{together}",
        stays="until each process ends: the library, mapped and idle (the next window uses it), and slower CUDA calls: "
        + (_LEFT_BY_CALLS if _with_calls(plan) else _LEFT_BY_GPU),
        ends="by itself when the time, bytes, disk or memory bound is reached or the engine stalls; at once by "
        "cancelling, or when this program or its terminal is gone. The engine is never signalled or restarted",
        costs=costs,
    )


def taker(setting: Setting) -> Taker:
    """Takes it."""
    from gputop_llm.capture.native_taker import NativeTaker

    taking = NativeTaker(setting)
    if not setting.plan.options.get(STACKS):
        return taking
    from gputop_llm.capture.stacks.taker import SampledTaker

    return SampledTaker(setting, taking)


def _with_calls(plan: Plan) -> bool:
    return not {"runtime", "driver"}.isdisjoint(plan.kinds)


WAY = Way(KEY, COST, look, words, taker, options={STACKS: False})


def _injected(key: str, title: str, closed_for: Closed, pid: int, proc: ProcFs) -> Route:
    try:
        native.library_path()
    except GputopError as missing:
        return Route(key, title, "closed", missing.why, missing.todo)
    if (closed := closed_for(pid)) is not None:
        return Route(key, title, "closed", closed.why, closed.todo)
    return _unless_in_the_way(Route(key, title, "open"), pid, proc)


def _prepared(pid: int, start_ticks: int, proc: ProcFs) -> Route:
    key, title = "native-run", "native window, in a server started by `gputop-llm run`"
    try:
        is_prepared = native.is_prepared(pid, start_ticks)
    except GputopError as failure:
        return Route(key, title, "closed", failure.why, failure.todo)
    if not is_prepared:
        return Route(key, title, "closed", "it was not started so", _BY_RUN)
    return _unless_in_the_way(Route(key, title, "open"), pid, proc)


def _unless_in_the_way(route: Route, pid: int, proc: ProcFs) -> Route:
    try:
        if (other := other_profiler(pid, proc)) is not None:
            why = f"{other} is loaded in it, and CUPTI serves one profiler at a time"
            return Route(route.key, route.title, "closed", why, "start the engine without it")
        if not has_cuda(pid, proc):
            return Route(route.key, route.title, "closed", "it doesn't use CUDA", "choose a process on a GPU")
        if not has_cupti(pid, proc):
            return Route(route.key, route.title, "closed", _NEEDS_CUPTI, _LOAD_CUPTI)
    except OSError as error:
        why = f"what is loaded in it can't be read ({(error.strerror or str(error)).lower()})"
        return Route(route.key, route.title, "closed", why, "run gputop-llm as root (sudo)")
    return route
