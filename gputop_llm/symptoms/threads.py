"""The busiest thread of an engine's processes: the one that a slow host shows in."""

from __future__ import annotations

from typing import NamedTuple

from gputop_llm.model import ProcessLoad
from gputop_llm.symptoms.view import EngineView, LoadView


class HotThread(NamedTuple):
    """A thread and its CPU use in percent of one core, over the rules' window."""

    process: LoadView
    thread: str
    cpu_pct: float

    @property
    def label(self) -> str:
        """What it is called: "engine-core 624, main thread"."""
        return f"{self.process.now.role} {self.process.now.pid}, {self.thread}"


def computing(engine: EngineView) -> tuple[LoadView, ...]:
    """The living processes that feed the engine's GPUs: cores, workers, what else has one, or the only process."""
    processes = engine.target.processes if engine.target else ()
    with_gpu = {p.pid for p in processes if p.gpus or len(processes) == 1}
    alive = (p for p in engine.loads if p.now.state not in ("Z", "X"))
    return tuple(p for p in alive if p.now.role in ("engine-core", "worker") or p.now.pid in with_gpu)


def serving(engine: EngineView) -> tuple[LoadView, ...]:
    """The processes that speak HTTP and tokenise."""
    feeding = computing(engine)
    return tuple(p for p in engine.loads if p.now.role == "api-server" and p not in feeding)


def hottest(processes: tuple[LoadView, ...]) -> HotThread | None:
    """The busiest thread of some processes; None when no thread's load is known."""
    found = [hot for process in processes if (hot := _hottest_of(process)) is not None]
    return max(found, key=lambda hot: hot.cpu_pct, default=None)


def _hottest_of(process: LoadView) -> HotThread | None:
    if "hottest" not in process.memo:
        process.memo["hottest"] = _find_hottest(process)
    found: HotThread | None = process.memo["hottest"]
    return found


def _find_hottest(process: LoadView) -> HotThread | None:
    main = process.mean(lambda load: load.main_thread_pct)
    other = process.mean(_top_other_pct)
    if other is not None and (main is None or other > main):
        name = next(t.name for t in process.now.top_threads if t.tid != process.now.pid)
        return HotThread(process, f"thread {name}", other)
    return None if main is None else HotThread(process, "main thread", main)


def _top_other_pct(load: ProcessLoad) -> float | None:
    for thread in load.top_threads:
        if thread.tid != load.pid:
            return thread.cpu_pct
    return None
