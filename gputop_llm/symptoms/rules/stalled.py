"""stalled: requests run and nothing moves. How the kinds of it are told apart is in stall_kinds.py.

Standing still is measured on the engine's own live counters over the kept scrapes, so the rule needs no hold time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from gputop_llm.model import EngineFrame, EngineReading, EngineSeries
from gputop_llm.model.symptom import Evidence, Severity, Subject, Symptom
from gputop_llm.symptoms.checks import Check, State, at_least, judged
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit
from gputop_llm.symptoms.fresh import unmoved_s, unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.processes import dead_processes, label, state_of, stopped_for_s, stopped_processes
from gputop_llm.symptoms.rules import ended, stall_kinds
from gputop_llm.symptoms.view import EngineView, NodeView
from gputop_llm.units import pct, uptime

RULE = "stalled"

# As many are listed; an engine of more ranks shows its first.
_MOST_LISTED = 16


@dataclass(frozen=True, slots=True)
class Standstill:
    """How long one rank (or the engine as a whole, `rank` None) has run without progress.

    `longer`: it was so when the kept time began, so that it may be longer.
    """

    rank: str | None
    still_s: float
    longer: bool
    running: float
    waiting: float | None

    @property
    def duration(self) -> str:
        """How long, as people read it."""
        return f"{'more than ' if self.longer else ''}{uptime(self.still_s)}"


def stalled(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Requests run, or wait and none runs, without a step or token for too long; or an engine ended with requests."""
    for engine in view.engines:
        lacking = unreadable(engine, limits)
        yield from _unanswered(view, engine, limits, lacking) if lacking else _answered(view, engine, limits)
    yield from ended.checks(view, limits)


# -- a page that answers ----------------------------------------------------------


def _answered(view: NodeView, engine: EngineView, limits: Limits) -> Iterator[Check]:
    reading = engine.frame.scrape.value
    assert reading is not None
    lacking = _no_signal(engine, reading)
    if lacking is not None:
        yield Check(RULE, engine.subject, State.UNKNOWN, lacking)
        return
    ranks = sorted({one.rank for one in reading.series if not one.shared}, key=str)
    stills = [standstill(engine, rank) for rank in ranks]
    busy = [still for still in stills if still.running > 0]
    limit_s = _limit_s(view, engine, busy, limits)
    states = {still.rank: _state(still, limit_s, limits) for still in stills}
    all_still = [still for still in busy if states[still.rank] is State.RAISED]
    # All that have something to do; one of several ranks is named.
    whole = len(ranks) == 1 or len(all_still) == len(busy) != 1
    if whole:
        if busy:
            # The one that moved last tells how long all have been still.
            last = min(busy, key=lambda still: still.still_s)
            state = states[last.rank]
            total = Standstill(
                None, last.still_s, last.longer, sum(still.running for still in busy), _waiting(reading.series)
            )
        else:
            total = _stopped(view, engine)
            state = at_least(total.still_s, limits, f"{RULE}.no_progress_s")
            if state is State.CLEAR:
                total = _none_let_in(engine)
                state = at_least(total.still_s, limits, f"{RULE}.working_s")
        make = partial(_symptom, view, engine, engine.subject, total, limits)
        yield judged(RULE, engine.subject, state, "", make, certain=_seen(view, engine, state))
    else:
        yield Check(RULE, engine.subject, State.CLEAR)
    if len(ranks) > 1:
        for still in stills:
            subject = engine.rank_subject(still.rank)
            state = State.CLEAR if whole else states[still.rank]
            make = partial(_symptom, view, engine, subject, still, limits)
            yield judged(RULE, subject, state, "", make, certain=_seen(view, engine, state))


def _seen(view: NodeView, engine: EngineView, state: State) -> bool:
    """Whether a standstill that may be raised is one of a broken engine."""
    return state is not State.CLEAR and _broken(view, engine)


def _broken(view: NodeView, engine: EngineView) -> bool:
    """Whether a process is seen to be dead or stopped: then no start or warm-up explains the standstill."""
    return bool(stopped_processes(engine) or dead_processes(view, engine))


def _stopped(view: NodeView, engine: EngineView) -> Standstill:
    """A standstill with nothing running by the gauges, which are as old as the last step: they lack what came since.

    0 s unless a process that the engine needs is stopped, and for as long as nothing has moved since.
    """
    reading = engine.frame.scrape.value
    waiting = _waiting(reading.series if reading else ())
    stopped_s, longer = stopped_for_s(view, engine)
    if stopped_s <= 0:
        return Standstill(None, 0.0, False, 0.0, waiting)
    still_s, before = unmoved_s(engine)
    return Standstill(None, min(stopped_s, still_s), longer and before, 0.0, waiting)


