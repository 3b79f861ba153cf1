"""queue-growing and scheduler-capped: requests wait, because more come than can be served, or than are let in."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gputop_llm.model import EngineLive
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import LARGER_BATCHES
from gputop_llm.symptoms.argv import flag_number
from gputop_llm.symptoms.checks import Check, State, all_of, any_of, at_every_reading, judged, over, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, gpu_number, limit, ranked, slope_per_s, squares, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.slo import judge
from gputop_llm.symptoms.view import MEAN_S, EngineView, NodeView
from gputop_llm.units import number, pct

GROWING, CAPPED = "queue-growing", "scheduler-capped"
SEQUENCE_LIMITS = ("--max-num-seqs", "--max-running-requests", "--max-batch-size")

# A line through fewer seconds than half of this says nothing of a queue.
_TREND_S = 20.0


@dataclass(frozen=True, slots=True)
class Growth:
    """What a line through the newest `_TREND_S` seconds of the queue says."""

    slope_per_s: float
    sure_rise: float
    span_s: float


def growth(points: Sequence[tuple[float, float]]) -> Growth | None:
    """How a queue grows: the fitted slope, and the rise over the trend window that is left when twice its error is off.

    None with fewer than three points, or over less than half of the trend window.
    """
    if len(points) < 3 or points[-1][0] - points[0][0] < _TREND_S / 2:
        return None
    spread, together, of_values = squares(points)
    slope = together / spread
    # What the line leaves of the values' squares; a hair below 0 where it leaves nothing.
    error = math.sqrt(max(0.0, of_values - slope * together) / (len(points) - 2) / spread)
    return Growth(slope, (slope - 2.0 * error) * _TREND_S, points[-1][0] - points[0][0])


def excess_per_s(engine: EngineView) -> float | None:
    """Arrivals less finishes, per second over the newest `MEAN_S`: how fast running and waiting together grow."""
    waiting = dict(engine.values("waiting", MEAN_S))
    return slope_per_s([(at, value + waiting[at]) for at, value in engine.values("running", MEAN_S) if at in waiting])


# -- queue-growing --------------------------------------------------------------


def queue_growing(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Somebody waits, the queue grows, and more requests arrive than finish."""
    for engine in view.engines:
        live, lacking = engine.live, unreadable(engine, limits)
        if live is None or lacking:
            yield Check(GROWING, engine.subject, State.UNKNOWN, lacking or "")
            continue
        if live.waiting == 0:
            yield Check(GROWING, engine.subject, State.CLEAR)
            continue
        grown, excess = growth(engine.values("waiting", _TREND_S)), excess_per_s(engine)
        state = all_of(
            over(grown.sure_rise if grown else None, limits, f"{GROWING}.rise"),
            over(excess, limits, f"{GROWING}.excess_per_s"),
        )
        needs = f"the queue's length ({live.missing.get('waiting', 'not on the page')})"
        if live.waiting is not None:
            needs = f"a longer look at the queue ({_TREND_S / 2:.0f} s)"
        make = partial(_growing, engine, live, grown, excess or 0.0, limits)
        yield judged(GROWING, engine.subject, state, needs, make)


def _growing(engine: EngineView, live: EngineLive, grown: Growth | None, excess: float, limits: Limits) -> Symptom:
    assert grown is not None
    finish = live.requests_per_s
    arrive = None if finish is None else max(0.0, finish + excess)
    headline = f"the queue grows by {number(grown.slope_per_s)}/s: {live.waiting or 0:.0f} waiting"
    if arrive is not None:
        headline += f"; {number(arrive)}/s arrive, {number(finish)}/s finish"
    source = f"{engine.kind} /metrics"
    running = [value for _, value in engine.values("running", _TREND_S)]
    missing = live.missing.get("requests_per_s", "not on the page") if finish is None else None
    return Symptom(
        id=GROWING,
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            engine_number(engine, live, "waiting", "waiting", ""),
            Evidence("queue growth", grown.slope_per_s, "/s", f"{source}, fitted line", grown.span_s),
            Evidence(
                "sure rise of the queue",
                grown.sure_rise,
                "",
                f"{source}, fitted line less twice its error, over {_TREND_S:.0f} s",
                grown.span_s,
                **limit(limits, f"{GROWING}.rise"),
            ),
            Evidence("arrivals", arrive, "/s", f"{source}, finishes + growth", MEAN_S, missing=missing),
            Evidence("finishes", finish, "/s", source, live.window_s, missing=missing),
            Evidence(
                "running",
                live.running,
                "",
                source,
                _TREND_S,
                text=f"{live.running or 0:.0f} ({min(running):.0f} – {max(running):.0f})" if running else None,
            ),
            engine_number(engine, live, "kv_usage_pct", "KV cache usage", "%"),
        ),
        causes=_growing_causes(engine, live, arrive, limits),
        advice=(
            LARGER_BATCHES,
            Advice("serve fewer requests with this engine: add a copy, or send less to this one"),
            Advice(
                "refuse what would wait too long instead of queueing it",
                {"vllm": "--max-num-queued-reqs (vLLM 0.32)", "sglang": "--max-queued-requests"},
            ),
        ),
        refuted_by="the queue shrinks within the next 20 s although as many requests arrive: it was a burst",
        agreeing=1 + (excess > 0) + _flat(engine, limits),
        signals=3,
        chart=engine.series("waiting"),
    )


