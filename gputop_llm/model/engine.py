"""What an engine says of itself, in words that no engine owns.

`EngineReading` is one scrape: gauges, cumulative counters and histograms.
`EngineLive` is what happened over a window: rates and windowed quantiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FAILED_REASONS = ("abort", "error")
"""Reasons for which a request ends that are nobody's wish."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram as scraped.

    `bounds` are the buckets' upper bounds, ascending, the last one inf;
    `counts` are cumulative and as long as `bounds`; `total` is the sum of observations.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float | None


@dataclass(frozen=True, slots=True)
class EngineSeries:
    """One scrape of one model on one engine rank.

    Counter names (cumulative): prompt_tokens, prompt_tokens_computed,
    prompt_tokens_cached, generation_tokens, preemptions, prefix_queries,
    prefix_hits, spec_drafts, spec_draft_tokens, spec_accepted_tokens,
    `spec_accepted_at:<position>`, `finished:<reason>`, steps, scheduled_tokens.
    Histogram names (seconds): ttft, itl, tpot, queue, prefill, decode, e2e; tokens:
    request_prompt_tokens, request_generation_tokens.
    A name that is absent is unknown, not zero; `not_numbers` are those for which the page says NaN or Inf.
    `shared`: not a rank, but what the front end counts for all ranks of the model together; it has no gauges.
    """

    model: str | None
    rank: str | None
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage_pct: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    doubtful: tuple[str, ...] = ()
    not_numbers: tuple[str, ...] = ()
    shared: bool = False


@dataclass(frozen=True, slots=True)
class LoraState:
    """Adapters by state; from the newest info series only."""

    running: tuple[str, ...]
    waiting: tuple[str, ...]
    max_adapters: int | None


@dataclass(frozen=True, slots=True)
class EngineReading:
    """One scrape of one endpoint, or of several that are one engine (a server for each data-parallel rank).

    `problem` is one sentence when the page holds no engine metrics at all; then `series` is empty.
    `missing` maps a field of EngineLive (or "lora", "cache_config", "failures") to why it can't be known. That
    counts even where a counter is there: one that moves only as requests end makes no rate.
    `skipped_lines` counts lines that could not be read; `first_skipped` is the first, made printable.
    `started_s` is the wall time at which the page's counters began, where it says so.
    `progress` names the counters that move while requests run, step by step; empty where
    they only move as requests end, so that standing still says nothing.
    `sleeping` is "awake", or how deep the engine sleeps; None where the page does not say.
    `unread` maps the URL of each page that gave nothing to the reason: its ranks are not in `series`. With
    several pages `started_s` is that of the server that was started last.
    `http` are answers to HTTP requests so far by status class ("5xx"); empty where the page has none.
    `not_narrowed` says why figures of one model only, as was asked for, are figures of all.
    `held_back`: the server waits with its answer for something to tell, so that its time says nothing.
    `gauges_lag_s`: for how long gauges may stay as they were once nothing runs any more.
    """

    engine: str
    series: tuple[EngineSeries, ...] = ()
    version: str | None = None
    started_s: float | None = None
    lora: LoraState | None = None
    cache_config: Mapping[str, str] = field(default_factory=dict)
    sleeping: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    skipped_lines: int = 0
    first_skipped: str | None = None
    progress: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    http: Mapping[str, float] = field(default_factory=dict)
    not_narrowed: str | None = None
    held_back: bool = False
    gauges_lag_s: float = 0.0

    @property
    def asleep(self) -> str | None:
        """How deep the engine sleeps; None where it is awake, or doesn't say."""
        return None if self.sleeping == "awake" else self.sleeping

    @property
    def skipped(self) -> str | None:
        """What of the page could not be read, as one clause; None if all could."""
        if not self.skipped_lines:
            return None
        count = "1 line" if self.skipped_lines == 1 else f"{self.skipped_lines} lines"
        return f"{count} of the page could not be read, the first: {self.first_skipped or 'unknown'}"


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile of a windowed histogram with the bucket that holds it.

    The truth lies in (low, high]; `value` is the linear interpolation inside
    the bucket, None where that would be a guess: the bucket is open-ended, or
    starts at 0, or is wider than a factor of 2.5.
    """

    low: float
    high: float | None
    value: float | None


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency distribution over the window; seconds."""

    count: float
    mean_s: float | None
    p50: Quantile | None
    p95: Quantile | None
    p99: Quantile | None


@dataclass(frozen=True, slots=True)
class SpecDecode:
    """Speculative decoding over the window.

    acceptance = Δaccepted ÷ Δdraft tokens; mean length = 1 + Δaccepted ÷ Δdrafts;
    `by_position_pct[i]` = Δaccepted at position i ÷ Δdrafts.
    """

    acceptance_pct: float | None
    mean_length: float | None
    drafts_per_s: float | None
    by_position_pct: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class EngineLive:
    """An engine (one rank, one model, or all) over the last `window_s` seconds.

    `latency` keys as in EngineSeries.histograms. `restarted` is true while
    the window was cut short by a restart of the engine.
    """

    model: str | None
    rank: str | None
    window_s: float | None = None
    restarted: bool = False
    running: float | None = None
    waiting: float | None = None
    waiting_by_reason: Mapping[str, float] = field(default_factory=dict)
    kv_usage_pct: float | None = None
    requests_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    prompt_computed_tokens_per_s: float | None = None
    prompt_cached_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    steps_per_s: float | None = None
    tokens_per_step: float | None = None
    preemptions_per_s: float | None = None
    prefix_hit_pct: float | None = None
    prefix_hit_lifetime_pct: float | None = None
    finished_per_s: Mapping[str, float] = field(default_factory=dict)
    mean_prompt_tokens: float | None = None
    mean_generation_tokens: float | None = None
    latency: Mapping[str, Latency] = field(default_factory=dict)
    spec: SpecDecode | None = None
    doubtful: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineWindow:
    """`total` over everything on the page; latency in it only when there is one model.

    `http_per_s` are answers of the server per second by status class ("5xx"); empty where that isn't known.
    """

    total: EngineLive
    models: tuple[EngineLive, ...] = ()
    ranks: tuple[EngineLive, ...] = ()
    http_per_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def several_ranks(self) -> bool:
        """Whether there are data-parallel ranks to tell apart; two models of one rank each are none."""
        return len({rank.rank for rank in self.ranks}) > 1
