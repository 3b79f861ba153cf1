"""The overview's engine panel: load, token rates, latencies, and how they moved."""

from __future__ import annotations

from collections.abc import Callable

from gputop_llm.model import EngineFrame, EngineLive, Frame, Target
from gputop_llm.printable import printable
from gputop_llm.tui.charts import chart, spark
from gputop_llm.tui.draw import Block, Line, Run, bar, beside, fit, joined, pad, rule, width_of, wrapped
from gputop_llm.tui.panels.common import (
    address,
    engines_of,
    gpus_text,
    labelled,
    rank_name,
    small_pct,
    spaced,
    target_name,
)
from gputop_llm.tui.panels.latency import latency_table, models_table
from gputop_llm.tui.panels.limits import in_short
from gputop_llm.tui.trails import Trails
from gputop_llm.units import DASH, number, pct, seconds, uptime

MAX_ROWS = 8
RATES_WIDTH = 16


def engine_panel(frame: Frame, trails: Trails, width: int, height: int) -> Block:
    """The attached engine; without one, what there is to attach to."""
    engine = frame.focused_engine
    if engine is None:
        return _no_engine(frame, width, height)
    live = engine.window.total if engine.window else EngineLive(None, None)
    prefix = f"engine.{engine.target_key}."
    lines: list[Line] = [_title(frame, engine, live, width)]
    lines += _trouble(engine, width)[: max(1, min(3, height - 7))]
    head = len(lines)
    lines.append(load_line(live, width))
    ranks = _ranks(engine, width)
    if engine.scrape.value is not None and engine.scrape.value.unread:
        # There is no total: what the other ranks say is all that is known.
        lines += ranks[: max(0, height - len(lines))]
        ranks = []
    rows = max(0, min(7, height - len(lines)))
    models = engine.window.models if engine.window else ()
    if len(models) > 1 and not live.latency:
        lines += _with_rates(live, models_table(models, _left_width(width), rows), width, rows)
    else:
        lines += _with_rates(live, latency_table(live, trails, prefix, _left_width(width), rows), width, rows)
    left = height - len(lines)
    more = ranks + _details(live, width)
    lines += more[: max(0, left)]
    left = height - len(lines)
    if left > 0:
        lines += _histories(trails, prefix, live, width, left)
    if engine.scrape.error is not None:
        # Old numbers step back behind the sentence that says so.
        lines[head:] = [[(text, "dim") for text, _ in line] for line in lines[head:]]
    return Block(lines[:height], dict.fromkeys(range(height), "engine"))


def _title(frame: Frame, engine: EngineFrame, live: EngineLive, width: int) -> Line:
    title: Line = [("Engine", "title"), (f" {address(engine.url)}", "")]
    if live.restarted:
        title.append(("  restarted a moment ago", "warn"))
    reading = engine.scrape.value
    if reading is not None and reading.asleep is not None:
        title.append((f"  ▲ asleep: {printable(spaced(reading.asleep))}", "warn"))
    scrape = engine.scrape
    remark = f"scrape {seconds(scrape.took_s)}"
    if scrape.period_s is not None and scrape.period_s > frame.period_s * 1.01:
        remark += f" every {seconds(scrape.period_s)}"
    remark += f" · window {seconds(live.window_s)}"
    near = in_short(engine.limits, width - width_of(title) - len(remark) - 10)
    if near:
        remark = f"{near} · {remark}"
    return rule(title, width, [(remark, "dim")])


def _trouble(engine: EngineFrame, width: int) -> list[Line]:
    """Why the numbers are old or absent."""
    scrape = engine.scrape
    if scrape.error is not None:
        age = f"last good {uptime(scrape.age_s)} ago: " if scrape.age_s is not None else ""
        return wrapped(f"▲ {age}{printable(scrape.error)}", width, "warn")
    if scrape.value is not None and scrape.value.problem is not None:
        return wrapped(f"▲ {printable(scrape.value.problem)}", width, "warn")
    if scrape.value is None:
        return [[("waiting for the first answer …", "dim")]]
    reading = scrape.value
    doubts = [*reading.unread.values(), *([reading.not_narrowed] if reading.not_narrowed else ())]
    return [line for why in doubts for line in wrapped(f"▲ {printable(why)}", width, "warn")]


