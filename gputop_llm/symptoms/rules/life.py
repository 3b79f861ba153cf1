"""warming-up and underloaded: how an engine is doing as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gputop_llm.model import EngineLive, EngineReading
from gputop_llm.model.engine import FAILED_REASONS
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.argv import flag_number
from gputop_llm.symptoms.checks import Check, State, all_of, at_every_reading, is_true, judged, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import engine_number, latency_evidence, limit, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.processes import stopped_processes
from gputop_llm.symptoms.rules.queue import SEQUENCE_LIMITS, decode_is_slow
from gputop_llm.symptoms.view import MEAN_S, EngineView, NodeView
from gputop_llm.units import number, uptime

#: What clocks may differ by and still be taken for the same.
_CLOCKS_APART_S = 5.0
WARMING, UNDERLOADED = "warming-up", "underloaded"


# -- warming-up -----------------------------------------------------------------


def warming_up(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The engine is young, or has yet to make its first token."""
    for engine in view.engines:
        age_s = engine_age_s(engine, view.now.at_s)
        if age_s is None:
            # It has been there for as long as it has been watched.
            old = _seen_for_s(engine) + 2.0 * view.now.period_s >= limits.value(f"{WARMING}.age_s")
            state = State.CLEAR if old else State.UNKNOWN
            yield Check(WARMING, engine.subject, state, "when the engine was started")
            continue
        first = first_token_seen(engine.frame.scrape.value)
        young = age_s < limits.value(f"{WARMING}.age_s")
        starting = age_s < limits.value(f"{WARMING}.no_token_s") and _has_yet_to_answer(engine, first)
        make = partial(_warming, engine, age_s, first, young, limits)
        yield judged(WARMING, engine.subject, is_true(young or starting), "", make)


def engine_age_s(engine: EngineView, now_s: float) -> float | None:
    """Seconds since the engine was started or began to count anew, whichever is later; None when neither is known."""
    reading, target = engine.frame.scrape.value, engine.target
    started = [
        at for at in (reading.started_s if reading else None, target.started_s if target else None) if at is not None
    ]
    # A page of another machine may be dated by a clock that is ahead of ours: that tells no age.
    started = [at for at in started if at - now_s <= _CLOCKS_APART_S]
    ages = [max(0.0, now_s - max(started))] if started else []
    # Counters that fell are a restart, told or not; it is marked for the length of one window only.
    if engine.restarted_mono_s is not None:
        ages.append(engine.past[-1][0] - engine.restarted_mono_s)
    return min(ages, default=None)


def _seen_for_s(engine: EngineView) -> float:
    """Seconds since the first good scrape of the kept time."""
    first = next((at for at, frame in engine.past if frame.scrape.value is not None), None)
    return 0.0 if first is None else engine.past[-1][0] - first


def first_token_seen(reading: EngineReading | None) -> bool | None:
    """Whether the engine has ever generated a token; None when its page does not tell."""
    if reading is None or reading.problem is not None:
        return None
    counts = [one.counters["generation_tokens"] for one in reading.series if "generation_tokens" in one.counters]
    if any(count > 0 for count in counts):
        return True
    # Counted as requests end, 0 may be the middle of the first one.
    return False if counts and "generation_tokens_per_s" not in reading.missing else None


def _has_yet_to_answer(engine: EngineView, first: bool | None) -> bool:
    """Whether requests wait for the first token ever, or the page has never been there."""
    live, reading = engine.live, engine.frame.scrape.value
    if reading is None:
        return True
    # A model that only embeds or ranks answers without a token.
    answered = any(
        count > 0
        for one in reading.series
        for name, count in one.counters.items()
        if name.startswith("finished:") and name.removeprefix("finished:") not in FAILED_REASONS
    )
    return first is False and not answered and live is not None and bool(live.running)


