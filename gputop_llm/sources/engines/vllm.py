"""vLLM's /metrics (V0 and V1) as one engine-neutral reading. Pure: samples in, reading out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gputop_llm.model import EngineReading, EngineSeries, Histogram, LoraState
from gputop_llm.sources.engines import vllm_names as names
from gputop_llm.sources.promtext import Labels, Samples

NAME = "vllm"
VERSION_PATH = "/version"
NEEDED = names.NEEDED

_Rows = Mapping[str, Sequence[tuple[Labels, float]]]
_Key = tuple[str | None, str | None]
_Values = dict[_Key, dict[str, float]]


@dataclass(slots=True)
class _Draft:
    """One (model, rank) while its samples are being gathered; `values` holds gauges and counters."""

    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)


class _Drafts(dict[_Key, _Draft]):
    """The drafts of one page, made when first asked for."""

    def __missing__(self, key: _Key) -> _Draft:
        self[key] = draft = _Draft()
        return draft


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set.

    Args:
        samples: the page, parsed for `NEEDED`.
        version: as the server tells it, where known.
    """
    rows = samples.needed
    drafts = _gather(rows)
    config = next((labels for labels, _ in rows.get(names.CACHE_CONFIG, ())), {})
    created = [value for name in names.CREATED for _, value in rows.get(name, ()) if math.isfinite(value)]
    started = [value for _, value in rows.get(names.PROCESS_START, ()) if math.isfinite(value)]
    v1 = any(rank is not None for _, rank in drafts) or "engine" in config
    # Only the shared registry of several processes has neither time.
    several_servers = v1 and not created and not started
    lora = _lora(rows)
    if version in names.SWAPPED_PHASES:
        for draft in drafts.values():
            _swap_phases(draft.histograms)
    series = tuple(_series(key, draft, several_servers) for key, draft in sorted(drafts.items(), key=_order))
    return EngineReading(
        engine=NAME,
        series=series,
        version=version,
        started_s=min(created or started, default=None),
        lora=lora,
        cache_config={name: value for name, value in config.items() if name not in ("engine", "model_name")},
        sleeping=_sleeping(rows),
        notes=_notes(series, version),
        missing=_missing(series, lora, config, v1, several_servers),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=names.PROGRESS,
        http=_http(rows),
    )


def _order(item: tuple[_Key, _Draft]) -> tuple[str, int, str]:
    model, rank = item[0]
    return model or "", int(rank) if rank and rank.isdecimal() else -1, rank or ""


def _gather(rows: _Rows) -> _Drafts:
    drafts = _Drafts()
    for name, metrics in names.VALUES.items():
        for metric in metrics:
            for key, values in _collect(rows, metric, drafts, name).items():
                if math.isfinite(values[""]):
                    drafts[key].values.setdefault(name, values[""])
    for prefix, metrics, label in names.LABELLED:
        for metric in metrics:
            for key, values in _collect(rows, metric, drafts, prefix, label).items():
                for part, value in values.items():
                    if math.isfinite(value):
                        drafts[key].values[_name(prefix, part)] = value
    for name, metrics in names.HISTOGRAMS.items():
        for metric in metrics:
            buckets = _collect(rows, metric + "_bucket", drafts, name, "le")
            if not buckets:
                continue
            counts = _collect(rows, metric + "_count", drafts, name)
            sums = _collect(rows, metric + "_sum", drafts, name)
            for key, by_bound in buckets.items():
                histogram = _histogram(by_bound, counts.get(key, {}).get(""), sums.get(key, {}).get(""))
                if histogram is not None:
                    drafts[key].histograms.setdefault(name, histogram)
    return drafts


def _collect(rows: _Rows, metric: str, drafts: _Drafts, name: str, label: str | None = None) -> _Values:
    """A metric's values by series, and by one more label where asked; of two for the same series the larger.

    Which of the two comes first may change from scrape to scrape, so that "the last one" would jump.
    """
    found: _Values = {}
    for labels, value in rows.get(metric, ()):
        key = labels.get("model_name"), labels.get("engine")
        values = found.get(key)
        if values is None:
            values = found[key] = {}
        part = "" if label is None else labels.get(label, "")
        old = values.get(part)
        if old is not None and old != value:
            if math.isnan(value) or math.isnan(old):
                value = old if math.isnan(value) else value
            else:
                drafts[key].doubtful.add(names.DOUBTS.get(name, name + part))
                value = max(old, value)
        values[part] = value
    return found


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


def _swap_phases(histograms: dict[str, Histogram]) -> None:
    prefill, decode = histograms.pop("prefill", None), histograms.pop("decode", None)
    if decode is not None:
        histograms["prefill"] = decode
    if prefill is not None:
        histograms["decode"] = prefill


