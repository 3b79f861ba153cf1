"""The latency table: windowed quantiles as honest as their buckets, beside what is usual."""

from __future__ import annotations

from gputop_llm.model import EngineLive, Latency
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, pad
from gputop_llm.tui.panels.common import LATENCY_NAMES, count_text, quantile_text
from gputop_llm.tui.trails import Trails
from gputop_llm.units import DASH, number, seconds

# Most telling first: when there is no room for all, the last ones go.
ORDER = ("ttft", "itl", "e2e", "queue", "prefill", "decode")
SHOWN = ("ttft", "itl", "queue", "prefill", "decode", "e2e")
LABEL = 8
# The usual p95, and how far the present one is off: "  75 ms ▲12.3×".
USUAL = 15
# From this ratio on a difference from the usual is pointed at; it only decides what is drawn.
FAR_OFF = 1.5


def latency_table(live: EngineLive, trails: Trails, prefix: str, width: int, rows: int) -> list[Line]:
    """A heading and up to `rows` - 1 latencies; columns go as the width shrinks."""
    with_usual = width >= LABEL + 4 * 8 + 6 + USUAL
    with_count = width >= LABEL + 4 * 8 + 6
    taken = LABEL + (6 if with_count else 0) + (USUAL if with_usual else 0)
    cell = max(6, min(11, (width - taken) // 4))
    heading = pad("", LABEL) + "".join(pad(text, cell, right=True) for text in ("p50", "p95", "p99", "mean"))
    if with_count:
        heading += pad("n", 6, right=True)
    if with_usual:
        heading += pad("usual", 8, right=True)
    lines: list[Line] = [[(heading, "dim")]]
    kept = ORDER[: max(rows - 1, 0)]
    for name in SHOWN:
        if name not in kept:
            continue
        shown = name if name != "itl" or "itl" in live.latency or "tpot" not in live.latency else "tpot"
        latency = live.latency.get(shown)
        line = _row(shown, latency, cell)
        if with_count:
            line.append((pad(count_text(latency), 6, right=True), "dim"))
        if with_usual:
            line += _usual(latency, trails.usual(f"{prefix}{shown}_p95_s") if latency else None)
        lines.append(line)
    return lines


def _row(name: str, latency: Latency | None, cell: int) -> Line:
    texts = [DASH] * 4
    if latency is not None:
        texts = [quantile_text(q, cell - 1) for q in (latency.p50, latency.p95, latency.p99)]
        texts.append(seconds(latency.mean_s))
    line: Line = [(pad(LATENCY_NAMES.get(name, name), LABEL), "")]
    for at, text in enumerate(texts):
        role = "dim" if text == DASH else "strong" if at == 1 else ""
        line.append((pad(text, cell, right=True), role))
    return line


def _usual(latency: Latency | None, usual: float | None) -> Line:
    p95 = latency.p95 if latency else None
    text = seconds(usual)
    if usual and p95 and p95.value is None and p95.high is not None and abs(p95.high - usual) < 1e-6 * usual:
        # What was kept is the bound of the bucket, as it is now.
        text = quantile_text(p95, 7)
    line: Line = [(pad(text, 8, right=True), "dim")]
    now = latency.p95.value if latency and latency.p95 else None
    if now is None or not usual:
        return line
    ratio = now / usual
    if ratio >= FAR_OFF:
        line.append((pad(f" ▲{ratio:.1f}×", 7), "warn"))
    elif ratio <= 1 / FAR_OFF:
        line.append((pad(f" ▼{ratio:.1f}×", 7), "good"))
    return line


def models_table(models: tuple[EngineLive, ...], width: int, rows: int) -> list[Line]:
    """Several models have no latency in common: p95 of the main ones, a row per model."""
    names = ("ttft", "itl", "e2e")
    cell = 10
    label = max(8, min(48, width - cell * (len(names) + 1)))
    heads = "".join(pad(LATENCY_NAMES[n], cell, right=True) for n in names)
    lines: list[Line] = [[(pad("p95 by model", label) + heads + pad("running", cell, right=True), "dim")]]
    for model in models[: max(rows - 1, 0)]:
        line: Line = [(pad(printable(model.model or "?"), label), "")]
        for name in names:
            latency = model.latency.get(name)
            text = quantile_text(latency.p95 if latency else None, cell - 1)
            line.append((pad(text, cell, right=True), "dim" if text == DASH else ""))
        line.append((pad(number(model.running), cell, right=True), ""))
        lines.append(line)
    if len(models) >= rows > 1:
        lines[-1] = [(f"and {len(models) - rows + 2} more models: press 3", "dim")]
    return lines
