"""Everything that an engine says of itself: totals beside DP ranks and models."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gputop_llm.model import EngineFrame, EngineLive, EngineReading, Frame
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, cells, fit, pad, rule, wrapped
from gputop_llm.tui.panels.common import (
    LATENCY_NAMES,
    clock_text,
    count_text,
    engine_name,
    period_text,
    quantile_text,
    rank_name,
    small_pct,
    spaced,
)
from gputop_llm.tui.panels.engine_log import log_lines
from gputop_llm.tui.panels.gpu_details import reasons_text
from gputop_llm.tui.panels.limits import limit_lines
from gputop_llm.units import DASH, number, pct, seconds, uptime

LABEL = 26
COLUMN = 13

FIELDS: tuple[tuple[str, str, Callable[[EngineLive], str]], ...] = (
    ("running", "requests running", lambda e: number(e.running)),
    ("waiting", "requests waiting", lambda e: number(e.waiting)),
    ("kv_usage_pct", "KV cache used", lambda e: small_pct(e.kv_usage_pct)),
    ("requests_per_s", "requests finished /s", lambda e: number(e.requests_per_s)),
    ("generation_tokens_per_s", "generated tokens /s", lambda e: number(e.generation_tokens_per_s)),
    ("prompt_tokens_per_s", "prompt tokens /s", lambda e: number(e.prompt_tokens_per_s)),
    ("prompt_computed_tokens_per_s", "  of them computed /s", lambda e: number(e.prompt_computed_tokens_per_s)),
    ("prompt_cached_tokens_per_s", "  of them from cache /s", lambda e: number(e.prompt_cached_tokens_per_s)),
    ("prefix_hit_pct", "prefix cache hits, now", lambda e: pct(e.prefix_hit_pct)),
    ("prefix_hit_lifetime_pct", "prefix cache hits, ever", lambda e: pct(e.prefix_hit_lifetime_pct)),
    ("steps_per_s", "engine steps /s", lambda e: number(e.steps_per_s)),
    ("tokens_per_step", "tokens per step", lambda e: number(e.tokens_per_step)),
    ("preemptions_per_s", "preemptions /s", lambda e: number(e.preemptions_per_s)),
    ("mean_prompt_tokens", "mean prompt, tokens", lambda e: number(e.mean_prompt_tokens)),
    ("mean_generation_tokens", "mean answer, tokens", lambda e: number(e.mean_generation_tokens)),
    ("window_s", "window", lambda e: seconds(e.window_s)),
)
LATENCIES = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")


def engine_details(frame: Frame, width: int) -> list[Line]:
    """The whole page of the attached engine's endpoint."""
    engine = frame.focused_engine
    if engine is None:
        text = "no engine is attached, or it has no address that answers: t shows what there is"
        return [*wrapped(text, width, "dim"), *log_lines(frame, width)]
    lines = _identity(frame, engine, width) + log_lines(frame, width)
    if engine.limits is not None:
        remark: Line = [("6", "key"), (" inputs and formula", "dim")]
        lines += [rule([("Limits", "title")], width, remark), *limit_lines(engine.limits, width)]
    if engine.window is None:
        return lines
    columns = _columns(engine)
    lines += _load(columns, _legend(engine, width), width)
    lines += _latencies(columns, width)
    lines += _spec(columns, width)
    reading = engine.scrape.value
    if reading is not None:
        lines += _lora(reading, width) + _cache_config(reading, width) + _notes(reading, width)
    lines += _missing(engine, width)
    return lines


def _columns(engine: EngineFrame) -> list[tuple[str, EngineLive]]:
    window = engine.window
    if window is None:
        return []
    columns = [("all", window.total)]
    if _ranks_apart(engine):
        columns += [(_heading("server", at, rank_name(r.rank)), r) for at, r in enumerate(window.ranks, 1)]
    if len(window.models) > 1:
        columns += [(_heading("model", at, _model_name(m)), m) for at, m in enumerate(window.models, 1)]
    return columns


def _ranks_apart(engine: EngineFrame) -> bool:
    """Whether there are ranks to tell apart, or servers of which one gave nothing."""
    reading = engine.scrape.value
    several = engine.window is not None and engine.window.several_ranks
    return several or (reading is not None and bool(reading.unread))


def _model_name(live: EngineLive) -> str:
    return printable(live.model or "?")


def _heading(what: str, number_: int, name: str) -> str:
    """The name where a column can hold it, else its number in the legend."""
    return name if cells(name) < COLUMN else f"{what} {number_}"


