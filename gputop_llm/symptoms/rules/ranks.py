"""rank-imbalance: one data-parallel rank has much more to do than another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, all_of, any_of, at_least, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.fresh import unreadable
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import MEAN_S, EngineView, NodeView
from gputop_llm.units import number

RULE = "rank-imbalance"


@dataclass(frozen=True, slots=True)
class Spread:
    """How one figure differs between ranks, as means over `MEAN_S`; `means` by rank."""

    name: str
    means: dict[str, float]

    @property
    def most(self) -> str:
        """The rank that has the most."""
        return max(self.means, key=lambda rank: self.means[rank])

    @property
    def least(self) -> str:
        """The rank that has the least."""
        return min(self.means, key=lambda rank: self.means[rank])

    @property
    def difference(self) -> float:
        """Most less least."""
        return self.means[self.most] - self.means[self.least]

    @property
    def ratio(self) -> float:
        """Most ÷ least; infinite when the least has nothing."""
        least = self.means[self.least]
        return self.means[self.most] / least if least > 0 else float("inf") if self.difference > 0 else 1.0

    @property
    def times(self) -> str:
        """The ratio as people read it."""
        return f"{self.ratio:.1f}×" if self.means[self.least] > 0 else f"{number(self.means[self.most])} to nothing"


def rank_imbalance(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Running or waiting differ by more than the ratio between the ranks of one engine."""
    for engine in view.engines:
        ranks = sorted({live.rank for live in engine.ranks if live.rank is not None}, key=_order)
        if len(ranks) < 2:
            continue
        if lacking := unreadable(engine, limits):
            yield Check(RULE, engine.subject, State.UNKNOWN, lacking)
            continue
        spreads = [spread for name in ("running", "waiting") if (spread := _spread(engine, name, ranks)) is not None]
        if not spreads:
            why = engine.ranks[0].missing.get("running", "not on the page")
            yield Check(RULE, engine.subject, State.UNKNOWN, f"running and waiting of each rank ({why})")
            continue
        states = [
            all_of(
                over(spread.ratio, limits, f"{RULE}.ratio"),
                at_least(spread.difference, limits, f"{RULE}.requests"),
            )
            for spread in spreads
        ]
        worst = spreads[0]
        if len(spreads) > 1 and (states[0] is State.CLEAR or (states[1] is State.RAISED is not states[0])):
            worst = spreads[1]
        make = partial(_symptom, engine, spreads, worst, limits)
        yield judged(RULE, engine.subject, any_of(*states), "", make)


def _order(rank: str) -> tuple[int, str]:
    return (int(rank) if rank.isdecimal() else -1, rank)


def _spread(engine: EngineView, name: str, ranks: list[str]) -> Spread | None:
    """The means of a gauge by rank, of all models together; None when one of them is unknown."""
    known: dict[str, list[float]] = {rank: [] for rank in ranks}
    for _, frame in engine.scrapes(MEAN_S):
        now: dict[str, float] = {}
        for live in frame.window.ranks if frame.window else ():
            value = getattr(live, name)
            if live.rank in known and value is not None:
                now[live.rank] = now.get(live.rank, 0.0) + value
        for rank, value in now.items():
            known[rank].append(value)
    return Spread(name, {rank: fmean(values) for rank, values in known.items()}) if all(known.values()) else None


def _symptom(engine: EngineView, spreads: list[Spread], worst: Spread, limits: Limits) -> Symptom:
    most, least = worst.most, worst.least
    source = f"{engine.kind} /metrics, mean"
    finish = {live.rank: live.requests_per_s for live in engine.ranks}
    tokens = {live.rank: live.generation_tokens_per_s for live in engine.ranks}
    served, slower = finish.get(most), finish.get(least)
    sent_more = served is not None and slower is not None and served > slower * limits.clear(f"{RULE}.ratio")
    as_many = served is not None and slower is not None and not sent_more
    told = f"rank {most} finishes {number(served)}/s, rank {least} {number(slower)}/s"
    return Symptom(
        id=RULE,
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=f"DP rank {most} has {number(worst.means[most])} {worst.name}, "
        f"rank {least} {number(worst.means[least])} ({worst.times})",
        evidence=(
            Evidence(
                f"{worst.name}, most ÷ least",
                worst.ratio if worst.means[least] > 0 else None,
                "",
                source,
                MEAN_S,
                text=None if worst.means[least] > 0 else worst.times,
                **limit(limits, f"{RULE}.ratio"),
            ),
            Evidence(
                f"{worst.name}, most less least",
                worst.difference,
                "",
                source,
                MEAN_S,
                **limit(limits, f"{RULE}.requests"),
            ),
            *(
                Evidence(f"DP rank {rank} {spread.name}", value, "", source, MEAN_S)
                for spread in spreads
                for rank, value in spread.means.items()
            ),
            *(
                Evidence(
                    f"DP rank {live.rank} {label}",
                    value,
                    unit,
                    f"{engine.kind} /metrics",
                    live.window_s,
                    missing=None if value is not None else "not on the page",
                )
                for live in engine.ranks
                for label, unit, value in (
                    ("finishes", "/s", finish.get(live.rank)),
                    ("generated", "tok/s", tokens.get(live.rank)),
                )
            ),
        ),
        causes=ranked(
            Cause(
                "the router sends one rank more requests than another",
                when(sent_more, told),
                when(as_many, told),
            ),
            Cause(
                "sticky sessions or prefix-aware routing: a few busy clients stay on one rank",
                when(sent_more, told),
            ),
            Cause(
                "one rank is slower, or has the longer requests: as many come, and more are still there",
                when(as_many, told),
                when(sent_more, told),
            ),
        ),
        advice=(
            Advice(
                "balance by what is running and waiting, not in turn",
                {
                    "vllm": "no --data-parallel-external-lb or --data-parallel-hybrid-lb: one front end then balances",
                    "sglang": "--load-balance-method total_tokens (before: shortest_queue)",
                    "trtllm": "attention_dp_config.enable_balance: true",
                },
            ),
            Advice("loosen sticky sessions at the router, or spread the busiest clients by hand"),
        ),
        refuted_by="the ranks even out within a minute under the same traffic: a few long requests",
        agreeing=1 + sum(over(s.ratio, limits, f"{RULE}.ratio") is State.RAISED for s in spreads if s is not worst),
        signals=len(spreads),
        chart=engine.series(f"{worst.name}_apart"),
        chart_threshold=limits.value(f"{RULE}.requests"),
    )


RULES = (Rule(RULE, "data-parallel ranks share the work unevenly", rank_imbalance),)