def _flat(engine: EngineView, limits: Limits) -> bool:
    """Whether running stands at a plateau: as many as may run do."""
    return under(_below_plateau_pct(engine), limits, f"{CAPPED}.below_plateau_pct") is State.RAISED


def _growing_causes(engine: EngineView, live: EngineLive, arrive: float | None, limits: Limits) -> tuple[Cause, ...]:
    usage = live.kv_usage_pct
    full = usage is not None and usage > limits.value("kv-pressure.kv_pct")
    room = usage is not None and usage < limits.value(f"{CAPPED}.kv_pct")
    flat = _flat(engine, limits)
    capacity = engine.baseline(engine, live, "requests_per_s")
    deferred = live.waiting_by_reason.get("deferred", 0.0)
    return ranked(
        Cause(
            "an admission cap: the engine runs no more sequences at once",
            when(flat and room, f"running stands at {live.running or 0:.0f} with KV cache only {pct(usage)} full"),
            when(not flat, "running is no plateau") + when(full, f"KV cache {pct(usage)} full"),
        ),
        Cause(
            "the KV cache is exhausted: no free blocks to admit another",
            when(full, f"KV cache {pct(usage)} full")
            + when(bool(live.preemptions_per_s), f"{live.preemptions_per_s or 0:.2g} preemptions/s"),
            when(room and not live.preemptions_per_s, f"KV cache {pct(usage)} full, no preemptions"),
        ),
        Cause(
            "overload: more requests arrive than this engine can serve",
            when(
                arrive is not None and capacity is not None and arrive > capacity,
                f"{number(arrive)} requests/s arrive; it usually serves {number(capacity)}/s",
            ),
            when(
                arrive is not None and capacity is not None and arrive <= capacity,
                f"{number(arrive)} requests/s arrive; it usually serves {number(capacity)}/s",
            ),
        ),
        Cause(
            "requests are put off: a LoRA adapter, a KV transfer, or a grammar isn't ready",
            when(deferred > 0, f"{deferred:.0f} of them are deferred, not short of capacity"),
            when("deferred" in live.waiting_by_reason and not deferred, "none is deferred"),
        ),
    )


# -- scheduler-capped -----------------------------------------------------------