def _none_let_in(engine: EngineView) -> Standstill:
    """A standstill with requests that wait while none runs; 0 s when one runs, none waits, or the engine sleeps."""
    reading, still_s = engine.frame.scrape.value, 0.0
    unmoved, before = unmoved_s(engine)
    if reading is not None and reading.asleep is None:
        newest: float | None = None
        for at, frame in engine.scrapes():
            live = frame.window.total if frame.window else None
            if live is None or live.running != 0 or not live.waiting:
                before = False
                break
            newest = at if newest is None else newest
            still_s = newest - at
    return Standstill(
        None, min(still_s, unmoved), before and still_s > 0, 0.0, _waiting(reading.series if reading else ())
    )


def _no_signal(engine: EngineView, reading: EngineReading) -> str | None:
    """What is lacking to see progress; None when there is enough."""
    if not reading.progress:
        return "a live progress signal: this engine's counters move only as requests end"
    counts = {name: one.counters[name] for one in reading.series for name in reading.progress if name in one.counters}
    if not counts:
        return "step or token counters (not on the page yet)"
    if "steps" not in counts and not any(counts.values()):
        # A model that only embeds never will.
        return "a live progress signal: no step counter, and this engine has never generated a token"
    if all(one.running is None for one in reading.series):
        missing = engine.live.missing if engine.live else {}
        return f"running ({missing.get('running', 'not on the page')})"
    return None


def standstill(engine: EngineView, rank: str | None) -> Standstill:
    """How long a rank's counters have not moved while something ran on it; 0 s when they just did, or nothing runs."""
    newest = oldest = None
    counts: list[float | None] = []
    running, waiting, longer = 0.0, None, True
    for at, frame in engine.scrapes():
        now, found = _of_rank(frame, rank)
        if newest is None:
            reading = frame.scrape.value
            newest, counts, running = at, found, now
            waiting = _waiting(one for one in (reading.series if reading else ()) if one.rank == rank)
        if now <= 0 or found != counts or counts.count(None) == len(counts):
            longer = False
            break
        oldest = at
    if newest is None or oldest is None:
        return Standstill(rank, 0.0, False, running, waiting)
    return Standstill(rank, newest - oldest, longer and newest > oldest, running, waiting)


def _of_rank(frame: EngineFrame, rank: str | None) -> tuple[float, list[float | None]]:
    """What runs on a rank, and its progress counters, of all models."""
    running, counts = 0.0, []
    reading = frame.scrape.value
    if reading is not None:
        for one in reading.series:
            if one.rank == rank:
                running += one.running or 0.0
                counts += [one.counters.get(name) for name in reading.progress]
    return running, counts


def _waiting(series: Iterable[EngineSeries]) -> float | None:
    known = [one.waiting for one in series if one.waiting is not None]
    return sum(known) if known else None


def _limit_s(view: NodeView, engine: EngineView, busy: list[Standstill], limits: Limits) -> float:
    """How long is too long: longer while there are signs of work without tokens, or while it may just be idle."""
    quick = limits.value(f"{RULE}.no_progress_s") + _lag_s(view, engine, limits)
    too_long = any(still.still_s >= quick for still in busy)
    if too_long and stall_kinds.signs_of_work(engine, limits) and not _broken(view, engine):
        return max(quick, limits.value(f"{RULE}.working_s"))
    return quick


def _lag_s(view: NodeView, engine: EngineView, limits: Limits) -> float:
    """How long its gauges may tell of what is over; a GPU that spins isn't idle."""
    reading = engine.frame.scrape.value
    lag_s = reading.gauges_lag_s if reading is not None else 0.0
    return lag_s if lag_s and not _broken(view, engine) and not stall_kinds.spins(engine, limits) else 0.0


def _state(still: Standstill, limit_s: float, limits: Limits) -> State:
    if still.running > 0 and still.still_s >= limit_s:
        return State.RAISED
    return State.CLEAR if still.still_s <= limits.clear(f"{RULE}.no_progress_s") else State.BETWEEN


# -- a page that doesn't ----------------------------------------------------------


