"""metrics-stale: the engine's page does not come, comes slowly, or stands still while its GPU works.

An engine that stands still with requests running is `stalled`, not this.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Any

from gputop_llm.model import EngineFrame, EngineReading
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, any_of, at_least, is_true, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_number, limit, ranked, when
from gputop_llm.symptoms.fresh import oldest_s
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.processes import stopped_processes
from gputop_llm.symptoms.rules.life import engine_age_s
from gputop_llm.symptoms.rules.stall_kinds import signs_of_work
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView
from gputop_llm.units import pct, seconds, uptime

RULE = "metrics-stale"

# Slow scrapes come seldom, and one of them says nothing.
_SLOW_S, _SLOW_SCRAPES = 30.0, 3
_REFUSED = ("connection refused", "closed the connection", "is not known", "(404)", "no connection within")
_FORBIDDEN = ("(401)", "(403)")
_HUNG = ("no answer within", "no complete answer within", "has not answered for")


def metrics_stale(view: NodeView, limits: Limits) -> Iterator[Check]:
    """No good scrape for a while, slow ones, or counters that stand still while nothing runs and the GPU is busy."""
    for engine in view.engines:
        scrape = engine.frame.scrape
        if scrape.value is not None and scrape.error is None and scrape.value.problem is not None:
            yield Check(RULE, engine.subject, State.UNKNOWN, f"the engine's metrics ({scrape.value.problem})")
            continue
        silent_s, failing = _silence(engine, view, limits)
        took_s = _took_s(engine)
        frozen = _frozen_gpu(view, engine, limits)
        parts = [failing, is_true(frozen is not None)]
        if took_s is not None:
            parts.append(over(took_s, limits, f"{RULE}.took_s"))
        state = any_of(*parts)
        if failing is State.UNKNOWN and state is not State.RAISED:
            yield Check(RULE, engine.subject, State.UNKNOWN, "a first answer: the engine is starting")
            continue
        make = partial(_symptom, engine, silent_s, took_s, frozen, failing is State.RAISED, limits)
        yield judged(RULE, engine.subject, state, "", make)


def _silence(engine: EngineView, view: NodeView, limits: Limits) -> tuple[float, State]:
    """Seconds without a good scrape, and whether that is too long; unknown while the engine may be starting."""
    scrape = engine.frame.scrape
    if scrape.value is not None and not scrape.value.unread:
        silent_s = scrape.age_s or 0.0
        return silent_s, is_true(silent_s > oldest_s(engine, limits))
    whole = next((at for at, frame in engine.scrapes() if _is_whole(frame)), None)
    if whole is not None:
        silent_s = engine.past[-1][0] - whole
        return silent_s, is_true(silent_s > oldest_s(engine, limits))
    silent_s = engine.past[-1][0] - engine.past[0][0] if engine.past else 0.0
    age_s = engine_age_s(engine, view.now.at_s)
    if age_s is not None and age_s < limits.value("warming-up.no_token_s"):
        return silent_s, State.UNKNOWN
    return silent_s, is_true(silent_s > oldest_s(engine, limits))


def _is_whole(frame: EngineFrame) -> bool:
    return frame.scrape.value is not None and not frame.scrape.value.unread


def _took_s(engine: EngineView) -> float | None:
    """The mean duration of the newest scrapes; None with too few of them."""
    reading = engine.frame.scrape.value
    if reading is not None and reading.held_back:
        return None
    took = [frame.scrape.took_s for _, frame in engine.scrapes(_SLOW_S) if frame.scrape.took_s is not None]
    return fmean(took) if len(took) >= _SLOW_SCRAPES else None


def _frozen_gpu(view: NodeView, engine: EngineView, limits: Limits) -> GpuView | None:
    """A GPU of this engine alone that is busy while the page has said the same for long.

    That nothing runs; or that something does, while the GPU computes: one that only spins is `stalled` before.
    """
    reading = engine.frame.scrape.value
    frozen_s = limits.value(f"{RULE}.frozen_s")
    if reading is None or not reading.progress or not _stands(engine, reading, frozen_s):
        return None
    busy = next((gpu for gpu in engine.gpus if _busy_for_it_alone(view, engine, gpu, frozen_s, limits)), None)
    return None if _runs(reading) and not signs_of_work(engine, limits) else busy


def _runs(reading: EngineReading) -> bool:
    return any(one.running != 0 for one in reading.series if not one.shared)


def _stands(engine: EngineView, reading: EngineReading, for_s: float) -> bool:
    """Whether the page has said the same for so long, as far as it shows work."""
    said, newest = _said(reading), None
    for at, frame in engine.scrapes():
        value = frame.scrape.value
        if value is None or _said(value) != said:
            return False
        newest = at if newest is None else newest
        if newest - at >= for_s:
            return True
    return False


def _busy_for_it_alone(view: NodeView, engine: EngineView, gpu: GpuView, over_s: float, limits: Limits) -> bool:
    processes, own = gpu.now.processes, set(engine.target.pids if engine.target else ())
    if gpu.now.mig_enabled or processes is None or len(view.users.get(gpu.index, ())) != 1:
        return False
    util = at_least(gpu.mean("util_pct", over_s), limits, f"{RULE}.frozen_util_pct")
    return util is State.RAISED and own >= {p.pid for p in processes}


def _said(reading: EngineReading) -> list[tuple[float | None, ...]]:
    return [
        (one.running, one.waiting, one.kv_usage_pct, *(one.counters.get(name) for name in reading.progress))
        for one in reading.series
    ]


def _symptom(
    engine: EngineView,
    silent_s: float,
    took_s: float | None,
    frozen: GpuView | None,
    failing: bool,
    limits: Limits,
) -> Symptom:
    scrape = engine.frame.scrape
    answered = scrape.value is not None
    unread = scrape.value.unread if scrape.value is not None and scrape.error is None else {}
    if failing and unread:
        pages = len(engine.target.urls) if engine.target else len(unread) + 1
        headline = f"{len(unread)} of its {pages} pages not read for {uptime(silent_s)}: no figure covers all ranks"
    elif failing and answered:
        headline = f"no answer from the metrics page for {uptime(silent_s)}: all engine figures are that old"
    elif failing:
        headline = f"the metrics page has never answered, asked for {uptime(silent_s)}"
    elif frozen is not None:
        reading = scrape.value
        says = "has not moved" if reading is not None and _runs(reading) else "says that nothing runs"
        headline = f"the page {says}, yet {frozen.subject.label} is {pct(frozen.mean('util_pct'))} busy"
    else:
        headline = f"the metrics page takes {seconds(took_s)}: the API server has no time left"
    error = scrape.error or "; ".join(unread.values())
    return Symptom(
        id=RULE,
        subject=engine.subject,
        severity=Severity.CRITICAL if failing and answered else Severity.WARNING,
        headline=headline,
        evidence=(
            Evidence(
                "last good scrape",
                silent_s if answered else None,
                "s",
                engine.frame.url,
                missing=None if answered else "there was none",
                threshold=oldest_s(engine, limits),
                threshold_origin=limits.origin(f"{RULE}.age_s"),
            ),
            Evidence("error", None, "", engine.frame.url, text=error or "none"),
            Evidence(
                "a scrape takes",
                took_s if took_s is not None else scrape.took_s,
                "s",
                "mean of the newest scrapes" if took_s is not None else "the newest scrape",
                _SLOW_S if took_s is not None else None,
                missing=None if scrape.took_s is not None or took_s is not None else "there was none",
                **limit(limits, f"{RULE}.took_s"),
            ),
            *(gpu_number(gpu, "util_pct", "utilisation", "%", "NVML") for gpu in engine.gpus),
        ),
        causes=_causes(engine, error, took_s, frozen, limits),
        advice=(
            Advice("ask by hand: curl the page from this node, with the key; and look at the engine's log"),
            Advice(
                "metrics have to be on",
                {
                    "vllm": "no --disable-log-stats",
                    "sglang": "--enable-metrics",
                    "trtllm": "return_perf_metrics: true",
                },
            ),
            Advice("tell this monitor the address and the key: --url, GPUTOP_LLM_API_KEY or --api-key-file"),
            Advice(
                "give the API server more processes",
                {"vllm": "--api-server-count (up)", "sglang": "--tokenizer-worker-num (up)"},
            ),
        ),
        refuted_by="the same page answers at once when it is asked from this node by hand",
        agreeing=1 + (failing and bool(error)),
        signals=2,
        **_chart(engine, frozen, failing, limits),
    )


def _chart(engine: EngineView, frozen: GpuView | None, failing: bool, limits: Limits) -> dict[str, Any]:
    if failing:
        return {"chart": engine.series("scrape_age_s"), "chart_threshold": oldest_s(engine, limits)}
    if frozen is not None:
        threshold = limits.value(f"{RULE}.frozen_util_pct")
        return {"chart": f"gpu.{frozen.index}.util_pct", "chart_threshold": threshold}
    return {"chart": engine.series("scrape_took_s"), "chart_threshold": limits.value(f"{RULE}.took_s")}


def _causes(
    engine: EngineView, error: str, took_s: float | None, frozen: GpuView | None, limits: Limits
) -> tuple[Cause, ...]:
    def told(words: tuple[str, ...]) -> bool:
        return any(word in error for word in words)

    answered = engine.frame.scrape.value is not None
    stopped = stopped_processes(engine)
    slow = took_s is not None and took_s > limits.value(f"{RULE}.took_s")
    return ranked(
        Cause(
            "the API server hangs, or has no time left",
            when(told(_HUNG), error)
            + when(slow, f"a scrape takes {seconds(took_s)}")
            + tuple(f"{name} is stopped (state T)" for name in stopped),
            when(told(_FORBIDDEN), "it answers, but refuses"),
        ),
        Cause(
            "the server is gone, or this is not its port",
            when(told(_REFUSED), error),
            when(told(_HUNG + _FORBIDDEN), "something listens there") + when(not error, "it answers"),
        ),
        Cause("the page needs an API key", when(told(_FORBIDDEN), error), when(answered, "it has answered before")),
        Cause(
            "the front end lost its connection to the engine, which computes on",
            when(frozen is not None, "the counters stand still while the GPU is busy"),
        ),
        *(
            (Cause("a very long prompt is being prefilled: its chunks make no token", ("the GPU computes",)),)
            if frozen is not None and signs_of_work(engine, limits)
            else ()
        ),
    )


RULES = (Rule(RULE, "the engine's metrics can't be trusted", metrics_stale),)
