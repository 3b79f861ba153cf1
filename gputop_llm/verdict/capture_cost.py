"""What a capture cost its target, as far as it can be seen: in the record, and in what the engine said meanwhile.

The token rate over the seconds around the window is set against the rate before it, whose own swing over equally long
stretches is the noise. Inter-token times are windowed histograms: only the bucket that holds a quantile is known.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.engine import Histogram, Quantile
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.model.pace import EnginePace, PaceSample
from gputop_llm.sampling.quantiles import difference, quantile
from gputop_llm.units import DASH
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.facts import ms, share, span

NOT_RECOVERED = "not-recovered"
COST = "capture-cost"
#: A target must be back at its pace by then.
RECOVERY_S = 10.0
#: The stretch around the window over which the token rate is taken.
_AROUND_S = 5.0
_NS = 1e9
#: Fewer stretches have no noise to speak of.
_FEWEST = 3
#: How much before the deadline the last answer may have come.
_NEARLY_S = 1.0
_LEFT = ", by which CUPTI leaves CUDA calls slower until the process ends (felt where the host is the limit)"
_RESTART = Advice("if the rate is needed back, restart the engine when that suits")
_WITHOUT_CALLS = Advice("after that, `capture --route native --with gpu` leaves less behind")
_NOT_MEASURED = "nobody watched the engine's counters while it was taken"


@dataclass(frozen=True, slots=True)
class Rates:
    """Tokens per second before, around (`around_s` long) and after; `noise` is the standard deviation of stretches of
    about that length before (`stretches` of them). None is unknown.
    """

    before: float | None
    noise: float | None
    stretches: int
    around: float | None
    around_s: float | None
    after: float | None

    @property
    def loss_pct(self) -> float | None:
        """How much of the rate was missing around the window; negative where it was higher."""
        if not self.before or self.around is None:
            return None
        return 100.0 * (1.0 - self.around / self.before)

    @property
    def noise_pct(self) -> float | None:
        """The noise as a share of the rate before."""
        return 100.0 * self.noise / self.before if self.before and self.noise is not None else None


@dataclass(frozen=True, slots=True)
class CaptureCost:
    """What is known. `step_ns` and `usual_ns` are the longest and the median distance of step beginnings in the record;
    `tails` are the inter-token times (before, around, after); `recovered` None is unknown, `watched_s` how long the
    engine was watched after it.
    """

    step_ns: int | None
    usual_ns: float | None
    rates: Rates | None
    tails: tuple[Histogram | None, Histogram | None, Histogram | None]
    recovered: bool | None
    watched_s: float | None


def analyse(context: Context, pace: EnginePace | None) -> CaptureCost:
    """The cost as far as the record and the engine's answers tell it."""
    step_ns, usual_ns = _steps(context)
    if pace is None or not pace.samples:
        return CaptureCost(step_ns, usual_ns, None, (None, None, None), None, None)
    before, around, after = _stretches(pace)
    watched_s = max(0.0, (pace.samples[-1].at_ns - pace.ended_ns) / _NS)
    recovered = pace.recovered
    if recovered is False and watched_s < RECOVERY_S - _NEARLY_S:
        # It was given up too soon to tell.
        recovered = None
    return CaptureCost(
        step_ns,
        usual_ns,
        _rates(before, around, after),
        (_tail(before), _tail(around), _tail(after)),
        recovered,
        watched_s,
    )


def findings(context: Context, pace: EnginePace | None) -> list[Finding]:
    """The cost as a note; a target that did not recover as a finding of its own. Nothing of others' captures."""
    if pace is None and context.timeline.origin.format != "native":
        return []
    cost = analyse(context, pace)
    found = [_note(cost)]
    if cost.recovered is False:
        found.append(_not_recovered(cost, context))
    return found


def _steps(context: Context) -> tuple[int | None, float | None]:
    longest: tuple[int | None, float | None] = None, None
    for marks in context.marks.values():
        apart = np.diff(marks.at[:-1] if marks.open_end else marks.at)
        if len(apart) and (longest[0] is None or int(apart.max()) > longest[0]):
            longest = int(apart.max()), float(np.median(apart))
    return longest