def _legend(engine: EngineFrame, width: int) -> list[Line]:
    """Which server or model is meant by "model 2"."""
    window = engine.window
    named = [("server", [rank_name(one.rank) for one in window.ranks])] if window and _ranks_apart(engine) else []
    if window and len(window.models) > 1:
        named.append(("model", [_model_name(one) for one in window.models]))
    lines: list[Line] = []
    for what, names in named:
        for at, name in enumerate(names, 1):
            if (heading := _heading(what, at, name)) != name:
                lines += _pair(f"  {heading}", name, width)
    return lines


def _section(title: str, width: int) -> Line:
    return rule([(title, "title")], width)


def _pair(label: str, text: str, width: int, role: str = "") -> list[Line]:
    head = pad(label, LABEL)
    rows = wrapped(text, max(width - LABEL, 10), role) or [[("", "")]]
    return [[(head if at == 0 else " " * LABEL, "dim"), *row] for at, row in enumerate(rows)]


def _identity(frame: Frame, engine: EngineFrame, width: int) -> list[Line]:
    reading, scrape = engine.scrape.value, engine.scrape
    target = frame.focused
    lines = [_section("Endpoint", width)]
    more = [url for url in (target.urls if target else ()) if url != engine.url]
    lines += _pair("address", printable(", ".join((engine.url, *more))), width)
    if scrape.error is not None:
        lines += _pair("error", f"▲ {printable(scrape.error)}", width, "warn")
    age = "none yet" if scrape.age_s is None else f"{seconds(scrape.age_s)} ago"
    took = f"{'took' if scrape.error is None else 'last try took'} {seconds(scrape.took_s)}"
    every = DASH if scrape.period_s is None else period_text(scrape.period_s)
    lines += _pair("last good answer", f"{age}, {took}, asked every {every}", width)
    if reading is None:
        return lines
    for why in reading.unread.values():
        lines += _pair("not read", f"▲ {printable(why)}", width, "warn")
    if reading.problem is not None:
        lines += _pair("problem", f"▲ {printable(reading.problem)}", width, "warn")
    if reading.not_narrowed is not None:
        lines += _pair("not narrowed", f"▲ {printable(reading.not_narrowed)}", width, "warn")
    version = reading.version or (target.version if target else None)
    lines += _pair("engine", f"{engine_name(reading.engine)} {printable(version or '(version unknown)')}", width)
    models = sorted({s.model for s in reading.series if s.model is not None})
    lines += _pair("models", ", ".join(printable(m) for m in models) or DASH, width)
    ranks = sorted({s.rank for s in reading.series if s.rank is not None})
    lines += _pair("engine ranks", ", ".join(printable(r) for r in ranks) or DASH, width)
    if reading.started_s is not None:
        age_s = frame.at_s - reading.started_s
        # Another machine's clock: it may be ahead of ours.
        ago = f"{uptime(age_s)} ago" if age_s >= 0 else f"{uptime(-age_s)} ahead of this machine's clock"
        lines += _pair("counters began", f"{clock_text(reading.started_s)}, {ago}", width)
    lines += _pair("sleep state", printable(spaced(reading.sleeping)) if reading.sleeping else DASH, width)
    return lines


