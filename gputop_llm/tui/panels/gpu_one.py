"""The overview's panel for a single GPU: a bar and a history for each meter."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model import Frame, Gpu
from gputop_llm.printable import printable
from gputop_llm.tui.charts import chart, spark
from gputop_llm.tui.draw import Block, Line, bar, joined, pad, rule, warned_rule
from gputop_llm.tui.panels.common import labelled, part_state, reason_for
from gputop_llm.tui.panels.gpu_words import (
    MEMORY,
    METERS,
    POWER,
    Meter,
    flags,
    flow_text,
    link_name,
    memory_pct,
    memory_text,
    power_text,
    throttle_reasons,
    value_role,
    watched_slice,
)
from gputop_llm.tui.trails import Trails
from gputop_llm.units import DASH, pct, uptime

LABEL = 10
VALUE = 5
SCALE = 4
WORDS = 20
MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class _Shape:
    """How wide bars and histories are, and how many rows a meter has."""

    rows: int
    bar: int
    history: int
    slots: int

    @property
    def left(self) -> int:
        """Cells before the history."""
        return LABEL + VALUE + 1 + self.bar + 2


def _shape(trails: Trails, width: int, height: int) -> _Shape:
    rows = max(1, min(MAX_ROWS, (height - 5) // 4))
    bar_width = 14 if width < 76 else 20 if width < 110 else 26
    history = width - LABEL - VALUE - 1 - bar_width - 2 - (SCALE if rows > 1 else 0)
    history = max(1, history)
    return _Shape(rows, bar_width, history, trails.stretch(history * (2 if rows > 1 else 1)))


def one_gpu(frame: Frame, gpu: Gpu, trails: Trails, width: int, height: int) -> Block:
    """A title, the four meters (several rows each where there is room), memory, power, clocks, links."""
    shape = _shape(trails, width, height)
    lines = [_title(frame, gpu, trails, shape, width)]
    for meter in METERS:
        lines += _meter(gpu, meter, trails, shape)
    left = height - len(lines)
    apart = left >= 4
    lines.append(_memory(frame, gpu, trails, shape, width, with_power=not apart))
    if apart:
        lines.append(
            [*_gauge(POWER, POWER.read(gpu), shape), *_words_and_history(power_text(gpu), POWER, gpu, trails, shape)]
        )
    lines += [_clocks(gpu, width), _links(gpu, width)]
    return Block(lines[:height], dict.fromkeys(range(height), f"gpu:{gpu.index}"))


def _title(frame: Frame, gpu: Gpu, trails: Trails, shape: _Shape, width: int) -> Line:
    title: Line = [(f"GPU {gpu.index}", "title"), (f" {printable(gpu.name or 'unknown model')}", "")]
    for flag in flags(gpu):
        title += [("  ", ""), (flag, "warn")]
    node = frame.gpus.value
    if node is not None and (node.vgpu_guest or node.wsl):
        title.append((f"  {'vGPU guest' if node.vgpu_guest else 'WSL'}: 2 says what can't be known", "dim"))
    if (part := watched_slice(frame, gpu)) is not None:
        title.append((f"  {part}", "strong"))
    state = part_state(frame.gpus, frame.period_s)
    if state:
        return warned_rule(title, width, state)
    span = uptime(trails.span_s(shape.history * (2 if shape.rows > 1 else 1), shape.slots))
    return rule(title, width, [(f"last {span}, 0–100 %", "dim")])


def _gauge(meter: Meter, value: float | None, shape: _Shape) -> Line:
    return [
        (pad(meter.label, LABEL), ""),
        (pad(pct(value), VALUE, right=True), value_role(value)),
        (" ", ""),
        *bar(value, shape.bar, meter.role),
        ("  ", ""),
    ]


def _meter(gpu: Gpu, meter: Meter, trails: Trails, shape: _Shape) -> list[Line]:
    series = f"gpu.{gpu.index}.{meter.series}"
    first = _gauge(meter, meter.read(gpu), shape)
    if meter.read(gpu) is None:
        reason: Line = [*first, (reason_for(gpu.missing, meter.field), "dim")]
        return [reason, *([] for _ in range(shape.rows - 1))]
    if shape.rows == 1:
        return [[*first, (spark(trails.values(series, shape.history, shape.slots), 100.0), meter.role)]]
    usual = trails.usual(series)
    notes = ["", meter.hint, "" if usual is None else f"usual {pct(usual)}"]
    lines: list[Line] = []
    for row, text in enumerate(chart(trails.pairs(series, shape.history, shape.slots), shape.rows, 100.0)):
        mark = "100" if row == 0 else "0" if row == shape.rows - 1 else ""
        note = notes[row] if row < len(notes) else ""
        left = first if row == 0 else [(pad(note, shape.left), "dim")]
        lines.append([*left, (pad(mark, SCALE - 1, right=True) + " ", "dim"), (text, meter.role)])
    return lines


def _memory(frame: Frame, gpu: Gpu, trails: Trails, shape: _Shape, width: int, with_power: bool) -> Line:
    words = memory_text(frame, gpu)
    line = _gauge(MEMORY, memory_pct(frame, gpu), shape)
    if not with_power:
        return [*line, *_words_and_history(words, MEMORY, gpu, trails, shape)]
    share = "" if gpu.power_pct is None else f" ({pct(gpu.power_pct)})"
    power = labelled("power", power_text(gpu) + share)
    return [*line, *joined([[(words, "")], power], width - shape.left, "  ")]


def _words_and_history(words: str, meter: Meter, gpu: Gpu, trails: Trails, shape: _Shape) -> Line:
    """Words, then a history that ends where those of the meters end."""
    series = f"gpu.{gpu.index}.{meter.series}"
    tall = shape.rows > 1
    room = max(WORDS, len(words) + 2)
    cells = shape.history + (SCALE if tall else 0) - room
    if cells < 8:
        return [(words, "")]
    values = trails.values(series, cells, shape.slots * (2 if tall else 1))
    return [(pad(words, room), ""), (spark(values, 100.0), meter.role)]


def _clocks(gpu: Gpu, width: int) -> Line:
    reasons = throttle_reasons(gpu)
    if reasons:
        throttle: Line = [("▲ throttled: " + ", ".join(reasons), "warn")]
    else:
        throttle = labelled("throttled", DASH if gpu.throttle is None else "no")
    hot = "" if gpu.temp_slowdown_c is None else f" (slows at {gpu.temp_slowdown_c:.0f})"
    return joined(
        [
            labelled("SM", _of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz)),
            labelled("mem", _of(gpu.mem_clock_mhz, gpu.mem_clock_max_mhz)),
            throttle,
            labelled("temp", f"{_degrees(gpu.temp_c)}{hot if width >= 100 else ''}, memory {_degrees(gpu.temp_mem_c)}"),
        ],
        width,
    )


def _degrees(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} °C"


def _of(value: float | None, top: float | None) -> str:
    if value is None:
        return DASH
    return f"{value:.0f} MHz" if top is None else f"{value:.0f}/{top:.0f} MHz"


def _links(gpu: Gpu, width: int) -> Line:
    xids = ", ".join(str(x.xid) for x in gpu.xids)
    return joined(
        [
            labelled(link_name(gpu), flow_text(gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s)),
            labelled("NVLink", flow_text(gpu.nvlink_rx_bytes_per_s, gpu.nvlink_tx_bytes_per_s)),
            labelled("ECC", DASH if gpu.ecc_uncorrected is None else str(gpu.ecc_uncorrected)),
            labelled("Xid", xids, "warn") if xids else labelled("Xid", "none"),
            labelled("processes", DASH if gpu.processes is None else str(len(gpu.processes))),
        ],
        width,
    )
