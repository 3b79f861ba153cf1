"""What an engine says of itself, as text: load, rates, latencies with their bounds."""

from __future__ import annotations

from gputop_llm.model import EngineFrame, EngineLive, Quantile
from gputop_llm.model.limits import LimitEstimate
from gputop_llm.printable import printable
from gputop_llm.report.reasons import unknown
from gputop_llm.units import DASH, number, pct, seconds

LATENCIES = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e")
_UPPER = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT"}
# One empty answer each; the rest of `missing` is for JSON.
_MOST_REASONS = 6


def engine_lines(engine: EngineFrame) -> list[str]:
    """The engine's window: all of it, then its models and ranks where there are several."""
    reading = engine.scrape.value
    if reading is None:
        return []
    if reading.problem is not None:
        return [f"Engine metrics  {printable(engine.url)}", f"  {printable(reading.problem)}"]
    if engine.window is None:
        return []
    total = engine.window.total
    span = "one reading so far" if total.window_s is None else f"over the last {seconds(total.window_s)}"
    lines = [f"Engine metrics  {printable(engine.url)}, {span}{' (restarted)' if total.restarted else ''}"]
    lines += _load(total)
    if total.latency:
        lines += _latencies(total)
    if engine.limits is not None:
        lines += [_limit(engine.limits.mbu, "memory bandwidth"), _limit(engine.limits.mfu, "arithmetic peak")]
    if len(engine.window.models) > 1:
        for live in engine.window.models:
            lines += [f"  model {printable(live.model or DASH)}", *_load(live), *_latencies(live)]
    if engine.window.several_ranks or reading.unread:
        lines += _ranks(engine.window.ranks)
    reasons = unknown(total.missing)
    lines += [f"  {text}" for text in reasons[:_MOST_REASONS]]
    if len(reasons) > _MOST_REASONS:
        lines.append(f"  … and {len(reasons) - _MOST_REASONS} more reasons (--json has all)")
    if total.doubtful:
        lines.append(f"  doubtful (given twice on the page): {', '.join(map(printable, total.doubtful))}")
    if (lora := reading.lora) is not None:
        running, waiting = (", ".join(map(printable, names)) or "none" for names in (lora.running, lora.waiting))
        most = DASH if lora.max_adapters is None else lora.max_adapters
        lines.append(f"  LoRA adapters: running {running}; waiting {waiting}; at most {most}")
    if reading.asleep is not None:
        lines.append(f"  asleep: {printable(reading.asleep)}")
    lines += [f"  not read: {printable(why)}" for why in reading.unread.values()]
    if reading.not_narrowed is not None:
        lines.append(f"  {printable(reading.not_narrowed)}")
    notes = [*reading.notes, *([reading.skipped] if reading.skipped else ())]
    return lines + [f"  note: {printable(note)}" for note in notes]


def quantile_text(quantile: Quantile | None) -> str:
    """A quantile with the bucket that holds it: "47 ms (40–60 ms)", "≤ 10 ms", "0.50–1.90 s", "> 80 s"."""
    if quantile is None:
        return DASH
    if quantile.high is None:
        return f"> {seconds(quantile.low)}"
    bucket = f"≤ {seconds(quantile.high)}" if quantile.low <= 0 else _between(quantile.low, quantile.high)
    return bucket if quantile.value is None else f"{seconds(quantile.value)} ({bucket})"


def _limit(estimate: LimitEstimate, of: str) -> str:
    """ "MBU 19.3 % of the memory bandwidth (floor of TPOT 442 µs)", or why it is unknown."""
    if estimate.unknown is not None:
        return f"  {estimate.name} unknown: {printable(estimate.unknown)}"
    floor = "" if estimate.floor_tpot_s is None else f" (floor of TPOT {seconds(estimate.floor_tpot_s)})"
    return (
        f"  {estimate.name} {'at least ' if estimate.at_least else ''}{pct(estimate.value_pct, 1)} of the {of}{floor}"
    )


def _between(low_s: float, high_s: float) -> str:
    low, high = seconds(low_s).split(" "), seconds(high_s).split(" ")
    if len(low) == len(high) == 2 and low[1] == high[1]:
        return f"{low[0]}–{high[0]} {high[1]}"
    return f"{seconds(low_s)}–{seconds(high_s)}"


def _load(live: EngineLive) -> list[str]:
    reasons = ", ".join(f"{printable(name)} {number(count)}" for name, count in live.waiting_by_reason.items() if count)
    lines = [
        f"  running {number(live.running)}, waiting {number(live.waiting)}{f' ({reasons})' if reasons else ''}, "
        f"KV cache {pct(live.kv_usage_pct, 1)}, preemptions {number(live.preemptions_per_s)}/s",
        f"  requests finished {number(live.requests_per_s)}/s{_finished(live)}",
        f"  prompt {number(live.prompt_tokens_per_s)} tok/s (computed {number(live.prompt_computed_tokens_per_s)}, "
        f"cached {number(live.prompt_cached_tokens_per_s)}), generation {number(live.generation_tokens_per_s)} tok/s",
        f"  steps {number(live.steps_per_s)}/s, tokens per step {number(live.tokens_per_step)}, "
        f"prefix cache hits {pct(live.prefix_hit_pct)} (since start {pct(live.prefix_hit_lifetime_pct)})",
    ]
    if live.spec is not None:
        positions = " ".join(pct(share) for share in live.spec.by_position_pct)
        lines.append(
            f"  speculative decoding: accepted {pct(live.spec.acceptance_pct)}, mean length "
            f"{number(live.spec.mean_length)}{f', by position {positions}' if positions else ''}"
        )
    return lines


def _finished(live: EngineLive) -> str:
    parts = [f"{printable(why)} {number(per_s)}" for why, per_s in live.finished_per_s.items() if per_s]
    return f" ({', '.join(parts)})" if parts else ""


def _latencies(live: EngineLive) -> list[str]:
    if not live.latency:
        return []
    rows = [f"  {'':8} {'count':>6} {'mean':>8}  {'p50':24} {'p95':24} p99"]
    for name in (*(n for n in LATENCIES if n in live.latency), *(n for n in live.latency if n not in LATENCIES)):
        latency = live.latency[name]
        quantiles = (quantile_text(q) for q in (latency.p50, latency.p95, latency.p99))
        p50, p95, p99 = quantiles
        rows.append(
            f"  {_UPPER.get(name, printable(name)):8} {number(latency.count):>6} {seconds(latency.mean_s):>8}"
            f"  {p50:24} {p95:24} {p99}"
        )
    return rows


def _ranks(ranks: tuple[EngineLive, ...]) -> list[str]:
    # A server behind a router goes by its address.
    width = max([10, *(len(printable(live.rank or DASH)) for live in ranks)])
    rows = [
        f"  {'rank':{width}} {'running':>7} {'waiting':>7} {'KV':>7} {'prompt/s':>9} {'generated/s':>11} {'steps/s':>8}"
        "  TTFT p95"
    ]
    for live in ranks:
        ttft = live.latency.get("ttft")
        rows.append(
            f"  {printable(live.rank or DASH):{width}} {number(live.running):>7} {number(live.waiting):>7} "
            f"{pct(live.kv_usage_pct, 1):>7} {number(live.prompt_tokens_per_s):>9} "
            f"{number(live.generation_tokens_per_s):>11} {number(live.steps_per_s):>8}  "
            f"{quantile_text(ttft.p95 if ttft else None)}"
        )
    return rows