def _blocks(columns: list[tuple[str, EngineLive]], width: int) -> Iterable[list[tuple[str, EngineLive]]]:
    """The columns in as many blocks as the width asks for; the total leads each."""
    each = max(1, (width - LABEL) // COLUMN - 1)
    first, rest = columns[0], columns[1:]
    if not rest:
        yield [first]
    for at in range(0, len(rest), each):
        yield [first, *rest[at : at + each]]


def _heads(columns: list[tuple[str, EngineLive]], title: str, width: int) -> Line:
    line: Line = [(pad(title, LABEL), "title")]
    for name, _ in columns:
        line += [(" ", ""), (pad(name, COLUMN - 1, right=True), "title")]
    return fit(line, width)


def _load(columns: list[tuple[str, EngineLive]], legend: list[Line], width: int) -> list[Line]:
    lines = [_section("Load", width), *legend]
    reasons = sorted({k for _, live in columns for k in live.waiting_by_reason})
    finished = sorted({k for _, live in columns for k in live.finished_per_s})
    for block in _blocks(columns, width):
        if len(block) > 1:
            lines.append(_heads(block, "", width))
        for name, label, text in FIELDS:
            row = [text(live) + ("?" if name in live.doubtful else "") for _, live in block]
            lines.append(_cells(label, row, width))
            if name == "waiting":
                for reason in reasons:
                    row = [number(live.waiting_by_reason.get(reason)) for _, live in block]
                    lines.append(_cells(f"  because {printable(reason)}", row, width))
            if name == "requests_per_s":
                for reason in finished:
                    row = [number(live.finished_per_s.get(reason)) for _, live in block]
                    lines.append(_cells(f"  with {printable(reason)} /s", row, width))
    return lines


def _cells(label: str, texts: list[str], width: int) -> Line:
    line: Line = [(pad(label, LABEL), "dim")]
    line += [(pad(text, COLUMN, right=True), "dim" if text == DASH else "") for text in texts]
    return fit(line, width)


def _latencies(columns: list[tuple[str, EngineLive]], width: int) -> list[Line]:
    cell = max(9, min(16, (width - 12 - 8) // 4))
    lines: list[Line] = []
    for name, live in columns:
        if not live.latency:
            continue
        title = "Latency" if len(columns) == 1 else f"Latency, {name}"
        lines.append(_section(title, width))
        heads = "".join(pad(text, cell, right=True) for text in ("p50", "p95", "p99", "mean"))
        lines.append(fit([(f"{pad('', 12)}{heads}{pad('n', 8, right=True)}", "dim")], width))
        extra = sorted(set(live.latency) - set(LATENCIES))
        for key in (*LATENCIES, *extra):
            latency = live.latency.get(key)
            if latency is None and key not in live.missing:
                continue
            texts = [DASH] * 4
            if latency is not None:
                texts = [quantile_text(q, cell - 1) for q in (latency.p50, latency.p95, latency.p99)]
                texts.append(seconds(latency.mean_s))
            line: Line = [(pad(LATENCY_NAMES.get(key, printable(key)), 12), "")]
            line += [(pad(text, cell, right=True), "dim" if text == DASH else "") for text in texts]
            line.append((pad(count_text(latency), 8, right=True), "dim"))
            lines.append(fit(line, width))
    return lines


def _spec(columns: list[tuple[str, EngineLive]], width: int) -> list[Line]:
    with_spec = [(name, live.spec) for name, live in columns if live.spec is not None]
    if not with_spec:
        return []
    lines = [_section("Speculative decoding", width)]
    for name, spec in with_spec:
        lines += _pair(
            name if len(columns) > 1 else "accepted",
            f"{pct(spec.acceptance_pct)} of draft tokens, mean length {number(spec.mean_length)}, "
            f"{number(spec.drafts_per_s)} drafts/s",
            width,
        )
        positions = "  ".join(f"{at}: {p:.0f} %" for at, p in enumerate(spec.by_position_pct))
        lines += _pair("  accepted at position", positions or DASH, width)
    return lines


def _lora(reading: EngineReading, width: int) -> list[Line]:
    lora = reading.lora
    if lora is None:
        return []
    lines = [_section("LoRA", width)]
    for label, names in (("running", lora.running), ("waiting", lora.waiting)):
        lines += _pair(label, ", ".join(printable(n) for n in names) or "none", width)
    lines += _pair("adapters at most", DASH if lora.max_adapters is None else str(lora.max_adapters), width)
    return lines


def _cache_config(reading: EngineReading, width: int) -> list[Line]:
    if not reading.cache_config:
        return []
    lines = [_section("Cache configuration", width)]
    for name, value in sorted(reading.cache_config.items()):
        lines += _pair(printable(name), printable(value), width)
    return lines


def _notes(reading: EngineReading, width: int) -> list[Line]:
    texts = [printable(note) for note in reading.notes]
    if reading.skipped is not None:
        texts.append(printable(reading.skipped))
    if not texts:
        return []
    return [_section("Notes", width), *(line for text in texts for line in wrapped(text, width, "", "  "))]


def _missing(engine: EngineFrame, width: int) -> list[Line]:
    missing: dict[str, str] = {}
    doubtful: set[str] = set()
    if engine.scrape.value is not None:
        missing.update(engine.scrape.value.missing)
    for _, live in _columns(engine):
        missing.update(live.missing)
        doubtful.update(live.doubtful)
    lines: list[Line] = []
    if missing:
        lines += [_section("Not known, and why", width), *reasons_text(missing, width)]
    if doubtful:
        names = ", ".join(spaced(name) for name in sorted(doubtful))
        lines += [
            _section("Marked with ?", width),
            *wrapped(f"the engine's own figure may be wrong: {names}", width, "dim"),
        ]
    return lines