def _stretches(pace: EnginePace) -> tuple[Sequence[PaceSample], Sequence[PaceSample], Sequence[PaceSample]]:
    """The answers before, around and after the window; only those of the engine's life in which it was taken."""
    life = {s.started_s for s in pace.samples if s.at_ns <= pace.began_ns}
    samples = [s for s in pace.samples if not life or s.started_s in life]
    before = [s for s in samples if s.at_ns <= pace.began_ns]
    until = max(pace.ended_ns, pace.began_ns + int(_AROUND_S * _NS))
    inside = [s for s in samples if pace.began_ns < s.at_ns < until]
    beyond = [s for s in samples if s.at_ns >= until]
    # An answer beyond it is better than one that ends before the window does.
    around = [*before[-1:], *inside, *beyond[:1]]
    if not around or around[-1].at_ns < pace.ended_ns:
        around = []
    return before, around, [s for s in samples if s.at_ns >= pace.ended_ns]


def _rates(before: Sequence[PaceSample], around: Sequence[PaceSample], after: Sequence[PaceSample]) -> Rates:
    around_s = (around[-1].at_ns - around[0].at_ns) / _NS if len(around) > 1 else None
    stretches = _swing(before, around_s or _AROUND_S)
    if len(stretches) < _FEWEST:
        # Single answers swing more than longer stretches: the noise reads too high rather than too low.
        stretches = _swing(before, 0.0)
    noise = statistics.stdev(stretches) if len(stretches) >= _FEWEST else None
    return Rates(_rate(before), noise, len(stretches), _rate(around), around_s, _rate(after))


def _rate(samples: Sequence[PaceSample]) -> float | None:
    """Tokens per second from the first to the last answer; None across a restart or without a counter."""
    known = [(s.at_ns, s.tokens) for s in samples if s.tokens is not None]
    if len(known) < 2 or any(later < earlier for (_, earlier), (_, later) in pairwise(known)):
        return None
    (began, first), (ended, last) = known[0], known[-1]
    return (last - first) * _NS / (ended - began) if ended > began else None


def _swing(samples: Sequence[PaceSample], least_s: float) -> list[float]:
    """The rates of successive stretches of at least so many seconds, counted back from the last."""
    found: list[float] = []
    end = len(samples) - 1
    for begin in range(len(samples) - 2, -1, -1):
        if samples[end].at_ns - samples[begin].at_ns >= least_s * _NS:
            rate = _rate(samples[begin : end + 1])
            if rate is not None:
                found.append(rate)
            end = begin
    return found


def _tail(samples: Sequence[PaceSample]) -> Histogram | None:
    known = [s.itl for s in samples if s.itl is not None]
    found = difference(known[-1], known[0]) if len(known) > 1 else None
    return found if found is not None and found.counts and found.counts[-1] > 0 else None


def _note(cost: CaptureCost) -> Finding:
    rates = cost.rates
    said = []
    if rates is not None and rates.loss_pct is not None:
        noise = f"±{rates.noise_pct:.0f} %" if rates.noise_pct is not None else "not known"
        said.append(
            f"token rate {-rates.loss_pct:+.1f} % over the {rates.around_s:.1f} s around it (its own swing: {noise})"
        )
    if cost.step_ns is not None:
        said.append(f"longest step in the record {span(cost.step_ns)} (median {span(cost.usual_ns)})")
    measured = rates is not None and rates.loss_pct is not None
    what = "The capture cost" if measured else "What the capture cost the engine is not measured"
    return Finding(
        id=COST,
        weight=Weight.NOTE,
        headline=f"{what}: {'; '.join(said)}" if said else what,
        facts=(*_record_facts(cost), *_rate_facts(cost), *_tail_facts(cost), _recovery_fact(cost)),
        cause="what recording takes from the process, as far as its own counters and the record show it"
        if measured
        else _NOT_MEASURED
        if rates is None
        else "the engine's token counter was not there, stood still, or began anew",
        advice=(),
        recoverable_pct=None,
        recoverable_formula="none: it ended with the capture",
        confidence="medium: the rate swings by itself, and the record can't show what it did before it began",
        refuted_by="an equally long stretch without a capture that differs as much",
    )


