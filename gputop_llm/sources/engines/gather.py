"""A page's samples to series of models and ranks, by an engine's table of names. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gputop_llm.model import EngineSeries, Histogram
from gputop_llm.sources.promtext import Labels

Rows = Mapping[str, Sequence[tuple[Labels, float]]]
Key = tuple[str | None, str | None]
"""Model and rank."""

_Values = dict[Key, dict[str, float]]


ENDS = ("_bucket", "_sum", "_count")
"""What a histogram's samples end in."""


@dataclass(frozen=True, slots=True)
class Names:
    """An engine's names for our figures: of several for one, newest first, the first that has a value counts.

    Args:
        values: one value per series: running, waiting, kv_usage (a share of 1) and the counters of EngineSeries.
        labelled: (start of our name, their names, label whose value is appended).
        histograms: their names without "_bucket".
        doubts: what is doubtful when two values are given for one series, where that is not the name itself.
        adds: labels that split a figure, so that the parts are added up. Series that differ in other labels
            are the same thing given twice.
    """

    values: Mapping[str, Sequence[str]]
    labelled: Sequence[tuple[str, Sequence[str], str]] = ()
    histograms: Mapping[str, Sequence[str]] = field(default_factory=dict)
    doubts: Mapping[str, str] = field(default_factory=dict)
    adds: Sequence[str] = ()

    @property
    def needed(self) -> frozenset[str]:
        """Sample names as they stand on the page."""
        return frozenset(
            {
                *(name for names in self.values.values() for name in names),
                *(name for _, names, _ in self.labelled for name in names),
                *(name + end for names in self.histograms.values() for name in names for end in ENDS),
            }
        )


@dataclass(slots=True)
class Draft:
    """One (model, rank) while its samples are being gathered; `values` holds gauges and counters."""

    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)
    not_numbers: set[str] = field(default_factory=set)

    def series(self, key: Key, *, shared: bool = False) -> EngineSeries:
        """What was gathered, as it is handed on."""
        values = self.values
        running, waiting, usage = (values.pop(name, None) for name in ("running", "waiting", "kv_usage"))
        return EngineSeries(
            model=key[0],
            rank=key[1],
            running=running,
            waiting=waiting,
            kv_usage_pct=None if usage is None else 100.0 * usage,
            counters=values,
            histograms=self.histograms,
            doubtful=tuple(sorted(self.doubtful)),
            not_numbers=tuple(sorted(self.not_numbers)),
            shared=shared,
        )


class Drafts(dict[Key, Draft]):
    """The drafts of one page, made when first asked for."""

    def __missing__(self, key: Key) -> Draft:
        self[key] = draft = Draft()
        return draft


def counter(*names: str) -> tuple[str, ...]:
    """Counters' names with and without "_total" (OpenMetrics gateways strip it)."""
    return tuple(name + end for name in names for end in ("_total", ""))


def order(item: tuple[Key, object]) -> tuple[str, int, str]:
    """By model, then by the rank's number."""
    model, rank = item[0]
    return model or "", int(rank) if rank and rank.isdecimal() else -1, rank or ""


def gather(rows: Rows, names: Names, key_of: Callable[[Labels], Key]) -> Drafts:
    """All series of a page; what is no number is left out."""
    drafts = Drafts()

    def collect(metric: str, name: str, label: str | None = None) -> _Values:
        return _collect(rows, metric, key_of, names, drafts, name, label)

    for name, metrics in names.values.items():
        for metric in metrics:
            for key, values in collect(metric, name).items():
                if math.isfinite(values[""]):
                    drafts[key].values.setdefault(name, values[""])
                else:
                    drafts[key].not_numbers.add(names.doubts.get(name, name))
    for prefix, metrics, label in names.labelled:
        for metric in metrics:
            for key, values in collect(metric, prefix, label).items():
                for part, value in values.items():
                    if math.isfinite(value):
                        drafts[key].values[_name(prefix, part)] = value
    for name, metrics in names.histograms.items():
        for metric in metrics:
            buckets = collect(metric + "_bucket", name, "le")
            if not buckets:
                continue
            counts, sums = collect(metric + "_count", name), collect(metric + "_sum", name)
            for key, by_bound in buckets.items():
                histogram = _histogram(by_bound, counts.get(key, {}).get(""), sums.get(key, {}).get(""))
                if histogram is not None:
                    drafts[key].histograms.setdefault(name, histogram)
    return drafts


