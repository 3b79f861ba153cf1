"""The engine's pace around a capture, from the lines and facts that a bundle keeps of it. Damage reads as unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gputop_llm.model.engine import Histogram
from gputop_llm.model.pace import EnginePace, PaceSample

_MOST_SAMPLES = 2400
_MOST_BUCKETS = 1000
_MAX_NS = 1 << 62


def pace_of(capture: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> EnginePace | None:
    """The pace; None where the capture doesn't say when it was taken, or the engine said nothing."""
    began, ended = _ns(capture.get("touched_mono_ns")), _ns(capture.get("ended_mono_ns"))
    if began is None or ended is None or ended < began:
        return None
    samples: list[PaceSample] = []
    for line in lines:
        at = _ns(line.get("mono_ns"))
        if at is not None and len(samples) < _MOST_SAMPLES:
            samples.append(
                PaceSample(
                    at,
                    _number(line.get("generation_tokens")),
                    _number(line.get("running")),
                    _histogram(line.get("itl")),
                    _number(line.get("started_s")),
                )
            )
    if not samples:
        return None
    samples.sort(key=lambda sample: sample.at_ns)
    recovered = capture.get("recovered")
    return EnginePace(tuple(samples), began, ended, recovered if isinstance(recovered, bool) else None)


def _ns(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _MAX_NS else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e18:
        return None
    return float(value)


def _histogram(told: object) -> Histogram | None:
    """Ascending bounds that end with infinity (None), and cumulative counts that never fall."""
    if not isinstance(told, Mapping):
        return None
    bounds, counts = told.get("bounds"), told.get("counts")
    if not isinstance(bounds, list) or not isinstance(counts, list):
        return None
    if not 0 < len(bounds) == len(counts) <= _MOST_BUCKETS or bounds[-1] is not None:
        return None
    numbers = [_number(bound) for bound in bounds[:-1]]
    observed = [_number(count) for count in counts]
    known = [number for number in numbers if number is not None]
    seen = [count for count in observed if count is not None]
    if len(known) != len(numbers) or len(seen) != len(observed):
        return None
    if known != sorted(set(known)) or seen != sorted(seen) or seen[0] < 0:
        return None
    return Histogram((*known, math.inf), tuple(seen), None)
