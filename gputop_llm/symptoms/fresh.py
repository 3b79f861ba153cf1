"""Whether an engine's page says anything about now."""

from __future__ import annotations

from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView
from gputop_llm.units import uptime

# A page that is asked for seldom may be that many periods old.
_PERIODS = 2.5


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
