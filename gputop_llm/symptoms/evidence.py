"""Small helpers that rules share when they state their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul
from typing import Any

from gputop_llm.model import EngineLive, Latency, Quantile
from gputop_llm.model.symptom import Cause, Evidence
from gputop_llm.symptoms.checks import State
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView, GpuView
from gputop_llm.units import seconds


def gpu_number(gpu: GpuView, name: str, label: str, unit: str, source: str, **more: object) -> Evidence:
    """A GPU figure as its mean over the rules' window."""
    value = gpu.mean(name)
    missing = gpu.missing(name) if value is None else None
    return Evidence(f"{gpu.subject.label} {label}", value, unit, source, 10.0, missing=missing, **more)  # type: ignore[arg-type]


def limit(limits: Limits, name: str) -> dict[str, Any]:
    """The threshold that a number was compared with, as keywords for `Evidence` and the helpers here."""
    return {"threshold": limits.value(name), "threshold_origin": limits.origin(name)}


# What an engine tells of the moment of a scrape; all else is over its window.
_GAUGES = frozenset({"running", "waiting", "kv_usage_pct"})


def engine_number(engine: EngineView, live: EngineLive, name: str, label: str, unit: str, **more: object) -> Evidence:
    """A figure of the engine: over its window, or of the newest scrape."""
    value: float | None = getattr(live, name)
    missing = live.missing.get(name, "not on the page") if value is None else None
    window_s = None if name in _GAUGES else live.window_s
    return Evidence(label, value, unit, f"{engine.kind} /metrics", window_s, missing=missing, **more)  # type: ignore[arg-type]


def gpu_names(gpus: Sequence[GpuView]) -> str:
    """Several GPUs in a few letters: "GPU 3", "GPUs 0, 2", "GPUs 0–7"."""
    if len(gpus) == 1:
        return gpus[0].subject.label
    indices = sorted(gpu.index for gpu in gpus)
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"GPUs {indices[0]}–{indices[-1]}"
    return f"GPUs {', '.join(map(str, indices))}"


def quantile_over(quantile: Quantile | None, raise_s: float, clear_s: float) -> State:
    """Whether a windowed quantile is over a limit, as far as its bucket tells.

    An interpolated value is compared as it is. Where the bucket is too coarse for one, only a bucket that lies
    wholly over the limit raises, and only one wholly under it clears.
    """
    if quantile is None:
        return State.UNKNOWN
    low = high = quantile.value
    if quantile.value is None:
        low, high = quantile.low, quantile.high
    if low is not None and low > raise_s:
        return State.RAISED
    if high is not None and high <= clear_s:
        return State.CLEAR
    return State.BETWEEN


def latency_evidence(
    engine: EngineView, live: EngineLive, name: str, label: str, threshold: float | None, origin: str | None
) -> list[Evidence]:
    """p50, p95, p99 and mean of a latency, with bounds where the bucket is coarse."""
    latency: Latency | None = live.latency.get(name)
    source = f"{engine.kind} /metrics, windowed histogram"
    found = []
    for which in ("p50", "p95", "p99"):
        quantile: Quantile | None = getattr(latency, which) if latency else None
        value = None if quantile is None else quantile.value
        text = None if quantile is None or value is not None else bounds(quantile)
        limit = (threshold, origin) if which == "p95" else (None, None)
        missing = "no observation in the window" if quantile is None else None
        found.append(Evidence(f"{label} {which}", value, "s", source, live.window_s, text, limit[0], limit[1], missing))
    mean = latency.mean_s if latency else None
    found.append(
        Evidence(
            f"{label} mean",
            mean,
            "s",
            source,
            live.window_s,
            missing=None if mean is not None else "no observation in the window",
        )
    )
    return found


def bounds(quantile: Quantile) -> str:
    """A quantile that is known only by its bucket: "≤ 300 ms", "0.30 – 0.50 s", "> 80 s"."""
    if quantile.high is None:
        return f"> {seconds(quantile.low)}"
    if quantile.low <= 0:
        return f"≤ {seconds(quantile.high)}"
    return f"{seconds(quantile.low)} – {seconds(quantile.high)}"


def ranked(*causes: Cause) -> tuple[Cause, ...]:
    """Causes: those that the data speak for, then those they say nothing about; else in the order to check them."""
    return tuple(sorted(causes, key=lambda cause: (not cause.speaks_for, bool(cause.speaks_against))))


def when(condition: bool | None, text: str) -> tuple[str, ...]:
    """The text as what speaks for (or against) a cause, if the condition holds."""
    return (text,) if condition else ()


def slope_per_s(points: Sequence[tuple[float, float]]) -> float | None:
    """Least-squares slope of (time in s, value); None with fewer than three points or no spread in time."""
    spread, together, _ = squares(points) if len(points) >= 3 else (0.0, 0.0, 0.0)
    return together / spread if spread > 0 else None


def squares(points: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Sums of squares about the means of (time, value): of times, of both together, of values."""
    times, values = zip(*points, strict=True)
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    apart_t, apart_v = [t - mean_t for t in times], [v - mean_v for v in values]
    return sum(map(mul, apart_t, apart_t)), sum(map(mul, apart_t, apart_v)), sum(map(mul, apart_v, apart_v))