def _collect(
    rows: Rows,
    metric: str,
    key_of: Callable[[Labels], Key],
    names: Names,
    drafts: Drafts,
    name: str,
    label: str | None,
) -> _Values:
    """A metric's values by series, and by one more label where asked; of two for the same series the larger.

    Which of the two comes first may change from scrape to scrape, so that "the last one" would jump.
    """
    found: dict[Key, dict[tuple[str, ...], float]] = {}
    adds = names.adds
    for labels, value in rows.get(metric, ()):
        key = key_of(labels)
        values = found.get(key)
        if values is None:
            values = found[key] = {}
        part = "" if label is None else labels.get(label, "")
        piece = (part, *(labels.get(split, "") for split in adds)) if adds else (part,)
        old = values.get(piece)
        if old is not None and old != value:
            if math.isnan(value) or math.isnan(old):
                value = old if math.isnan(value) else value
            else:
                drafts[key].doubtful.add(names.doubts.get(name, name + part))
                value = max(old, value)
        values[piece] = value
    return {key: _added(values) for key, values in found.items()}


def _added(pieces: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    total: dict[str, float] = {}
    for (part, *_), value in pieces.items():
        total[part] = total[part] + value if part in total else value
    return total


def _histogram(by_bound: Mapping[str, float], count: float | None, total: float | None) -> Histogram | None:
    """Buckets by their bound as a number ("5", "5.0" and "5.00" are one); None if any of it is no number."""
    pairs: dict[float, float] = {}
    for text, value in by_bound.items():
        bound = _bound(text)
        if bound is None or not math.isfinite(value):
            return None
        pairs[bound] = value
    if math.inf not in pairs:
        if count is None or not math.isfinite(count):
            return None
        pairs[math.inf] = count
    bounds = _layout(tuple(sorted(pairs)))
    if total is not None and not math.isfinite(total):
        total = None
    return Histogram(bounds, tuple(pairs[bound] for bound in bounds), total)


@lru_cache(maxsize=2048)
def _bound(text: str) -> float | None:
    try:
        bound = float(text)
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


@lru_cache(maxsize=2048)
def _name(prefix: str, part: str) -> str:
    """The same text for every scrape, as with layouts."""
    return prefix + part


@lru_cache(maxsize=256)
def _layout(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """The same tuple for every histogram of a layout, so that a window of readings holds it once."""
    return bounds


def doubts_note(series: Sequence[EngineSeries]) -> tuple[str, ...]:
    """What is to be said of series that the page gives twice."""
    doubtful = sorted({name for one in series for name in one.doubtful})
    if not doubtful:
        return ()
    return (f"the endpoint gives two values for one series ({', '.join(doubtful)}): the larger one is shown",)


_NO_NUMBER = "the page gives no number for it (NaN or Inf)"
# What each figure of EngineLive is made of.
MADE_OF = {
    "running": ("running",),
    "waiting": ("waiting",),
    "waiting_by_reason": ("waiting_by_reason",),
    "kv_usage_pct": ("kv_usage_pct",),
    "requests_per_s": ("finished",),
    "finished_per_s": ("finished",),
    "prompt_tokens_per_s": ("prompt_tokens",),
    "prompt_computed_tokens_per_s": ("prompt_tokens_computed",),
    "prompt_cached_tokens_per_s": ("prompt_tokens_cached",),
    "generation_tokens_per_s": ("generation_tokens",),
    "steps_per_s": ("steps",),
    "tokens_per_step": ("steps", "scheduled_tokens"),
    "preemptions_per_s": ("preemptions",),
    "prefix_hit_pct": ("prefix_queries", "prefix_hits"),
    "prefix_hit_lifetime_pct": ("prefix_queries", "prefix_hits"),
    "mean_prompt_tokens": ("request_prompt_tokens",),
    "mean_generation_tokens": ("request_generation_tokens",),
    "spec": ("spec_draft_tokens", "spec_accepted_tokens"),
    "lora": ("lora",),
    "cache_config": ("cache_config",),
    **{name: (name,) for name in ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")},
}


def missing(
    series: Sequence[EngineSeries], why: Mapping[str, str], otherwise: str, also: Sequence[str] = ()
) -> dict[str, str]:
    """Why each figure that no series can give is absent.

    Args:
        why: the reason by figure.
        otherwise: that of all others.
        also: what is there beside the series ("lora", "cache_config").
    """
    have = {name.partition(":")[0] for one in series for name in (*one.counters, *one.histograms)}
    gauges = ("running", "waiting", "kv_usage_pct")
    have.update(name for one in series for name in gauges if getattr(one, name) is not None)
    have.update(also)
    if any(one.waiting_by_reason for one in series):
        have.add("waiting_by_reason")
    not_numbers = {name for one in series for name in one.not_numbers}
    return {
        figure: _NO_NUMBER if not_numbers.intersection(parts) else why.get(figure, otherwise)
        for figure, parts in MADE_OF.items()
        if not have.issuperset(parts)
    }