def _unanswered(view: NodeView, engine: EngineView, limits: Limits, lacking: str) -> Iterator[Check]:
    """Without a fresh page only the processes and GPUs can tell.

    Of requests that ran at the last answer; with a process that is stopped, of any.
    """
    reading, age_s = engine.frame.scrape.value, engine.frame.scrape.age_s
    if reading is None or age_s is None:
        yield Check(RULE, engine.subject, State.UNKNOWN, lacking)
        return
    running, broken = sum(one.running or 0.0 for one in reading.series), _broken(view, engine)
    if running > 0:
        found = broken or stall_kinds.front_end_hangs(engine, limits, answered=False)
    else:
        found = stopped_for_s(view, engine)[0] >= limits.value(f"{RULE}.no_progress_s")
    if found:
        still = Standstill(None, age_s, False, running, _waiting(reading.series))
        make = partial(_symptom, view, engine, engine.subject, still, limits, answered=False)
        yield judged(RULE, engine.subject, State.RAISED, "", make, certain=broken)
    else:
        yield Check(RULE, engine.subject, State.UNKNOWN, lacking)


# -- the symptom ------------------------------------------------------------------


def _symptom(
    view: NodeView,
    engine: EngineView,
    subject: Subject,
    still: Standstill,
    limits: Limits,
    answered: bool = True,
) -> Symptom:
    rank = still.rank if subject is not engine.subject else None
    found = stall_kinds.diagnose(view, engine, rank, limits, answered, runs=still.running > 0)
    what = "no token" if answered else "no answer"
    source = f"{engine.kind} /metrics"
    working = stall_kinds.signs_of_work(engine, limits)
    threshold = f"{RULE}.{'working_s' if working else 'no_progress_s'}"
    changed_s = _last_change_s(engine)
    reading = engine.frame.scrape.value
    names = ", ".join(reading.progress if reading else ()).replace("_", " ")
    headline = f"{what} for {still.duration} with {still.running:.0f} running: {found.clause}"
    held = still.running <= 0 and bool(still.waiting) and not _broken(view, engine)
    if held:
        headline = f"{what} for {still.duration} with {still.waiting:.0f} waiting and none running: {found.clause}"
        threshold = f"{RULE}.working_s"
    elif still.running <= 0:
        headline = f"{what} for {still.duration}: {found.clause}, so that no request can be served"
    compared = limit(limits, threshold)
    if answered and threshold == f"{RULE}.no_progress_s":
        compared["threshold"] += _lag_s(view, engine, limits)
    return Symptom(
        id=RULE,
        subject=subject,
        # Requests may also be held back on purpose, as while new weights are loaded.
        severity=Severity.WARNING if found.doubtful or held else Severity.CRITICAL,
        headline=headline,
        evidence=(
            Evidence(
                f"{what} for",
                still.still_s,
                "s",
                f"{source}: {names}" if answered else engine.frame.url,
                text=still.duration if still.longer else None,
                **compared,
            ),
            Evidence(
                "running",
                still.running,
                "",
                source,
                text=None if still.running > 0 or held else "0 at the last step; what came since is not counted",
            ),
            Evidence(
                "waiting", still.waiting, "", source, missing="not on the page" if still.waiting is None else None
            ),
            Evidence(
                "last change of any figure on the page",
                changed_s,
                "s",
                source,
                text=None if changed_s is not None else "before the kept two minutes",
            ),
            *found.evidence,
            *_process_evidence(engine, view.now.host.period_s),
        ),
        causes=found.causes,
        advice=found.advice,
        refuted_by="a step or token is counted in the next scrapes, or two stack dumps ten seconds apart differ",
        next_capture="py-spy",
        agreeing=1 + found.agreeing,
        signals=1 + found.signals,
        chart=engine.series("generation_tokens_per_s"),
        chart_threshold=0.0,
    )


def _process_evidence(engine: EngineView, polled_s: float | None) -> Iterator[Evidence]:
    loads = {load.pid: load for load in engine.processes}
    for p in (engine.target.processes if engine.target else ())[:_MOST_LISTED]:
        cpu = loads[p.pid].cpu_pct if p.pid in loads else None
        text = f"state {state_of(engine, p) or 'unknown'}" + (f", {pct(cpu)} of a core" if cpu is not None else "")
        yield Evidence(label(p), cpu, "%", "/proc", None if cpu is None else polled_s, text=text)


def _last_change_s(engine: EngineView) -> float | None:
    """Seconds since anything on the page moved, to the newest frame; None when nothing did in the kept time."""
    newest: EngineReading | None = None
    last = math.nan
    for at, frame in engine.scrapes():
        reading = frame.scrape.value
        if newest is None:
            newest = reading
        elif reading is None or newest is None or not _alike(reading, newest):
            return engine.past[-1][0] - last
        last = at
    return None


def _alike(one: EngineReading, other: EngineReading) -> bool:
    def figures(reading: EngineReading) -> list[object]:
        return [(s.running, s.waiting, s.kv_usage_pct, dict(s.counters)) for s in reading.series]

    return figures(one) == figures(other)


RULES = (Rule(RULE, "requests run and nothing moves", stalled),)
