"""Healthy samples of one model on one kind of hardware, by load and lengths, and their medians.

Bounded: `MOST_BUCKETS` × `POINTS` samples, about 0.3 MB when all of it is full.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from gputop_llm.model import EngineLive, Latency

LATENCIES = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")
QUANTILES = ("p50", "p95", "p99")
RATES = (
    "generation_tokens_per_s",
    "prompt_tokens_per_s",
    "requests_per_s",
    "steps_per_s",
    "tokens_per_step",
    "kv_usage_pct",
    "prefix_hit_pct",
)
METRICS = (*(f"{name}_{what}_s" for name in LATENCIES for what in (*QUANTILES, "mean")), *RATES)
"""What is learnt; latencies are named as the history's series are ("ttft_p95_s"), the rest as in EngineLive."""

POINTS = 120
"""Samples kept per bucket: 20 minutes of healthy time at one per 10 s."""
LEAST = 12
"""Samples that it takes to say anything: two minutes."""
MOST_BUCKETS = 16
MAX_AGE_S = 7 * 86_400.0

_NAN = math.nan


class BucketKey(NamedTuple):
    """Powers of two: running requests, mean prompt tokens, mean output tokens; None where unknown."""

    load: int
    prompt: int | None
    output: int | None


def bucket_key(running: float, prompt_tokens: float | None, output_tokens: float | None) -> BucketKey:
    """The bucket of a load; `running` is at least 0.5."""
    return BucketKey(_power(running), _known_power(prompt_tokens), _known_power(output_tokens))


def sample_of(live: EngineLive) -> dict[str, float | None]:
    """Every metric of one window."""
    values: dict[str, float | None] = {name: getattr(live, name) for name in RATES}
    for name, latency in live.latency.items():
        values[f"{name}_mean_s"] = latency.mean_s
        for which in QUANTILES:
            values[f"{name}_{which}_s"] = _one_number(latency, which)
    return values


@dataclass
class Bucket:
    """Samples of one bucket, oldest first; unknown values are NaN."""

    at_s: array[float] = field(default_factory=lambda: array("d"))
    values: dict[str, array[float]] = field(default_factory=lambda: {name: array("f") for name in METRICS})
    _medians: dict[str, float | None] = field(default_factory=dict)

    def add(self, at_s: float, sample: Mapping[str, float | None]) -> None:
        """Adds a sample of wall time `at_s`; the oldest and the outdated ones make room."""
        self.at_s.append(at_s)
        for name, column in self.values.items():
            value = sample.get(name)
            column.append(_NAN if value is None else value)
        spare = max(0, len(self.at_s) - POINTS)
        while spare < len(self.at_s) - 1 and at_s - self.at_s[spare] > MAX_AGE_S:
            spare += 1
        if spare:
            for column in (self.at_s, *self.values.values()):
                del column[:spare]
        self._medians.clear()

    def median(self, metric: str) -> float | None:
        """The median of a metric; None with fewer than `LEAST` known samples."""
        if metric not in self._medians:
            known = [v for v in self.values[metric] if not math.isnan(v)]
            self._medians[metric] = median(known) if len(known) >= LEAST else None
        return self._medians[metric]


class Past:
    """All buckets of one model on one kind of hardware."""

    def __init__(self) -> None:
        self.buckets: dict[BucketKey, Bucket] = {}
        self.changed = False
        self._found: dict[tuple[BucketKey, str], tuple[float | None, float | None]] = {}

    def add(self, key: BucketKey, at_s: float, sample: Mapping[str, float | None]) -> None:
        """Adds a healthy sample; the bucket that was last used longest ago makes room."""
        if key not in self.buckets:
            if len(self.buckets) >= MOST_BUCKETS:
                del self.buckets[min(self.buckets, key=lambda k: self.buckets[k].at_s[-1])]
            self.buckets[key] = Bucket()
        self.buckets[key].add(at_s, sample)
        self._found.clear()
        self.changed = True

    def median(self, key: BucketKey, metric: str, generation_tokens_per_s: float | None) -> float | None:
        """What is healthy for a metric at this load; None when too little is known.

        A load that has not been seen yet borrows from its neighbours where that is sound for a latency: from a heavier
        load, at which it was no lower; or from a lighter one, if no more tokens are generated than there:
        then there are more requests because they take longer, and not because there is more work.
        """
        if (key, metric) not in self._found:
            self._found[key, metric] = self._find(key, metric)
        found, most = self._found[key, metric]
        if most is None:
            return found
        more_work = generation_tokens_per_s is None or generation_tokens_per_s > most
        return None if more_work else found

    def _find(self, key: BucketKey, metric: str) -> tuple[float | None, float | None]:
        """(what is healthy, only with so many generated tokens per second at most)."""
        own = self._of(key, metric)
        if own is not None or metric.endswith("_per_s") or not metric.endswith("_s"):
            return own, None
        for step in (1, 2):
            heavier = self._of(key._replace(load=key.load + step), metric)
            if heavier is not None:
                return heavier, None
        for step in (1, 2, 3):
            lighter = key._replace(load=key.load - step)
            found, rate = self._of(lighter, metric), self._of(lighter, "generation_tokens_per_s")
            if found is not None and rate is not None:
                return found, _SAME_WORK * rate
        return None, None

    def _of(self, key: BucketKey, metric: str) -> float | None:
        bucket = self.buckets.get(key)
        return None if bucket is None else bucket.median(metric)

    def plain(self) -> list[dict[str, Any]]:
        """The samples as lists and numbers, for `from_plain`."""
        return [
            {
                **key._asdict(),
                "at_s": [round(at, 1) for at in bucket.at_s],
                "values": {
                    name: [None if math.isnan(v) else float(f"{v:.4g}") for v in column]
                    for name, column in bucket.values.items()
                    if any(not math.isnan(v) for v in column)
                },
            }
            for key, bucket in self.buckets.items()
        ]

    @classmethod
    def from_plain(cls, plain: Any, now_s: float) -> Past:
        """The samples that `plain` holds, without those that are outdated or from the future.

        Raises:
            ValueError: it is not what `plain()` gives.
        """
        past = cls()
        try:
            for one in plain[:MOST_BUCKETS]:
                key = BucketKey(_whole(one["load"]), _whole_or_none(one["prompt"]), _whole_or_none(one["output"]))
                columns = {name: one["values"][name][-POINTS:] for name in METRICS if name in one["values"]}
                rows = zip(one["at_s"][-POINTS:], *columns.values(), strict=True)
                for at_s, *row in rows:
                    if -3600.0 <= now_s - float(at_s) <= MAX_AGE_S:
                        past.add(key, float(at_s), dict(zip(columns, map(_figure, row), strict=True)))
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a baseline: {type(error).__name__}") from error
        past.changed = False
        return past


# A load counts as the same work up to this factor of generated tokens.
_SAME_WORK = 1.25


def _power(value: float) -> int:
    return math.floor(math.log2(max(value, 1.0)))


def _known_power(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else _power(value)


def _one_number(latency: Latency, which: str) -> float | None:
    """The interpolated quantile, else the bucket's upper bound: the careful side for something to compare with."""
    quantile = getattr(latency, which)
    if quantile is None:
        return None
    value: float | None = quantile.high if quantile.value is None else quantile.value
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not -64 <= value <= 64:
        raise ValueError("no power of two")
    return value


def _whole_or_none(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _figure(value: Any) -> float | None:
    if value is None:
        return None
    figure = float(value)
    if not (math.isfinite(figure) and 0 <= figure < 1e30):
        raise ValueError("no figure")
    return figure