def _series(key: _Key, draft: _Draft, several_servers: bool) -> EngineSeries:
    values = draft.values
    running, waiting, usage = (values.pop(name, None) for name in ("running", "waiting", "kv_usage"))
    by_reason = _pop_prefixed(values, "waiting:")
    if (swapped := values.pop("swapped", None)) is not None and waiting is not None:
        by_reason = {"queued": waiting, "swapped": swapped}
        waiting += swapped
    _split_prompt_tokens(values)
    iterations = draft.histograms.pop("iteration", None)
    if iterations is not None and not several_servers:
        values["steps"] = iterations.counts[-1]
    return EngineSeries(
        model=key[0],
        rank=key[1],
        running=running,
        waiting=waiting,
        waiting_by_reason=by_reason,
        kv_usage_pct=None if usage is None else 100.0 * usage,
        counters=values,
        histograms=draft.histograms,
        doubtful=tuple(sorted(draft.doubtful)),
    )


def _split_prompt_tokens(values: dict[str, float]) -> None:
    """Names what was computed, cached and scheduled: prompt_tokens itself counts cached tokens too.

    Scheduled = computed + generated. Newer versions give the same as the sum of their step
    histogram (vllm-project/vllm pull 43346); before, that sum held cached tokens as well.
    """
    sources = _pop_prefixed(values, "source:")
    computed = sources.pop("local_compute", None)
    if computed is not None:
        values["prompt_tokens_computed"] = computed
        if "generation_tokens" in values:
            values["scheduled_tokens"] = computed + values["generation_tokens"]
    if sources:
        values.setdefault("prompt_tokens_cached", sum(sources.values()))


def _pop_prefixed(values: dict[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): values.pop(name) for name in list(values) if name.startswith(prefix)}


def _lora(rows: _Rows) -> LoraState | None:
    """State of the newest series: its value is the time of the last change, and older states linger.

    V0 has the series with max_lora 0 when LoRA is off.
    """
    known = [(value, labels) for labels, value in rows.get(names.LORA, ()) if math.isfinite(value)]
    if not known:
        return None
    _, labels = max(known, key=lambda pair: pair[0])
    most = labels.get("max_lora", "")
    if most == "0":
        return None
    return LoraState(
        running=_adapters(labels.get("running_lora_adapters", "")),
        waiting=_adapters(labels.get("waiting_lora_adapters", "")),
        max_adapters=int(most) if most.isdecimal() else None,
    )


def _adapters(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _http(rows: _Rows) -> dict[str, float]:
    """Answers by status class ("5xx"); a server that does not group them names each status."""
    found: dict[str, float] = {}
    for labels, value in next((rows[name] for name in names.HTTP if rows.get(name)), ()):
        status = labels.get("status", "")
        if status[:1].isdecimal() and math.isfinite(value):
            found[f"{status[0]}xx"] = found.get(f"{status[0]}xx", 0.0) + value
    return found


def _sleeping(rows: _Rows) -> str | None:
    for labels, value in rows.get(names.SLEEP, ()):
        if value == 1 and labels.get("sleep_state") != "awake":
            return labels.get("sleep_state")
    return None


def _notes(series: Sequence[EngineSeries], version: str | None) -> tuple[str, ...]:
    notes = []
    if not series:
        notes.append("no requests served yet: this server shows a series only after its first observation")
    if version in names.SWAPPED_PHASES:
        notes.append(f"vLLM {version} writes prefill and decode time under each other's name: swapped back here")
    doubtful = sorted({name for one in series for name in one.doubtful})
    if doubtful:
        notes.append(f"the endpoint gives two values for one series ({', '.join(doubtful)}): the larger one is shown")
    return tuple(notes)


def _missing(
    series: Sequence[EngineSeries], lora: LoraState | None, config: Labels, v1: bool, several_servers: bool
) -> dict[str, str]:
    """Why each figure that no series can give is absent."""
    have = {name.partition(":")[0] for one in series for name in (*one.counters, *one.histograms)}
    gauges = {"running", "waiting", "kv_usage_pct"}
    have.update(name for one in series for name in gauges if getattr(one, name) is not None)
    have.update(name for name, there in (("lora", lora), ("cache_config", config)) if there)
    if any(one.waiting_by_reason for one in series):
        have.add("waiting_by_reason")
    otherwise = names.NOT_THERE if v1 else names.NOT_YET
    missing = {
        figure: names.WHY_ABSENT.get(figure, otherwise)
        for figure, parts in names.MADE_OF.items()
        if not have.issuperset(parts)
    }
    if several_servers:
        missing.update(dict.fromkeys(("steps_per_s", "tokens_per_step"), names.SEVERAL_SERVERS))
    return missing
