"""Whether an engine's page says anything about now."""

from __future__ import annotations

from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView
from gputop_llm.units import uptime

# A page that is asked for seldom may be that many periods old.
_PERIODS = 2.5
# Nothing has moved for so long: gauges that lag may be old.
_STILL_S = 3.0


def oldest_s(engine: EngineView, limits: Limits) -> float:
    """How old a scrape may be before it is too old to judge by, in seconds."""
    period_s = engine.frame.scrape.period_s or 0.0
    if engine.frame.scrape.error is not None:
        # One that fails, or hangs, is asked more seldom too; that makes it no fresher.
        period_s = min((frame.scrape.period_s or 0.0 for _, frame in engine.past), default=period_s)
    return max(limits.value("metrics-stale.age_s"), _PERIODS * period_s)


def unreadable(engine: EngineView, limits: Limits) -> str | None:
    """What a rule on the engine's own figures lacks, in words; None when there is a page that is fresh enough."""
    if ("unreadable", limits) not in engine.memo:
        engine.memo["unreadable", limits] = _unreadable(engine, limits)
    found: str | None = engine.memo["unreadable", limits]
    return found


def _unreadable(engine: EngineView, limits: Limits) -> str | None:
    scrape = engine.frame.scrape
    if scrape.value is None or engine.live is None:
        return f"the engine's metrics ({scrape.error or 'not scraped yet'})"
    if scrape.value.problem is not None:
        return f"the engine's metrics ({scrape.value.problem})"
    if scrape.age_s is not None and scrape.age_s > oldest_s(engine, limits):
        return f"a fresh metrics page (the last one is {uptime(scrape.age_s)} old)"
    return None


def unmoved_s(engine: EngineView) -> tuple[float, bool]:
    """How long no progress was counted, whatever runs, and whether it was so when the kept time began."""
    newest = oldest = None
    counts: list[float | None] = []
    for at, frame in engine.scrapes():
        reading = frame.scrape.value
        found = [one.counters.get(name) for one in reading.series for name in reading.progress] if reading else []
        if newest is None:
            newest, counts = at, found
        elif found != counts:
            return newest - (oldest or newest), False
        oldest = at
    return (newest - oldest if newest is not None and oldest is not None else 0.0), True


def gauges_may_be_old(engine: EngineView) -> bool:
    """Whether what the page says of now may be of a while ago: the engine may have become idle since."""
    reading = engine.frame.scrape.value
    if reading is None or not reading.gauges_lag_s:
        return False
    if "gauges may be old" not in engine.memo:
        engine.memo["gauges may be old"] = _STILL_S <= unmoved_s(engine)[0] <= reading.gauges_lag_s + _STILL_S
    found: bool = engine.memo["gauges may be old"]
    return found
