"""A healthy, busy vLLM on one H200 (or several), second by second, and whatever a test says is different.

    frames = busy(30, live={"waiting": lambda s: 2 * s})
    assert raised_at("queue-growing", RULES, frames) <= 25

A figure is a value, or a function of the second. Everything that isn't named stays healthy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gputop_llm.model import (
    EngineFrame,
    EngineLive,
    EngineSeries,
    EngineWindow,
    Frame,
    Gpu,
    Latency,
    Part,
    ProcessLoad,
    Quantile,
    Target,
    TargetList,
    TargetProcess,
    ThreadLoad,
)
from tests.support import frames as recorded
from tests.support.symptom_runs import cant_tell as cant_tell
from tests.support.symptom_runs import cause as cause
from tests.support.symptom_runs import checks as checks
from tests.support.symptom_runs import limits as limits
from tests.support.symptom_runs import number as number
from tests.support.symptom_runs import raised_at as raised_at
from tests.support.symptom_runs import reports as reports
from tests.support.symptom_runs import symptom as symptom
from tests.support.symptom_runs import times_raised as times_raised

AT_S = recorded.AT_S
MONO_S = recorded.MONO_S
MODEL = "/models/llama-8b"
URL = recorded.URL
API_SERVER, CORE, WORKER = 600, 624, 640
KEY = f"{API_SERVER}@1795967802"
SUBJECT = f"engine:{KEY}"

Fields = Mapping[str, Any]

# Nothing here is near a threshold: a big model keeps the GPU at work without filling its bandwidth.
_GPU = {
    "util_pct": 97.0,
    "mem_util_pct": 58.0,
    "power_w": 545.0,
    "temp_c": 61.0,
    "gpm.sm_active_pct": 84.0,
    "gpm.sm_occupancy_pct": 31.0,
    "gpm.tensor_pct": 36.0,
    "gpm.dram_bw_pct": 61.0,
    "gpm.pcie_tx_bytes_per_s": 30e6,
    "gpm.pcie_rx_bytes_per_s": 60e6,
    "pcie_tx_bytes_per_s": 30e6,
    "pcie_rx_bytes_per_s": 60e6,
}
# Cumulative counters and what they add in a second.
_COUNTERS = {
    "generation_tokens": 3200.0,
    "steps": 50.0,
    "prompt_tokens": 5600.0,
    "prompt_tokens_computed": 3100.0,
    "prefix_queries": 5600.0,
    "prefix_hits": 2500.0,
    "preemptions": 0.0,
    "finished:stop": 3.0,
    "finished:length": 0.5,
    "finished:abort": 0.0,
    "finished:error": 0.0,
}

# A GPU that waits for something although it looks busy.
CLEAR_OF_WORK = {"util_pct": 100.0, "power_w": 220.0, "gpm.tensor_pct": 0.0}


def latency(p95_s: float, count: float = 35.0, p50_s: float | None = None, p99_s: float | None = None) -> Latency:
    """A latency whose buckets are narrow; the other quantiles and the mean follow p95 unless given."""
    p50 = 0.7 * p95_s if p50_s is None else p50_s
    p99 = 1.2 * p95_s if p99_s is None else p99_s
    return Latency(count, 1.05 * p50, *(recorded.exactly(value) for value in (p50, p95_s, p99)))


def within(low_s: float, high_s: float | None, count: float = 35.0) -> Latency:
    """A latency of which only the bucket is known."""
    return Latency(count, None, *[Quantile(low_s, high_s, None)] * 3)


def healthy_live(model: str | None = MODEL, rank: str | None = "0") -> EngineLive:
    """64 sequences decode at 20 ms a step, 3.5 requests a second come and go, nothing waits."""
    return EngineLive(
        model=model,
        rank=rank,
        window_s=10.0,
        running=64.0,
        waiting=0.0,
        waiting_by_reason={"capacity": 0.0, "deferred": 0.0},
        kv_usage_pct=42.0,
        requests_per_s=3.5,
        prompt_tokens_per_s=5600.0,
        prompt_computed_tokens_per_s=3100.0,
        prompt_cached_tokens_per_s=2500.0,
        generation_tokens_per_s=3200.0,
        steps_per_s=50.0,
        tokens_per_step=126.0,
        preemptions_per_s=0.0,
        prefix_hit_pct=45.0,
        prefix_hit_lifetime_pct=44.0,
        finished_per_s={"stop": 3.0, "length": 0.5, "abort": 0.0, "error": 0.0},
        mean_prompt_tokens=1600.0,
        mean_generation_tokens=910.0,
        latency={
            "ttft": latency(0.18),
            "itl": latency(0.028, count=32_000, p50_s=0.019, p99_s=0.041),
            "tpot": latency(0.024),
            "queue": latency(0.002),
            "prefill": latency(0.15),
            "decode": latency(22.0),
            "e2e": latency(22.2),
        },
        missing={"spec": "speculative decoding is off"},
    )


def busy(
    seconds: int = 30,
    *,
    gpus: int = 1,
    live: Fields | None = None,
    lat: Fields | None = None,
    ranks: Sequence[Fields] | None = None,
    models: Mapping[str, Fields] | None = None,
    counters: Fields | None = None,
    reading: Fields | None = None,
    gpu: Fields | None = None,
    each_gpu: Mapping[int, Fields] | None = None,
    process: Mapping[int, Fields | None] | None = None,
    load: Mapping[int, Fields] | None = None,
    target: Fields | None = None,
    scrape: Fields | None = None,
    edit: Callable[[Frame, int], Frame] | None = None,
    start: int = 0,
) -> list[Frame]:
    """One frame a second.

    Args:
        seconds: how many; the first is second `start`.
        gpus: how many the engine uses; with more than one it has a worker on each (PIDs from `WORKER` on).
        live: fields of the engine's `EngineLive`.
        lat: latencies by name: a p95 in seconds, or a `Latency`; None takes it off the page.
        ranks: fields of `EngineLive` (and "counters", as below), for each data-parallel rank.
        models: fields of `EngineLive` (and "lat", as above), by model, for a page with several.
        counters: cumulative counters by name, instead of those that grow steadily; None takes one off the page.
        reading: fields of the engine's `EngineReading`.
        gpu, each_gpu: fields of `Gpu` ("gpm.<field>" of its `Gpm`, "gpm" may be None), for all or by index.
        process: fields of `TargetProcess` by PID; None: the process isn't there.
        load: fields of `ProcessLoad` by PID.
        target: fields of `Target`.
        scrape: fields of the scrape's `Part`; `at` is the second of the last good one.
        edit: has the last word on each frame.
    """
    made = []
    for s in range(start, start + seconds):
        shown_gpus = [_gpu(i, {**_at(gpu, s), **_at((each_gpu or {}).get(i), s)}) for i in range(gpus)]
        its_target = _target(gpus, process or {}, target, s)
        frame = Frame(
            seq=s,
            at_s=AT_S + s,
            mono_s=MONO_S + s,
            period_s=1.0,
            gpus=_part(recorded.node(shown_gpus), s),
            host=_part(recorded.host(_loads(its_target, load or {}, s)), s),
            targets=_part(TargetList((its_target,)), s),
            engines=(_engine(s, live, lat, ranks, models, counters, reading, scrape),),
            focus=KEY,
        )
        made.append(frame if edit is None else edit(frame, s))
    return made


def stuck_from(second: int, name: str = "generation_tokens") -> Callable[[int], float]:
    """A counter that grows as in health until `second`, and then stands still."""
    return lambda s: _counter(name, min(s, second))


def changing(*steps: tuple[int, Any]) -> Callable[[int], Any]:
    """A value that changes: (from second, value) in order."""

    def at(s: int) -> Any:
        return [value for begin, value in steps if s >= begin][-1]

    return at


def unanswered(frame: Frame, s: int) -> Frame:
    """An `edit`: the page has never been there."""
    part = Part(error="cannot read it: nothing listens there (connection refused)", period_s=5.0, polls=s + 1)
    return replace(frame, engines=(EngineFrame(KEY, URL, part),))


# -- parts --------------------------------------------------------------------


def _value(given: Any, s: int) -> Any:
    return given(s) if callable(given) else given


def _at(fields: Fields | None, s: int) -> dict[str, Any]:
    return {name: _value(given, s) for name, given in (fields or {}).items()}


def _part(value: Any, s: int, **changes: Any) -> Part:
    given = {"at_s": AT_S + s - 0.2, "at_mono_s": MONO_S + s - 0.2, "age_s": 0.2, "took_s": 0.0005, "period_s": 1.0}
    return Part(value, **{**given, "polls": s + 1, **changes})


def _counter(name: str, s: int) -> float:
    return (600 + s) * _COUNTERS[name]


def _series(s: int, model: str | None, rank: str | None, now: EngineLive, counters: dict[str, Any]) -> EngineSeries:
    values = {name: counters.get(name, _counter(name, s)) for name in _COUNTERS}
    values.update({name: value for name, value in counters.items() if name not in values})
    return EngineSeries(
        model,
        rank,
        running=now.running,
        waiting=now.waiting,
        waiting_by_reason=now.waiting_by_reason,
        kv_usage_pct=now.kv_usage_pct,
        counters={name: value for name, value in values.items() if value is not None},
    )


def _live(s: int, fields: Fields | None, lat: Fields | None, model: str | None, rank: str | None) -> EngineLive:
    now = healthy_live(model, rank)
    latencies: dict[str, Latency] = dict(now.latency)
    for name, given in _at(lat, s).items():
        if given is None:
            latencies.pop(name, None)
        else:
            latencies[name] = given if isinstance(given, Latency) else latency(given)
    changed = _at(fields, s)
    if "prefix_hit_pct" in changed:
        # The healthy share of cached tokens would contradict it.
        changed.setdefault("prompt_cached_tokens_per_s", None)
    if changed.get("spec") is not None:
        changed.setdefault("missing", {})
    return replace(now, **{"latency": latencies, **changed})


def _engine(
    s: int,
    live: Fields | None,
    lat: Fields | None,
    ranks: Sequence[Fields] | None,
    models: Mapping[str, Fields] | None,
    counters: Fields | None,
    reading: Fields | None,
    scrape: Fields | None,
) -> EngineFrame:
    part = _at(scrape, s)
    # The page stands still after its last good scrape.
    seen = min(s, part.pop("at", s))
    total = _live(seen, live, lat, None if models else MODEL, None if ranks else "0")
    count = _at(counters, seen)
    if ranks:
        by_rank = tuple(
            _live(seen, {**(live or {}), **_without(fields, "counters")}, lat, MODEL, str(rank))
            for rank, fields in enumerate(ranks)
        )
        by_model = (total,)
        series = tuple(
            _series(seen, MODEL, one.rank, one, {**count, **_at(fields.get("counters"), seen)})
            for one, fields in zip(by_rank, ranks, strict=True)
        )
    elif models:
        by_model = tuple(
            _live(seen, _without(fields, "lat"), fields.get("lat"), name, "0") for name, fields in models.items()
        )
        by_rank = by_model
        total = replace(total, latency={})
        series = tuple(_series(seen, one.model, "0", one, count) for one in by_model)
    else:
        by_rank = by_model = (total,)
        series = (_series(seen, MODEL, "0", total, count),)
    page = recorded.reading(**{"series": series, "progress": ("steps", "generation_tokens"), **_at(reading, seen)})
    age = s - seen + 0.2
    newest = _part(page, seen, age_s=age, took_s=0.006, polls=s + 1)
    return EngineFrame(KEY, URL, replace(newest, **part), EngineWindow(total, by_model, by_rank))


def _without(fields: Fields, name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


def _gpu(index: int, fields: Fields) -> Gpu:
    gpu = recorded.h200(index, pid=CORE if index == 0 else WORKER + index)
    changes = {**_GPU, **fields}
    if "gpm" in changes:
        changes = {name: value for name, value in changes.items() if not name.startswith("gpm.")}
    gpm = {name[4:]: changes.pop(name) for name in list(changes) if name.startswith("gpm.")}
    if gpm and gpu.gpm is not None:
        changes["gpm"] = replace(gpu.gpm, **gpm)
    return replace(gpu, **changes)


def _target(gpus: int, process: Mapping[int, Fields | None], fields: Fields | None, s: int) -> Target:
    base = recorded.target(KEY, API_SERVER, CORE, gpus=(0,) if gpus == 1 else (), model=MODEL)
    workers = tuple(
        TargetProcess(
            WORKER + rank,
            CORE,
            "worker",
            f"VLLM::Worker_TP{rank}",
            rank=f"TP{rank}",
            gpus=(rank,),
            gpus_from="nvml",
            mem_bytes=76_382_470_144,
            nvml_pid=WORKER + rank,
            state="R",
            start_s=recorded.STARTED_S + 9,
        )
        for rank in range(gpus if gpus > 1 else 0)
    )
    processes = []
    for one in (*base.processes, *workers):
        changes = _value(process.get(one.pid, {}), s)
        if changes is not None:
            processes.append(replace(one, **_at(changes, s)))
    return replace(base, **{"processes": tuple(processes), **_at(fields, s)})


def _loads(target: Target, load: Mapping[int, Fields], s: int) -> tuple[ProcessLoad, ...]:
    """What each process of the target does: the engine core half a core, the API server a fifth."""
    healthy = {"api-server": 22.0, "engine-core": 48.0, "worker": 46.0}
    loads = []
    for one in target.processes:
        if one.pid is None:
            continue
        pct = healthy.get(one.role, 1.0)
        base = ProcessLoad(
            one.pid,
            one.role,
            one.state,
            cpu_pct=pct + 5,
            rss_bytes=4 << 30,
            swap_bytes=0,
            threads=60,
            top_threads=(ThreadLoad(one.pid, one.title[:15], pct),),
            main_thread_pct=pct,
            ctx_voluntary_per_s=2200.0,
            ctx_involuntary_per_s=12.0,
            cgroup=recorded.host().processes[1].cgroup,
        )
        loads.append(replace(base, **_at(load.get(one.pid), s)))
    return tuple(loads)