def _no_engine(frame: Frame, width: int, height: int) -> Block:
    engines = engines_of(frame)
    lines: list[Line] = []
    keys: dict[int, str] = {}
    if frame.focus is not None:
        attached = frame.focused
        title: Line = [("Engine", "title")]
        if attached is None:
            text = "the attached process has exited; waiting for it to come back"
        elif attached.engine == "cuda":
            text = "the attached process is not an engine that is known here: no engine metrics"
        else:
            text = attached.attachable or "no address that answers /metrics was found: give it with --url"
        lines = [rule(title, width), *wrapped(printable(text), width, "dim")]
    elif engines:
        lines = [
            rule([("Engines", "title")], width, [("press ", "dim"), ("t", "key"), (" to attach to one", "dim")]),
        ]
        for target in engines:
            keys[len(lines)] = f"target:{target.key}"
            lines.append(_candidate(frame, target, width))
    elif frame.targets.value is None:
        reason = frame.targets.error
        text = f"▲ {printable(reason)}" if reason else "looking for engines on this node …"
        lines = [rule([("Engine", "title")], width), [(text, "warn" if reason else "dim")]]
    else:
        lines = [
            rule([("Engine", "title")], width),
            [("no LLM engine can be seen running on this node", "dim")],
            [("a remote or hidden one: ", "dim"), ("gputop-llm --url http://HOST:PORT", "")],
        ]
    return Block(lines[:height], keys)


def _candidate(frame: Frame, target: Target, width: int) -> Line:
    window = next((e.window for e in frame.engines if e.target_key == target.key), None)
    live = window.total if window else EngineLive(None, None)
    return joined(
        [
            [(target_name(target), "strong")],
            labelled("running", number(live.running)),
            labelled("waiting", number(live.waiting)),
            labelled("out", f"{number(live.generation_tokens_per_s)} tok/s"),
            labelled("pid", str(target.root_pid) if target.root_pid is not None else DASH),
            labelled("GPUs", gpus_text(target)),
        ],
        width,
    )


def load_line(live: EngineLive, width: int) -> Line:
    """Queue, KV cache and batch in one line."""
    waiting = labelled("waiting", mark(live, "waiting", number(live.waiting)), "strong" if live.waiting else "")
    reasons = [f"{printable(k)} {number(v)}" for k, v in live.waiting_by_reason.items() if v]
    if reasons and live.waiting:
        waiting.append((f" ({', '.join(reasons)})", ""))
    kv_text = mark(live, "kv_usage_pct", small_pct(live.kv_usage_pct))
    kv = labelled("KV", kv_text, "strong" if live.kv_usage_pct is not None else "")
    parts: list[list[Run]] = [
        labelled("running", mark(live, "running", number(live.running)), "strong" if live.running is not None else ""),
        waiting,
        kv,
        labelled("prefix hit", pct(live.prefix_hit_pct)),
        labelled("per step", f"{mark(live, 'tokens_per_step', number(live.tokens_per_step))} tok"),
    ]
    room = width - width_of(joined(parts, width)) - 1
    if room >= 4 and live.kv_usage_pct is not None:
        kv += [(" ", ""), *bar(live.kv_usage_pct, min(room, 16), "mem")]
    return joined(parts, width)


def mark(live: EngineLive, name: str, text: str) -> str:
    """The text, with "?" where the engine's own figure is known to be wrong at times."""
    return f"{text}?" if name in live.doubtful else text


RATES: tuple[tuple[str, str, Callable[[EngineLive], float | None]], ...] = (
    ("out tokens", "generation_tokens_per_s", lambda e: e.generation_tokens_per_s),
    ("prompt", "prompt_computed_tokens_per_s", lambda e: e.prompt_computed_tokens_per_s),
    ("cached", "prompt_cached_tokens_per_s", lambda e: e.prompt_cached_tokens_per_s),
    ("requests", "requests_per_s", lambda e: e.requests_per_s),
    ("preempted", "preemptions_per_s", lambda e: e.preemptions_per_s),
    ("steps", "steps_per_s", lambda e: e.steps_per_s),
)


def _left_width(width: int) -> int:
    return min(width - _right_width(width) - 2, 92)


def _right_width(width: int) -> int:
    return RATES_WIDTH if width < 100 else 22


def _with_rates(live: EngineLive, left: list[Line], width: int, rows: int) -> list[Line]:
    """Latencies on the left, rates per second on the right."""
    left_width, right_width = _left_width(width), _right_width(width)
    right: list[Line] = [[(pad("per second", right_width, right=True), "dim")]]
    for label, name, read in RATES[: max(rows - 1, 0)]:
        text = mark(live, name, number(read(live)))
        role = "dim" if text == DASH else "strong" if name == "generation_tokens_per_s" else ""
        right.append([(pad(label, 10), "dim"), (pad(text, right_width - 10, right=True), role)])
    return beside(left[:rows], right[:rows], left_width, left_width + right_width + 2)


