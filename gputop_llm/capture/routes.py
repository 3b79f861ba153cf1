"""The ways to capture a process: which are open, why the others are not, and the one thing that opens each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gputop_llm.capture import native
from gputop_llm.capture.conflicts import has_cuda, has_cupti, other_profiler
from gputop_llm.capture.inject import openness, remote_exec
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

Closed = Callable[[int], GputopError | None]
State = Literal["open", "closed", "unbuilt"]

_NEEDS_CUPTI = "CUPTI is not loaded in it"
_LOAD_CUPTI = "start the engine in a Python that imports torch, which loads it"
_BY_RUN = "start the engine by `gputop-llm run -- COMMAND`"


@dataclass(frozen=True, slots=True)
class Route:
    """One way into one process. `why` and `opens` are empty where it is open."""

    key: str
    title: str
    state: State
    why: str = ""
    opens: str = ""


#: Ways that this version does not have; what each will need of the target.
_UNBUILT = (
    ("nsys-session", "Nsight Systems window", "a server that was started under nsys"),
    ("nsys-system", "Nsight Systems, system-wide: GPU metrics and CPU samples", "nsys, and root or perf rights"),
    ("engine-endpoint", "the engine's own profiler", "an endpoint that starts it"),
    ("kineto-agent", "torch.profiler from within", "torch in the target"),
    ("kineto-daemon", "torch.profiler on demand", "KINETO_USE_DAEMON=1 at the server's start"),
    (
        "ncu-rerun",
        "Nsight Compute on the hot kernel, run again beside the server",
        "torch on this node, free GPU memory",
    ),
    ("ncu-attach", "Nsight Compute attached to the server", "a server that was started under ncu, five times slower"),
    ("py-spy", "host stacks by py-spy dump", "the right to ptrace"),
)


def routes_of(pid: int, start_ticks: int, proc: ProcFs | None = None) -> tuple[Route, ...]:
    """All ways into a process, best first. Nothing is done to it."""
    proc = proc or ProcFs()
    return (
        _injected("native-ptrace", "native window, injected", openness, pid, proc),
        _prepared(pid, start_ticks, proc),
        _injected("remote-exec", "native window by sys.remote_exec", remote_exec.openness, pid, proc),
        *(Route(key, title, "unbuilt", "not built yet", needs) for key, title, needs in _UNBUILT),
    )


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