def scheduler_capped(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Somebody always waits to be let in while running stands at a plateau, KV has room and tokens come as usual."""
    for engine in view.engines:
        live, lacking = engine.live, unreadable(engine, limits)
        if live is None or lacking:
            yield Check(CAPPED, engine.subject, State.UNKNOWN, lacking or "")
            continue
        queue = _wait_to_be_let_in(engine)
        waiting = at_every_reading([value > limits.value(f"{CAPPED}.waiting") for value in queue])
        room = under(engine.mean("kv_usage_pct"), limits, f"{CAPPED}.kv_pct")
        flat = under(_below_plateau_pct(engine), limits, f"{CAPPED}.below_plateau_pct")
        slow, needs = decode_is_slow(engine, limits)
        state = all_of(waiting, room, flat, _NOT[slow])
        for name, part in (("waiting", waiting), ("kv_usage_pct", room), ("running", flat)):
            if part is State.UNKNOWN:
                needs = f"{name.replace('_pct', '').replace('_', ' ')} ({live.missing.get(name, 'not on the page')})"
        yield judged(
            CAPPED, engine.subject, state, needs, partial(_capped, engine, live, min(queue, default=0.0), limits)
        )


def _wait_to_be_let_in(engine: EngineView) -> list[float]:
    """How many waited at each scrape, without those that are put off: a larger cap lets none of them in."""
    totals = [frame.window.total for _, frame in engine.scrapes(MEAN_S) if frame.window]
    return [t.waiting - t.waiting_by_reason.get("deferred", 0.0) for t in totals if t.waiting is not None]


_NOT = {
    State.RAISED: State.CLEAR,
    State.CLEAR: State.RAISED,
    State.BETWEEN: State.BETWEEN,
    State.UNKNOWN: State.UNKNOWN,
}


def decode_is_slow(engine: EngineView, limits: Limits) -> tuple[State, str]:
    """Whether inter-token latency is high for any model, and what it would take to know."""
    found: tuple[State, str] | None = engine.memo.get(("decode is slow", limits))
    if found is None:
        verdicts = [judge(engine, live, "tpot-high", "itl", limits) for live in engine.models]
        found = any_of(*(v.state for v in verdicts)), next((v.needs for v in verdicts if v.needs), "")
        engine.memo["decode is slow", limits] = found
    return found


def _below_plateau_pct(engine: EngineView) -> float | None:
    """How far the mean of running is below its maximum; requests that finish make it dip even at a cap.

    100 while nothing runs: that is no plateau.
    """
    values = [value for _, value in engine.values("running", MEAN_S)]
    if not values:
        return None
    top = max(values)
    return 100.0 * (top - sum(values) / len(values)) / top if top > 0 else 100.0


def _capped(engine: EngineView, live: EngineLive, least: float, limits: Limits) -> Symptom:
    usage = engine.mean("kv_usage_pct")
    waiting = (live.waiting or 0.0) - live.waiting_by_reason.get("deferred", 0.0)
    top = max((value for _, value in engine.values("running", MEAN_S)), default=0.0)
    cap = flag_number(engine, *SEQUENCE_LIMITS)
    at_cap = cap is not None and top >= cap[1]
    active = [(value, gpu) for gpu in engine.gpus if (value := gpu.mean("gpm.sm_active_pct")) is not None]
    spare = bool(active) and max(v for v, _ in active) < limits.value(f"{CAPPED}.sm_active_pct")
    return Symptom(
        id=CAPPED,
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=f"{waiting:.0f} wait while running stands at {top:.0f}; KV cache is only {pct(usage)} full",
        evidence=(
            Evidence(
                "running, at a plateau",
                top,
                "",
                f"{engine.kind} /metrics, maximum",
                MEAN_S,
                text=None if cap is None else f"{top:.0f} ({cap[0]} {cap[1]:.0f})",
            ),
            Evidence(
                "below the plateau",
                _below_plateau_pct(engine),
                "%",
                f"{engine.kind} /metrics, mean against maximum",
                MEAN_S,
                **limit(limits, f"{CAPPED}.below_plateau_pct"),
            ),
            Evidence(
                "KV cache usage", usage, "%", f"{engine.kind} /metrics", MEAN_S, **limit(limits, f"{CAPPED}.kv_pct")
            ),
            Evidence(
                "least waiting",
                least,
                "",
                f"{engine.kind} /metrics",
                MEAN_S,
                **limit(limits, f"{CAPPED}.waiting"),
            ),
            *(gpu_number(gpu, "gpm.sm_active_pct", "SM active", "%", "GPM") for gpu in engine.gpus),
        ),
        causes=ranked(
            Cause(
                "the limit of sequences that run at once is too small",
                when(at_cap, f"running = {cap[0]} {cap[1]:.0f}" if cap else ""),
                when(cap is not None and not at_cap, f"running stays under {cap[0]} {cap[1]:.0f}" if cap else ""),
            ),
            Cause(
                "the limit of tokens per step is too small: prompts are let in too slowly",
                when(cap is not None and not at_cap, "running stays under the limit of sequences"),
                when(at_cap, "running is at the limit of sequences"),
            ),
            Cause(
                "the GPU has no more to give: a larger limit would only slow every sequence down",
                when(bool(active) and not spare, f"SM active {pct(max((v for v, _ in active), default=None))}"),
                when(spare, f"SM active only {pct(max((v for v, _ in active), default=None))}"),
            ),
        ),
        advice=(
            LARGER_BATCHES,
            Advice(
                "let more tokens into a step",
                {
                    "vllm": "--max-num-batched-tokens (up)",
                    "sglang": "--chunked-prefill-size, --max-prefill-tokens (up); --schedule-conservativeness (down)",
                    "trtllm": "max_num_tokens (up)",
                },
            ),
        ),
        refuted_by="running rises above the plateau by itself, or TPOT rises at once when the limit is raised",
        agreeing=2 + (at_cap or spare),
        signals=3,
        chart=engine.series("running"),
    )


RULES = (
    Rule(GROWING, "more requests arrive than are served", queue_growing),
    Rule(CAPPED, "requests wait although there is room", scheduler_capped),
)
