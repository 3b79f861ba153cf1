"""Two scrapes of some series, one window apart, to the figures of that window.

All functions are pure. A sum over ranks or models is unknown when any part of it is.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gputop_llm.model import EngineLive, EngineSeries, Histogram, Latency, SpecDecode
from gputop_llm.sampling import quantiles

LATENCIES = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")

_RATES = {
    "prompt_tokens_per_s": "prompt_tokens",
    "prompt_computed_tokens_per_s": "prompt_tokens_computed",
    "prompt_cached_tokens_per_s": "prompt_tokens_cached",
    "generation_tokens_per_s": "generation_tokens",
    "steps_per_s": "steps",
    "preemptions_per_s": "preemptions",
}
_MEANS = {"mean_prompt_tokens": "request_prompt_tokens", "mean_generation_tokens": "request_generation_tokens"}

# Which counters or histograms a figure over time is made of; "finished:" stands for all of them.
_MADE_OF = {
    **{figure: (name,) for figure, name in (*_RATES.items(), *_MEANS.items())},
    **{name: (name,) for name in LATENCIES},
    "requests_per_s": ("finished:",),
    "finished_per_s": ("finished:",),
    "tokens_per_step": ("scheduled_tokens", "steps"),
    "prefix_hit_pct": ("prefix_hits", "prefix_queries"),
    "spec": ("spec_draft_tokens", "spec_accepted_tokens"),
}
_NOW = {
    **{name: (name,) for name in ("running", "waiting", "waiting_by_reason", "kv_usage_pct")},
    "prefix_hit_lifetime_pct": ("prefix_hits", "prefix_queries"),
}
FIGURES = (*_NOW, *_MADE_OF)

_NOTHING_IN_WINDOW = {
    "tokens_per_step": "no engine step in the window",
    "prefix_hit_pct": "no prompt was looked up in the window",
    "prefix_hit_lifetime_pct": "no prompt was looked up yet",
    "mean_prompt_tokens": "no request finished in the window",
    "mean_generation_tokens": "no request finished in the window",
}
_NEW_SERIES = "a series of it is new on the page: needs two scrapes"
_BUCKETS_DIFFER = "the parts of the sum have different buckets"
_ABSENT = "not on the page"


@dataclass(slots=True)
class Change:
    """What one series, or several together, added over the window.

    `fresh` names counters and histograms that are there now and were not at the window's start.
    """

    counters: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, list[Histogram]] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)


def change(new: EngineSeries, old: EngineSeries | None) -> Change:
    """What a series added since `old`."""
    added = Change()
    before = {} if old is None else old.counters
    for name, value in new.counters.items():
        if name in before and value >= before[name]:
            added.counters[name] = value - before[name]
        else:
            added.fresh.add(name)
    for name, histogram in new.histograms.items():
        earlier = None if old is None else old.histograms.get(name)
        difference = None if earlier is None else quantiles.difference(histogram, earlier)
        if difference is None:
            added.fresh.add(name)
        else:
            added.histograms[name] = [difference]
    return added


def together(changes: Sequence[Change]) -> Change:
    """What several series added."""
    if len(changes) == 1:
        return changes[0]
    total = Change()
    for part in changes:
        total.fresh |= part.fresh
        for name, value in part.counters.items():
            total.counters[name] = total.counters.get(name, 0.0) + value
        for name, histograms in part.histograms.items():
            total.histograms.setdefault(name, []).extend(histograms)
    for name in total.fresh:
        total.counters.pop(name, None)
        total.histograms.pop(name, None)
    return total


def figures(
    model: str | None,
    rank: str | None,
    series: Sequence[EngineSeries],
    added: Change,
    window_s: float | None,
    *,
    restarted: bool,
    missing: Mapping[str, str],
    needs_two: str,
) -> EngineLive:
    """The figures of one rank, one model or everything.

    Args:
        model, rank: whose they are; None for a sum over several.
        series: the newest scrape of each part.
        added: what they added together over `window_s` seconds; None while there is one scrape only.
        restarted: a restart cut the window short.
        missing: what the page can't say, with the reason; no rate is made of such a counter.
        needs_two: the reason for figures over time while there is one scrape only.
    """
    counts = added.counters
    rates = {
        figure: None if figure in missing else _rate(counts.get(name), window_s) for figure, name in _RATES.items()
    }
    means = {figure: _mean(added.histograms.get(name, ())) for figure, name in _MEANS.items()}
    finished = _finished(added, window_s)
    latency, differing = _latency(added.histograms)
    # The front end has no gauges; what it lacks is no unknown part of a sum.
    gauged = [one for one in series if not one.shared] or series
    live = EngineLive(
        model=model,
        rank=rank,
        window_s=window_s,
        restarted=restarted,
        running=_sum([one.running for one in gauged]),
        waiting=_sum([one.waiting for one in gauged]),
        waiting_by_reason=_by_reason(series),
        kv_usage_pct=max((one.kv_usage_pct for one in series if one.kv_usage_pct is not None), default=None),
        requests_per_s=sum(finished.values()) if finished else None,
        finished_per_s=finished,
        tokens_per_step=_ratio(counts.get("scheduled_tokens"), counts.get("steps")),
        prefix_hit_pct=_pct(counts.get("prefix_hits"), counts.get("prefix_queries")),
        prefix_hit_lifetime_pct=_pct(
            _sum([one.counters.get("prefix_hits") for one in gauged]),
            _sum([one.counters.get("prefix_queries") for one in gauged]),
        ),
        latency=latency,
        spec=_spec(counts, window_s),
        doubtful=_doubtful({name for one in series for name in one.doubtful}),
        missing={},
        **rates,
        **means,
    )
    return _explained(live, added.fresh, differing, missing, needs_two)


def _explained(
    live: EngineLive, fresh: set[str], differing: set[str], missing: Mapping[str, str], needs_two: str
) -> EngineLive:
    """The same figures, with a reason for each that is unknown."""
    reasons = dict(missing)
    for figure in FIGURES:
        known = figure in live.latency if figure in LATENCIES else getattr(live, figure) not in (None, {})
        if known or figure in reasons:
            continue
        if live.window_s is None and figure in _MADE_OF:
            reasons[figure] = needs_two
        elif any(_is_part(name, part) for part in _MADE_OF.get(figure, ()) for name in fresh):
            reasons[figure] = _NEW_SERIES
        elif figure in differing:
            reasons[figure] = _BUCKETS_DIFFER
        else:
            reasons[figure] = _NOTHING_IN_WINDOW.get(figure, _ABSENT)
    return replace(live, missing=reasons)


def _doubtful(names: set[str]) -> tuple[str, ...]:
    """The figures that are made of doubtful gauges, counters or histograms."""
    return tuple(
        figure
        for figure, parts in {**_NOW, **_MADE_OF}.items()
        if any(_is_part(name, part) for part in parts for name in names)
    )


def _is_part(name: str, part: str) -> bool:
    return name.startswith(part) if part.endswith(":") else name == part


def _rate(added: float | None, window_s: float | None) -> float | None:
    return added / window_s if added is not None and window_s else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _pct(part: float | None, whole: float | None) -> float | None:
    ratio = _ratio(part, whole)
    return None if ratio is None else 100.0 * ratio


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(histograms: Sequence[Histogram]) -> float | None:
    all_of_it = quantiles.merged(histograms)
    return None if all_of_it is None else quantiles.mean(all_of_it)


def _by_reason(series: Sequence[EngineSeries]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for one in series:
        for reason, value in one.waiting_by_reason.items():
            sums[reason] = sums.get(reason, 0.0) + value
    return sums


def _finished(added: Change, window_s: float | None) -> dict[str, float]:
    if not window_s or any(name.startswith("finished:") for name in added.fresh):
        return {}
    return {
        sys.intern(name.removeprefix("finished:")): value / window_s
        for name, value in added.counters.items()
        if name.startswith("finished:")
    }


def _latency(added: Mapping[str, Sequence[Histogram]]) -> tuple[dict[str, Latency], set[str]]:
    """Latencies by name, and the names whose parts can't be merged."""
    found: dict[str, Latency] = {}
    differing: set[str] = set()
    for name in LATENCIES:
        if name in added:
            all_of_it = quantiles.merged(added[name])
            if all_of_it is None:
                differing.add(name)
            else:
                found[name] = quantiles.latency(all_of_it)
    return found, differing


def _spec(counts: Mapping[str, float], window_s: float | None) -> SpecDecode | None:
    if "spec_draft_tokens" not in counts or "spec_accepted_tokens" not in counts:
        return None
    drafts, accepted = counts.get("spec_drafts"), counts["spec_accepted_tokens"]
    per_draft = _ratio(accepted, drafts)
    positions = {
        int(text): value
        for name, value in counts.items()
        if name.startswith("spec_accepted_at:") and (text := name.partition(":")[2]).isdecimal()
    }
    return SpecDecode(
        acceptance_pct=_pct(accepted, counts["spec_draft_tokens"]),
        mean_length=None if per_draft is None else 1.0 + per_draft,
        drafts_per_s=_rate(drafts, window_s),
        by_position_pct=tuple(100.0 * positions[i] / drafts for i in sorted(positions)) if drafts else (),
    )
