"""A frame as a JSON object: the documented, stable form (docs/headless.md).

Null is unknown, never 0. Names are the model's own with their units. Raw histograms
are left out: their windows are there. Within a schema number, names may be added,
but none is removed, renamed, or given another meaning.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from gputop_llm import __version__
from gputop_llm.model import (
    EngineFrame,
    EngineReading,
    Frame,
    Gpu,
    GpuNode,
    MigInstance,
    Part,
    Quantile,
    Target,
    TargetList,
)
from gputop_llm.model.symptom import Held, Severity, Symptom

SCHEMA = 1

# What stands elsewhere in the form, or in no form at all.
OMITTED: Mapping[type, frozenset[str]] = {
    EngineReading: frozenset({"series", "progress", "http"}),
    GpuNode: frozenset({"gpus"}),
    TargetList: frozenset({"targets"}),
    Part: frozenset({"value", "at_mono_s"}),
    Gpu: frozenset({"host_available_bytes"}),
}
# Figures that the model works out.
ADDED: Mapping[type, tuple[str, ...]] = {
    Gpu: ("mem_used_pct", "mem_free_bytes", "power_pct"),
    MigInstance: ("mem_used_pct",),
    Target: ("pids", "gpus"),
    Symptom: ("key", "confidence"),
    Held: ("key",),
}
# The only quantiles are of latencies.
RENAMED: Mapping[type, Mapping[str, str]] = {Quantile: {"low": "low_s", "high": "high_s", "value": "value_s"}}

_SHOWN: dict[type, tuple[tuple[str, str], ...]] = {}


def frame_line(frame: Frame) -> str:
    """The frame as one line of JSON in ASCII, without the line's end."""
    return json.dumps(frame_object(frame), allow_nan=False, separators=(",", ":"))


def frame_text(frame: Frame) -> str:
    """The frame as indented JSON in ASCII."""
    return json.dumps(frame_object(frame), allow_nan=False, indent=2)


def frame_object(frame: Frame) -> dict[str, Any]:
    """The frame as plain objects that any JSON writer takes."""
    node, found = frame.gpus.value, frame.targets.value
    return {
        "schema": SCHEMA,
        "version": __version__,
        "at": iso(frame.at_s),
        "at_s": plain(frame.at_s),
        "seq": frame.seq,
        "period_s": plain(frame.period_s),
        "simulated": plain(frame.simulated),
        "focus": plain(frame.focus),
        "notes": plain(frame.notes),
        "symptoms": plain(frame.symptoms),
        "node": plain(node),
        "gpus": None if node is None or (node.problem and not node.gpus) else plain(node.gpus),
        "host": plain(frame.host.value),
        "targets": None if found is None else plain(found.targets),
        "target_notes": None if found is None else plain(found.notes),
        "engines": [_engine(engine) for engine in frame.engines],
        "logs": [
            {"target_key": plain(one.target_key), "source": _source(one.log), "log": plain(one.log.value)}
            for one in frame.logs
        ],
        "sources": {name: _source(getattr(frame, name)) for name in ("gpus", "host", "targets")},
    }


def _engine(engine: EngineFrame) -> dict[str, Any]:
    window = engine.window
    return {
        "target_key": plain(engine.target_key),
        "url": plain(engine.url),
        "scrape": _source(engine.scrape),
        "reading": plain(engine.scrape.value),
        "total": None if window is None else plain(window.total),
        "models": None if window is None else plain(window.models),
        "ranks": None if window is None else plain(window.ranks),
        "http_per_s": None if window is None else plain(window.http_per_s),
        "limits": plain(engine.limits),
    }


def _source(part: Part[Any]) -> dict[str, Any]:
    return {"at": iso(part.at_s), **plain(part)}


def iso(at_s: float | None) -> str | None:
    """Seconds since 1970 as "2026-11-29T16:07:10.123Z"."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """A value of the model as dicts, lists, strings, numbers, booleans and None."""
    if isinstance(value, Severity):
        return value.name.lower()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, str):
        # What was no UTF-8 in a command line: readers of JSON stumble over half a surrogate pair.
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {plain(name): plain(one) for name, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(one) for one in value]
    return {name: plain(getattr(value, attribute)) for name, attribute in shown_fields(type(value))}


def shown_fields(cls: Any) -> tuple[tuple[str, str], ...]:
    """(name in JSON, attribute) of everything that is shown of a class of the model."""
    if cls not in _SHOWN:
        renamed = RENAMED.get(cls, {})
        names = [name for name in cls.__dataclass_fields__ if name not in OMITTED.get(cls, ())]
        _SHOWN[cls] = tuple((renamed.get(name, name), name) for name in (*names, *ADDED.get(cls, ())))
    return _SHOWN[cls]
