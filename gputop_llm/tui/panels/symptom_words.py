"""How a symptom is put in words: severity, time, trend, and numbers with their units."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping

from gputop_llm.model import Frame
from gputop_llm.model.symptom import Evidence, Severity, Symptom, SymptomReport
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, Run, rule, width_of
from gputop_llm.tui.panels.common import LATENCY_NAMES, spaced
from gputop_llm.tui.panels.frame_edges import short_model
from gputop_llm.units import DASH, number, rate, seconds, size, uptime

# Told apart by sign and word; the colour only helps.
_TAGS: Mapping[Severity, tuple[str, str]] = {
    Severity.CRITICAL: ("▲ critical", "badge"),
    Severity.WARNING: ("◆ warning", "warn"),
    Severity.NOTE: ("○ note", "good"),
}
TAG = 11
_TRENDS = {"rising": "↑", "steady": "→", "falling": "↓"}

_FIELDS = {
    "util_pct": "NVML util",
    "mem_util_pct": "memory util",
    "mem_used_pct": "memory used",
    "sm_active_pct": "SM active",
    "sm_occupancy_pct": "SM occupancy",
    "tensor_pct": "tensor",
    "dram_bw_pct": "DRAM",
    "sm_clock_mhz": "SM clock",
    "temp_c": "temperature",
    "power_w": "power",
    "pcie_rx_bytes_per_s": "PCIe in",
    "pcie_tx_bytes_per_s": "PCIe out",
    "nvlink_rx_bytes_per_s": "NVLink in",
    "nvlink_tx_bytes_per_s": "NVLink out",
    "kv_usage_pct": "KV cache",
    "prefix_hit_pct": "prefix hit",
    "generation_tokens_per_s": "out tokens",
    "spec_acceptance_pct": "accepted drafts",
    "failed_pct": "requests that fail",
    "http_5xx_pct": "HTTP 5xx of all answers",
    "running_apart": "running, most less least of a rank",
    "waiting_apart": "waiting, most less least of a rank",
    "scrape_age_s": "age of the metrics page",
    "scrape_took_s": "a scrape takes",
    "steal_pct": "CPU steal",
    "throttled_pct": "throttled periods of the CPU quota",
    "run_wait_pct": "main thread's wait for a CPU",
    "engine_core_pct": "engine-core's main thread",
}
# The longest first.
_UNITS = {
    "_bytes_per_s": "B/s",
    "_tokens_per_s": "tok/s",
    "_per_s": "/s",
    "_bytes": "B",
    "_pct": "%",
    "_mhz": "MHz",
    "_w": "W",
    "_c": "°C",
    "_s": "s",
}


def tag(severity: Severity) -> list[Run]:
    """Severity as sign, word and style, `TAG` cells wide."""
    text, role = _TAGS[severity]
    return [(text, role), (" " * (TAG - len(text)), "")]


def severity_word(severity: Severity) -> str:
    """ "critical", "warning" or "note"."""
    return severity.name.lower()


def arrow(symptom: Symptom) -> str:
    """Where its figure goes, as an arrow; empty when that isn't known."""
    return _TRENDS.get(symptom.trend or "", "")


def lasted(symptom: Symptom, at_s: float) -> float | None:
    """For how many seconds it has held at `at_s`."""
    return None if symptom.since_s is None else max(0.0, at_s - symptom.since_s)


def brief(duration_s: float) -> str:
    """A duration by its largest unit: "42 s", "3 m", "2 h", "4 d"."""
    first, unit, *_ = uptime(duration_s).split()
    return f"{first} {unit}"


def minute(wall_s: float) -> str:
    """Local hour and minute."""
    return time.strftime("%H:%M", time.localtime(wall_s))


def headline(symptom: Symptom, frame: Frame) -> str:
    """Its headline, with the name in front of which of several engines, or of one engine's models, has it."""
    text = printable(symptom.headline)
    if not symptom.subject.key.startswith("engine:"):
        return text
    if len(frame.engines) > 1:
        return f"{subject_name(symptom, frame)}: {text}"
    model = symptom.subject.key.partition("/model:")[2]
    return f"{printable(model)}: {text}" if model else text


