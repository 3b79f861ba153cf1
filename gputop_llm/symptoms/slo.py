"""Whether a latency is high: over its SLO, or far over what is usual for this engine.

A value that the user gave is an SLO, and wins over the baseline. Without one, the table's default and the
baseline both count, whichever is passed first.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model import EngineLive, Latency
from gputop_llm.symptoms.checks import State, all_of, any_of
from gputop_llm.symptoms.evidence import bounds, quantile_over
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView
from gputop_llm.units import seconds


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a latency stands. `limit_s` is what it is compared with, `origin` where that came from.

    `usual_s` is the baseline, where it is known and counts.
    """

    state: State
    needs: str
    latency: Latency | None
    limit_s: float
    origin: str
    usual_s: float | None = None

    @property
    def p95(self) -> str:
        """The p95 as people read it, with bounds where it is known by its bucket only."""
        quantile = self.latency.p95 if self.latency else None
        if quantile is None:
            return seconds(None)
        return bounds(quantile) if quantile.value is None else seconds(quantile.value)

    @property
    def p95_s(self) -> float | None:
        """The p95, or the lower bound of its bucket; seconds."""
        quantile = self.latency.p95 if self.latency else None
        if quantile is None:
            return None
        return quantile.low if quantile.value is None else quantile.value

    @property
    def against(self) -> str:
        """What was passed, for a headline: "SLO 1.00 s", "3.1× the usual 200 ms"."""
        if self.origin == "baseline" and self.usual_s and self.p95_s is not None:
            return f"{self.p95_s / self.usual_s:.1f}× the usual {seconds(self.usual_s)}"
        return f"limit {seconds(self.limit_s)}" if self.origin == "default" else f"SLO {seconds(self.limit_s)}"


def judge(engine: EngineView, live: EngineLive, rule: str, name: str, limits: Limits) -> Verdict:
    """How the latency `name` of one model stands against the thresholds of `rule`."""
    threshold = f"{rule}.p95_s"
    slo_s, origin = limits.value(threshold), limits.origin(threshold)
    latency = live.latency.get(name)
    least = limits.value(f"{rule}.observations")
    if live.running == 0 and live.waiting == 0 and (latency is None or latency.count == 0):
        # Nobody waits for anything.
        return Verdict(State.CLEAR, "", latency, slo_s, origin)
    if latency is None or latency.count < least:
        missing = live.missing.get(name, "not on the page")
        if latency is not None:
            missing = f"{latency.count:.0f} in the window, {least:.0f} are needed to judge by"
        return Verdict(State.UNKNOWN, f"{_WORDS[name]} ({missing})", latency, slo_s, origin)
    by_slo = quantile_over(latency.p95, slo_s, limits.clear(threshold))
    usual_s = None if limits.given(threshold) else engine.baseline(engine, live, f"{name}_p95_s")
    needs = f"the p95 of {_WORDS[name]} (the engine tells the mean only)"
    if usual_s is None:
        return Verdict(by_slo, needs, latency, slo_s, origin)
    by_usual = _over_usual(engine, live, latency, usual_s, rule, name, limits)
    if by_slo is not State.RAISED and by_usual in (State.RAISED, State.BETWEEN):
        limit_s, origin = usual_s * limits.value(f"{rule}.baseline_x"), "baseline"
    else:
        limit_s = slo_s
    return Verdict(any_of(by_slo, by_usual), needs, latency, limit_s, origin, usual_s)


_WORDS = {"ttft": "time to first token", "itl": "inter-token latency"}


def _over_usual(
    engine: EngineView, live: EngineLive, latency: Latency, usual_s: float, rule: str, name: str, limits: Limits
) -> State:
    """Over the baseline: the p95, and the mean too.

    A p95 that is interpolated in a wide bucket may double while the latencies move by a hair's breadth across a
    bucket's bound; the mean can't.
    """
    factor = f"{rule}.baseline_x"
    p95 = quantile_over(latency.p95, usual_s * limits.value(factor), usual_s * limits.clear(factor))
    usual_mean_s = engine.baseline(engine, live, f"{name}_mean_s")
    if usual_mean_s is None or latency.mean_s is None:
        return p95
    ratio, mean_x = latency.mean_s / usual_mean_s if usual_mean_s else 0.0, f"{rule}.mean_x"
    if ratio > limits.value(mean_x):
        return p95
    return all_of(p95, State.CLEAR if ratio <= limits.clear(mean_x) else State.BETWEEN)
