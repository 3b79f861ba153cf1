"""A history of scrapes to what happened in the last seconds, per rank, per model and in all.

Counters are only ever compared inside one life of the engine. When one of them falls, the page's
start time changes or a histogram gets other buckets, the engine was restarted: the window starts
anew, so that no rate is ever negative and none reaches over a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gputop_llm.model import EngineLive, EngineReading, EngineSeries, EngineWindow
from gputop_llm.sampling import live, quantiles

# A window keeps at most about this many readings, however often the engine is polled.
_MAX_KEPT = 50

_NEEDS_TWO = "needs two scrapes"
_AFTER_RESTART = "the engine was restarted: needs two scrapes since then"
_PER_MODEL = "several models on this page: see each of them"

_Key = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class _Scrape:
    """One reading that is kept; `series` by (model, rank)."""

    at_s: float
    series: Mapping[_Key, EngineSeries]
    http: Mapping[str, float]


class EngineTracker:
    """Turns the readings of one endpoint into windows; keeps at most one window of them.

    Args:
        window_s: how far back rates and quantiles look, in seconds.
    """

    def __init__(self, window_s: float = 10.0) -> None:
        self.window_s = window_s
        self._kept: deque[_Scrape] = deque()
        self._started_s: float | None = None
        self._restarted_at_s: float | None = None

    def push(self, reading: EngineReading, at_mono_s: float) -> EngineWindow:
        """The window that ends with this reading.

        Rates are over the newest `window_s` seconds: since the kept reading nearest to that long
        ago, or since the oldest one while there is less. A page without metrics is not kept.
        """
        if reading.problem is not None:
            return EngineWindow(EngineLive(None, None, missing=dict.fromkeys(live.FIGURES, reading.problem)))
        now = _Scrape(at_mono_s, {(one.model, one.rank): one for one in reading.series}, reading.http)
        if self._is_restart(reading, now):
            self._kept.clear()
            self._restarted_at_s = at_mono_s
        if reading.started_s is not None:
            self._started_s = reading.started_s
        past = self._past(at_mono_s)
        self._keep(now)
        since = self._restarted_at_s
        restarted = since is not None and at_mono_s - since < self.window_s
        return replace(_window(reading, now, past, restarted), http_per_s=_http_per_s(now, past))

    def _is_restart(self, reading: EngineReading, now: _Scrape) -> bool:
        if not self._kept:
            return False
        if reading.started_s is not None and self._started_s not in (None, reading.started_s):
            return True
        before = self._kept[-1].series
        if before and not now.series:
            # V0 shows no series before its first request: this is a young server.
            return True
        return any(key in before and _fell(one, before[key]) for key, one in now.series.items())

    def _past(self, at_s: float) -> _Scrape | None:
        """The kept reading nearest to one window ago; those before it are let go."""
        start = at_s - self.window_s
        while len(self._kept) > 1 and self._kept[1].at_s <= start:
            self._kept.popleft()
        nearest = [scrape for scrape in list(self._kept)[:2] if scrape.at_s < at_s]
        return min(nearest, key=lambda scrape: abs(scrape.at_s - start), default=None)

    def _keep(self, now: _Scrape) -> None:
        if len(self._kept) > 1 and self._kept[-1].at_s - self._kept[-2].at_s < self.window_s / _MAX_KEPT:
            self._kept.pop()
        self._kept.append(now)


def _fell(new: EngineSeries, old: EngineSeries) -> bool:
    return any(value < old.counters.get(name, value) for name, value in new.counters.items()) or any(
        quantiles.fell(histogram, old.histograms.get(name, histogram)) for name, histogram in new.histograms.items()
    )


def _http_per_s(now: _Scrape, past: _Scrape | None) -> dict[str, float]:
    """Answers per second by status class; a class that was not on the page had none. Empty while it isn't known."""
    if past is None or not past.http or any(now.http.get(status, 0.0) < old for status, old in past.http.items()):
        return {}
    return {status: (count - past.http.get(status, 0.0)) / (now.at_s - past.at_s) for status, count in now.http.items()}


def _window(reading: EngineReading, now: _Scrape, past: _Scrape | None, restarted: bool) -> EngineWindow:
    added = {key: live.change(one, past.series.get(key) if past else None) for key, one in now.series.items()}

    def figures(model: str | None, rank: str | None, keys: Sequence[_Key]) -> EngineLive:
        return live.figures(
            model,
            rank,
            [now.series[key] for key in keys],
            live.together([added[key] for key in keys]),
            None if past is None else now.at_s - past.at_s,
            restarted=restarted,
            missing=reading.missing,
            needs_two=_AFTER_RESTART if restarted else _NEEDS_TWO,
        )

    each = {key: figures(*key, [key]) for key in now.series}
    ranks = tuple(each[key] for key, one in now.series.items() if not one.shared)
    if reading.unread:
        # A sum without some of the ranks would pass for that of all.
        why = f"its page {next(iter(reading.unread))} can't be read"
        unknown = EngineLive(None, None, restarted=restarted, missing=dict.fromkeys(live.FIGURES, why))
        models = tuple(replace(unknown, model=model) for model in dict.fromkeys(model for model, _ in now.series))
        return EngineWindow(models[0] if len(models) == 1 else unknown, models, ranks)
    by_model: dict[str | None, list[_Key]] = {}
    for key in now.series:
        by_model.setdefault(key[0], []).append(key)
    models = tuple(
        replace(each[keys[0]], rank=None) if len(keys) == 1 else figures(model, None, keys)
        for model, keys in by_model.items()
    )
    if len(models) == 1:
        return EngineWindow(models[0], models, ranks)
    total = figures(None, None, list(now.series))
    if len(models) > 1:
        # Quantiles of two models' requests together would stand for neither.
        hidden = dict.fromkeys(total.latency, _PER_MODEL)
        total = replace(total, latency={}, missing={**total.missing, **hidden})
    return EngineWindow(total, models, ranks)
