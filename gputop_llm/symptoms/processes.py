"""Processes of an engine that are stopped, dead or gone."""

from __future__ import annotations

from gputop_llm.model import Frame, TargetProcess
from gputop_llm.symptoms.view import EngineView, NodeView

# Without any of these an engine can't go on.
NEEDED = frozenset({"api-server", "engine-core", "worker"})
_DEAD = ("Z", "X")
# Stopped by a signal, or by a debugger.
_STOPPED = ("T", "t")


def label(process: TargetProcess) -> str:
    """A process in a few letters: "worker 641 (TP1)"."""
    rank = f" ({process.rank})" if process.rank else ""
    return f"{process.role} {process.pid if process.pid is not None else '(unseen)'}{rank}"


def state_of(engine: EngineView, process: TargetProcess) -> str | None:
    """The state letter of a process; the host's reading is the newer one."""
    newer = next((load.state for load in engine.processes if load.pid == process.pid), None)
    return newer or process.state


def stopped_processes(engine: EngineView) -> tuple[str, ...]:
    """Processes that are stopped (state T), in words."""
    processes = engine.target.processes if engine.target else ()
    return tuple(label(p) for p in processes if state_of(engine, p) in _STOPPED)


def stopped_for_s(view: NodeView, engine: EngineView) -> tuple[float, bool]:
    """How long a process that the engine needs has been stopped, in seconds between readings; 0 when none is.

    And whether it was so when the kept time began, so that it may be longer.
    """
    processes = engine.target.processes if engine.target else ()
    stopped = {p.pid for p in processes if p.role in NEEDED and state_of(engine, p) in _STOPPED}
    since = view.now.mono_s
    for frame in reversed(view.frames) if stopped else ():
        stopped &= _stopped_in(frame)
        if not stopped:
            break
        since = frame.mono_s
    return view.now.mono_s - since, bool(stopped)


def _stopped_in(frame: Frame) -> set[int | None]:
    """PIDs of stopped processes; the host's reading is the newer one."""
    targets = frame.targets.value.targets if frame.targets.value else ()
    states = {p.pid: p.state for target in targets for p in target.processes}
    states |= {load.pid: load.state for load in (frame.host.value.processes if frame.host.value else ()) if load.state}
    return {pid for pid, state in states.items() if state in _STOPPED}


def dead_processes(view: NodeView, engine: EngineView) -> tuple[str, ...]:
    """Processes that the engine needs and that ended in the kept time, in words: gone, or a zombie."""
    if engine.target is None:
        return ()
    there = {p.pid for p in engine.target.processes}
    found = {
        label(p): f"{label(p)} is a zombie"
        for p in engine.target.processes
        if p.role in NEEDED and state_of(engine, p) in _DEAD
    }
    for target in view.past_targets:
        if target.key == engine.target.key:
            for p in target.processes:
                if p.role in NEEDED and p.pid is not None and p.pid not in there:
                    found.setdefault(label(p), f"{label(p)} is gone")
    return tuple(found.values())
