"""Which rank of an engine computes on which GPU, and how much is running there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gputop_llm.symptoms.argv import has_flag
from gputop_llm.symptoms.checks import Check, State, at_every_reading
from gputop_llm.symptoms.fresh import gauges_may_be_old, unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import MEAN_S, EngineView, GpuView, NodeView

_DATA_PARALLEL = re.compile(r"DP(\d+)")


def rank_on(engine: EngineView, gpu: GpuView) -> str | None:
    """The rank of the engine's process on a GPU, as the engine titles it ("TP1"); None without ranks."""
    for process in engine.target.processes if engine.target else ():
        if process.rank is not None and gpu.index in process.gpus:
            return process.rank
    return None


def unplaced(view: NodeView, rule: str) -> Iterator[Check]:
    """What a rule on an engine's GPUs says of engines whose GPUs aren't known: that it can't tell.

    Where there is no GPU at all, there is nothing to tell.
    """
    for engine in view.engines:
        if engine.gpus:
            continue
        if engine.target is None or engine.target.root_pid is None:
            yield Check(rule, engine.subject, State.UNKNOWN, "the engine's GPUs (it is known by its address only)")
        elif view.gpus:
            why = next((p.note for p in engine.target.processes if p.note), "no process of it is seen on one")
            yield Check(rule, engine.subject, State.UNKNOWN, f"which GPUs the engine uses ({why})")


def instances(engines: Sequence[EngineView], gpu: GpuView) -> dict[int | None, tuple[EngineView, ...]]:
    """The engines on a GPU by their MIG instance; without MIG all of them under None.

    With MIG, None holds those whose instance isn't known.
    """
    found: dict[int | None, tuple[EngineView, ...]] = {}
    for engine in engines:
        own = {p.mig_instance for p in (engine.target.processes if engine.target else ()) if gpu.index in p.gpus}
        for instance in (own - {None} or {None}) if gpu.now.mig_enabled else {None}:
            found[instance] = (*found.get(instance, ()), engine)
    return found


def data_parallel_rank(engine: EngineView, gpu: GpuView) -> str | None:
    """The number of the data-parallel rank on a GPU ("1"); None when the engine has no such ranks."""
    return data_parallel_number(rank_on(engine, gpu))


def data_parallel_number(rank: str | None) -> str | None:
    """The number of the data-parallel rank in a rank as it is titled ("DP1_TP0": "1")."""
    found = _DATA_PARALLEL.search(rank or "")
    return found[1] if found else None


def exchanges_tokens(engine: EngineView) -> bool:
    """Whether all data-parallel ranks meet in each step, for their experts."""
    return bool(has_flag(engine, "--enable-expert-parallel", "-ep", "--enable-ep-moe", "--enable-dp-attention"))


def groups(engine: EngineView) -> tuple[tuple[GpuView, ...], ...]:
    """The engine's GPUs by who talks with whom in each step: one group per data-parallel rank.

    With expert parallelism all ranks of the engine exchange tokens and are one group.
    """
    if exchanges_tokens(engine):
        return (engine.gpus,)
    by_rank: dict[str | None, tuple[GpuView, ...]] = {}
    for gpu in engine.gpus:
        rank = data_parallel_rank(engine, gpu)
        by_rank[rank] = (*by_rank.get(rank, ()), gpu)
    return tuple(by_rank.values())


def requests_run(engine: EngineView, limits: Limits, rule: str, gpu: GpuView | None = None) -> State:
    """Whether requests ran at every scrape of the newest `MEAN_S` seconds: more than `RULE.running` of them.

    Of one data-parallel rank where `gpu` belongs to one. Unknown when it is unknown now, or the page is stale.
    """
    rank = data_parallel_rank(engine, gpu) if gpu is not None and len(engine.ranks) > 1 else None
    key = ("requests run", rule, rank, limits)
    if key not in engine.memo:
        least = limits.value(f"{rule}.running")
        engine.memo[key] = at_every_reading([running > least for running in _running(engine, limits, rank)])
    found: State = engine.memo[key]
    return found


def _running(engine: EngineView, limits: Limits, rank: str | None) -> Sequence[float]:
    if engine.live is None or unreadable(engine, limits) or gauges_may_be_old(engine):
        return ()
    if rank is None:
        if engine.live.running is None:
            return ()
        return [value for _, value in engine.values("running", MEAN_S)] or [engine.live.running]
    now = [live.running for live in engine.ranks if live.rank == rank]
    if not now or now[0] is None:
        return ()
    newest = engine.past[-1][0] if engine.past else 0.0
    return [
        live.running
        for at, frame in reversed(engine.past)
        if newest - at <= MEAN_S and frame.window
        for live in frame.window.ranks
        if live.rank == rank and live.running is not None
    ] or [now[0]]


def of_rank_on(engine: EngineView, gpu: GpuView, name: str) -> float | None:
    """A field of EngineLive of the data-parallel rank on a GPU, now; without ranks its mean over the engine."""
    rank = data_parallel_rank(engine, gpu) if len(engine.ranks) > 1 else None
    if rank is None:
        return engine.mean(name)
    known = [getattr(live, name) for live in engine.ranks if live.rank == rank]
    return None if None in known or not known else float(sum(known))


def running_needs(engine: EngineView, limits: Limits) -> str:
    """What `requests_run` lacks, in words."""
    old = "nothing moves, and its page may say what ran before" if gauges_may_be_old(engine) else "not on its page"
    return unreadable(engine, limits) or f"the engine's running requests ({old})"