def subject_name(symptom: Symptom, frame: Frame) -> str:
    """What has it; of an engine's model path only the last part."""
    label = printable(symptom.subject.label)
    for target in frame.targets.value.targets if frame.targets.value else ():
        whole = f"{target.engine} {target.model or ''}".strip()
        if target.model and symptom.subject.label.startswith(whole):
            return printable(short_model(target.model) + symptom.subject.label[len(whole) :])
    return label


def engine_kind(symptom: Symptom, frame: Frame) -> str | None:
    """Which engine's flags are of use: that of the subject, else of whoever uses the GPU; None if that isn't clear."""
    targets = [t for t in (frame.targets.value.targets if frame.targets.value else ()) if t.engine != "cuda"]
    kind, _, rest = symptom.subject.key.partition(":")
    if kind == "engine":
        found = [t for t in targets if rest == t.key or rest.startswith(f"{t.key}/")]
    elif kind == "gpu":
        found = [t for t in targets if rest.partition("/")[0] in map(str, t.gpus)]
    else:
        found = []
    kinds = {t.engine for t in found or targets}
    return kinds.pop() if len(kinds) == 1 else None


def figure(value: float | None, unit: str) -> str:
    """A number with its unit, as people read it."""
    if value is None or not math.isfinite(value):
        return DASH
    if unit == "%":
        return f"{_decimal(value)} %"
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return size(value)
    if unit == "B/s":
        return rate(value)
    if unit == "/s":
        return f"{number(value)}/s"
    return f"{number(value)} {printable(unit)}".rstrip()


def _decimal(value: float) -> str:
    """One decimal where it says something, two below 1: "98.5", "95", "0.06"."""
    text = f"{value:.2f}" if 0 < abs(value) < 0.95 else f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def evidence_text(evidence: Evidence) -> str:
    """What was seen: the rule's own words where it has some, else the number."""
    return printable(evidence.text) if evidence.text is not None else figure(evidence.value, evidence.unit)


def series_name(series: str) -> str:
    """A history series in words: "GPU 0 SM active", "TTFT p95"."""
    where, _, field = series.rpartition(".")
    words = _FIELDS.get(field)
    if words is None:
        unit = series_unit(series, suffix=True)
        first, _, rest = field.removesuffix(unit).partition("_")
        words = f"{LATENCY_NAMES.get(first, first)} {spaced(rest)}".strip()
    return printable(f"GPU {where.removeprefix('gpu.')} {words}" if where.startswith("gpu.") else words)


def series_unit(series: str, suffix: bool = False) -> str:
    """The unit of a history series, by the end of its name; `suffix` gives that end."""
    for end, unit in _UNITS.items():
        if series.endswith(end):
            return end if suffix else unit
    return ""


def how_many(report: SymptomReport) -> str:
    """How many roots of each severity, and how much follows from them: "1 critical, 2 follow"."""
    roots = [symptom.severity for symptom in report.active if symptom.root is None]
    parts = []
    for severity in sorted(Severity, reverse=True):
        count = roots.count(severity)
        if count:
            plural = "s" if count > 1 and severity is not Severity.CRITICAL else ""
            parts.append(f"{count} {severity_word(severity)}{plural}")
    below = len(report.active) - len(roots)
    if below:
        parts.append(f"{below} follow{'s' if below == 1 else ''}")
    return ", ".join(parts)


def titled(title: Line, width: int, *remarks: Line) -> Line:
    """A rule with the first of the remarks that fits; the shortest one last."""
    room = width - width_of(title) - 8
    return rule(title, width, next((remark for remark in remarks if width_of(remark) <= room), []))


def names(symptoms: Iterable[Symptom]) -> str:
    """The rules of several symptoms, each once."""
    return ", ".join(dict.fromkeys(s.id for s in symptoms))