def _warming(engine: EngineView, age_s: float, first: bool | None, young: bool, limits: Limits) -> Symptom:
    until = f"{WARMING}.age_s" if young else f"{WARMING}.no_token_s"
    seen = {True: "yes", False: "no", None: None}[first]
    never = engine.frame.scrape.value is None
    if never:
        headline = f"the engine is starting ({uptime(age_s)} old, no metrics page yet): normal"
    else:
        headline = f"the engine is {uptime(age_s)} old{', no first token yet' if first is False else ''}: normal"
    return Symptom(
        id=WARMING,
        subject=engine.subject,
        severity=Severity.NOTE,
        headline=f"{headline}; other rules are held back",
        evidence=(
            Evidence("age", age_s, "s", "start of the process, or of its counters", **limit(limits, until)),
            Evidence(
                "first token seen",
                None,
                "",
                f"{engine.kind} /metrics",
                text=seen,
                missing=None if seen else "no page, or no token counter on it",
            ),
        ),
        causes=(
            Cause(
                "a cold start: weights are loaded, kernels compiled, CUDA graphs captured, caches are empty",
                when(never, "the metrics page has not been there yet") + when(first is False, "no token so far"),
                when(first is True, "tokens are being generated"),
            ),
        ),
        advice=(
            Advice("wait; judge nothing by the first requests"),
            Advice(
                "start faster at the price of slower steps",
                {"vllm": "--enforce-eager", "sglang": "--disable-cuda-graph", "trtllm": "cuda_graph_config: null"},
            ),
        ),
        refuted_by="the process and its counters are older than they say (a clock that was set)",
        agreeing=young + (first is not True),
        signals=2,
    )


# -- underloaded ----------------------------------------------------------------


def underloaded(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Nothing waits, little runs, and tokens come as fast as usual."""
    for engine in view.engines:
        live, lacking = engine.live, unreadable(engine, limits)
        if live is None or lacking:
            yield Check(UNDERLOADED, engine.subject, State.UNKNOWN, lacking or "")
            continue
        running = engine.mean("running")
        nobody_waits = at_every_reading([value == 0 for _, value in engine.values("waiting", MEAN_S)])
        few = under(running, limits, f"{UNDERLOADED}.running")
        cap = flag_number(engine, *SEQUENCE_LIMITS)
        if cap is not None and running is not None and cap[1] > 0:
            few = all_of(few, under(100.0 * running / cap[1], limits, f"{UNDERLOADED}.of_cap_pct"))
        slow, _ = decode_is_slow(engine, limits)
        state = all_of(
            few,
            nobody_waits,
            # With too few tokens to judge by, nothing is slow; with none at all, nothing is well.
            is_true(slow is not State.RAISED and not (running and live.generation_tokens_per_s == 0)),
            # A stopped process serves no client: that none is counted says nothing.
            is_true(not stopped_processes(engine)),
        )
        name = "running" if few is State.UNKNOWN else "waiting"
        needs = f"{name} ({live.missing.get(name, 'not on the page')})"
        make = partial(_underloaded, engine, live, running or 0.0, limits)
        yield judged(UNDERLOADED, engine.subject, state, needs, make)


def _underloaded(engine: EngineView, live: EngineLive, running: float, limits: Limits) -> Symptom:
    arrive = live.requests_per_s
    headline = f"nothing waits and {number(running)} run: normal, the clients are the limit"
    if arrive is not None:
        headline += f" ({number(arrive)} requests/s)"
    itl = live.latency.get("itl")
    return Symptom(
        id=UNDERLOADED,
        subject=engine.subject,
        severity=Severity.NOTE,
        headline=headline,
        evidence=(
            Evidence(
                "running",
                running,
                "",
                f"{engine.kind} /metrics, mean",
                MEAN_S,
                **limit(limits, f"{UNDERLOADED}.running"),
            ),
            engine_number(engine, live, "waiting", "waiting", ""),
            engine_number(engine, live, "requests_per_s", "requests that finish", "/s"),
            engine_number(engine, live, "kv_usage_pct", "KV cache usage", "%"),
            *(latency_evidence(engine, live, "itl", "ITL", None, None) if itl else ()),
        ),
        causes=(Cause("nothing is wrong: the engine could serve more than it is sent", ("nothing waits",)),),
        advice=(Advice("send it more, or serve this model with less"),),
        refuted_by="clients that wait although nothing waits here: then the limit is before the engine",
        agreeing=2 + (itl is not None),
        signals=3,
        chart=engine.series("running"),
        chart_threshold=limits.value(f"{UNDERLOADED}.running"),
    )


RULES = (
    Rule(WARMING, "the engine is young", warming_up),
    Rule(UNDERLOADED, "the clients are the limit", underloaded),
)