def _record_facts(cost: CaptureCost) -> tuple[Fact, ...]:
    return (
        ms("longest step in the record", cost.step_ns, "max of begin to next begin on the device"),
        ms("usual step in the record", cost.usual_ns, "median of the same"),
    )


def _rate_facts(cost: CaptureCost) -> tuple[Fact, ...]:
    rates = cost.rates
    if rates is None:
        return (Fact("token rate around the window", None, "tokens/s", "", "", "not measured"),)
    swing = f"standard deviation of {rates.stretches} stretches before" if rates.noise is not None else "noise unknown"
    over = f"Δ generated tokens ÷ {rates.around_s:.1f} s around the window" if rates.around_s else "not known"
    return (
        Fact("token rate before", rates.before, "tokens/s", "Δ generated tokens ÷ time", "", swing, rates.noise),
        Fact("token rate around the window", rates.around, "tokens/s", over),
        Fact("token rate after", rates.after, "tokens/s", "Δ generated tokens ÷ time since the window"),
        Fact(
            "token rate missing around the window",
            rates.loss_pct,
            "%",
            "1 − rate around ÷ rate before",
            plus_minus=rates.noise_pct,
        ),
    )


def _tail_facts(cost: CaptureCost) -> tuple[Fact, ...]:
    found = []
    for when, histogram in zip(("before", "around the window", "after"), cost.tails, strict=True):
        if histogram is None:
            continue
        p99, longest = quantile(histogram, 0.99), quantile(histogram, 1.0)
        text = f"p99 {_bucket(p99)}, longest {_bucket(longest)}"
        value = longest.high * 1e3 if longest is not None and longest.high is not None else None
        found.append(
            Fact(
                f"inter-token time {when}, longest at most",
                value,
                "ms",
                "upper bound of the highest bucket with an observation",
                f"{histogram.counts[-1]:,.0f} tokens",
                text,
            )
        )
    return tuple(found) or (Fact("inter-token time", None, "ms", "", "", "not measured"),)


def _bucket(found: Quantile | None) -> str:
    if found is None:
        return DASH
    if found.high is None:
        return f"over {span(found.low * _NS)}"
    return f"{span(found.low * _NS)} to {span(found.high * _NS)}"


def _recovery_fact(cost: CaptureCost) -> Fact:
    text = {True: "back at its pace", False: f"not back within {RECOVERY_S:.0f} s", None: "not known"}[cost.recovered]
    return Fact("watched after the window", cost.watched_s, "s", "last answer − end of the window", "", text)


def _not_recovered(cost: CaptureCost, context: Context) -> Finding:
    native = context.timeline.origin.format == "native"
    with_calls = native and len(context.timeline.calls.start) > 0
    rates = cost.rates
    after, before = (rates.after, rates.before) if rates is not None else (None, None)
    if after is not None and before:
        lost = f": {after:,.0f} tokens/s instead of {before:,.0f} ({share(100 * after / before)})"
    else:
        lost = ""
    return Finding(
        id=NOT_RECOVERED,
        weight=Weight.SEVERE,
        headline=f"The engine was not back at its pace {RECOVERY_S:.0f} s after the capture{lost}",
        facts=(*_rate_facts(cost), *_tail_facts(cost), _recovery_fact(cost)),
        cause=f"the capture{_LEFT if native else ''}, or a change of the load at the same time: "
        "the record can't tell them apart",
        advice=(*((_RESTART,) if native else ()), *((_WITHOUT_CALLS,) if with_calls else ())),
        recoverable_pct=None,
        recoverable_formula="can't be told: it is about the time after the window",
        confidence="medium: one capture, one moment",
        refuted_by="clients that sent less from then on (running and waiting requests fell as well)",
        next_capture="none on this engine until its rate is back"
        f"{', or the load is known to be what changed' if native else ''}: watch it live",
    )