def _ranks(engine: EngineFrame, width: int) -> list[Line]:
    """DP ranks under each other with aligned numbers; nothing for a single one."""
    window = engine.window
    unread = engine.scrape.value.unread if engine.scrape.value else {}
    if window is None or not (window.several_ranks or unread):
        return []
    lines: list[Line] = []
    widest = max((width_of([(rank_name(rank.rank), "")]) for rank in window.ranks), default=0)
    for rank in window.ranks:
        cells = (
            ("running", number(rank.running), 5),
            ("waiting", number(rank.waiting), 5),
            ("KV", small_pct(rank.kv_usage_pct), 6),
            ("prefix hit", pct(rank.prefix_hit_pct), 5),
            ("out", f"{number(rank.generation_tokens_per_s)} tok/s", 11),
            ("steps", f"{number(rank.steps_per_s)}/s", 7),
        )
        parts = [[(pad(rank_name(rank.rank), widest), "strong")]]
        parts += [[(f"{label} ", "dim"), (pad(text, size, right=True), "")] for label, text, size in cells]
        lines.append(joined(parts, width, "  "))
    return lines


def _details(live: EngineLive, width: int) -> list[Line]:
    # A reason that never comes is not news, unless it would be bad news.
    shown = {k: v for k, v in live.finished_per_s.items() if v or k in ("abort", "error")}
    finished = [labelled(printable(k), f"{number(v)}/s") for k, v in shown.items()]
    lines = [
        joined(
            [
                *finished,
                labelled("mean prompt", f"{number(live.mean_prompt_tokens)} tok"),
                labelled("mean answer", f"{number(live.mean_generation_tokens)} tok"),
            ],
            width,
        )
    ]
    if finished:
        lines[0] = [("finished ", "dim"), *lines[0]]
    if live.spec is not None:
        positions = " ".join(f"{p:.0f}" for p in live.spec.by_position_pct)
        lines.append(
            joined(
                [
                    labelled("spec decode accepted", pct(live.spec.acceptance_pct)),
                    labelled("mean length", number(live.spec.mean_length)),
                    labelled("by position", f"{positions or DASH} %"),
                ],
                width,
            )
        )
    return [fit(line, width) for line in lines]


_TRAILS: tuple[tuple[str, str, float | None, Callable[[float | None], str]], ...] = (
    ("out tokens/s", "generation_tokens_per_s", None, number),
    ("running", "running", None, number),
    ("waiting", "waiting", None, number),
    ("TTFT p95", "ttft_p95_s", None, seconds),
    ("KV", "kv_usage_pct", 100.0, small_pct),
    ("prompt/s", "prompt_computed_tokens_per_s", None, number),
    ("e2e p95", "e2e_p95_s", None, seconds),
    ("prefix hit", "prefix_hit_pct", 100.0, pct),
)


def _histories(trails: Trails, prefix: str, live: EngineLive, width: int, height: int) -> list[Line]:
    """Histories of what matters most, as many and as tall as the room allows."""
    count = min(len(_TRAILS), height if height < 4 else height // 2)
    # What can't be shared out evenly goes to the first ones, a row each.
    heights = [min(MAX_ROWS, height // count + (at < height % count)) for at in range(count)]
    label = 14
    scale = 8
    cells = max(0, width - label - scale)
    lines: list[Line] = []
    for rows, (title, name, top, words) in zip(heights, _TRAILS, strict=False):
        if rows == 1:
            slots = trails.stretch(cells)
            values = trails.values(prefix + name, cells, slots)
        else:
            slots = trails.stretch(2 * cells)
            values = trails.pairs(prefix + name, cells, slots)
        ceiling = top if top is not None else nice_top(values)
        drawn = [spark(values, ceiling)] if rows == 1 else chart(values, rows, ceiling)
        # Beside no value at all the end of a scale would read like one.
        high, low = (DASH, "") if top is None and not any(v is not None for v in values) else (words(ceiling), "0")
        for row, text in enumerate(drawn):
            left = title if row == 0 else ""
            mark_text = high if row == 0 else low if row == rows - 1 else ""
            lines.append([(pad(left, label), ""), (pad(mark_text, scale - 1, right=True) + " ", "dim"), (text, "work")])
    return lines


def nice_top(values: list[float | None]) -> float:
    """The end of a scale that holds all values: 1, 2 or 5 times a power of ten."""
    highest = max((v for v in values if v is not None), default=0.0)
    if highest <= 0:
        return 1.0
    power = 1.0
    while power > highest:
        power /= 10
    while power * 10 <= highest:
        power *= 10
    return next(power * step for step in (1, 2, 5, 10) if power * step >= highest)
