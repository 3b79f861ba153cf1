"""Several GPUs as aligned rows: the same four meters, and what else matters, under one heading."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model import Frame, Gpu
from gputop_llm.printable import printable
from gputop_llm.tui.charts import chart, spark
from gputop_llm.tui.draw import Block, Line, bar, fit, joined, pad, warned_rule
from gputop_llm.tui.panels.common import labelled, part_state
from gputop_llm.tui.panels.gpu_words import (
    METERS,
    as_many,
    flags,
    flow_text,
    link_name,
    memory_pct,
    throttle_reasons,
    value_role,
    watched_slice,
)
from gputop_llm.tui.trails import Trails
from gputop_llm.units import DASH, seconds

INDEX = 3
VALUE = 4
# Narrow charts that are taller than three rows say no more.
MAX_ROWS = 4
# Heading and width of the figures after the meters; the unit stands in the heading.
FIGURES = (("mem %", 6), ("W", 5), ("°C", 4), ("MHz", 5))


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    bar: int
    width: int

    @property
    def column(self) -> int:
        """Cells of one meter, with the gap after it."""
        return VALUE + 1 + self.bar + 1

    @property
    def meters(self) -> int:
        """Cells up to the end of the last meter."""
        return INDEX + len(METERS) * self.column

    @property
    def rest(self) -> int:
        """Cells after the figures."""
        return max(0, self.width - self.meters - sum(width for _, width in FIGURES) - 2)


def _shape(width: int, rows: int) -> _Shape:
    # What is wrong needs room too: from 80 columns on two thirds of each further column go there.
    rest = 14 + max(0, width - 80) * 2 // 3
    figures = sum(figure for _, figure in FIGURES) + 2
    return _Shape(rows, max(3, (width - INDEX - figures - rest) // len(METERS) - VALUE - 2), width)


def many_gpus(frame: Frame, gpus: tuple[Gpu, ...], trails: Trails, width: int, height: int) -> Block:
    """A heading and as many rows per GPU as the height allows; the last row tells how many GPUs are left out."""
    shape = _shape(width, max(1, min(MAX_ROWS, (height - 1) // len(gpus))))
    shown = gpus if shape.rows * len(gpus) < height else gpus[: max(0, height - 2)]
    lines: list[Line] = [_heading(frame, gpus, shape)]
    keys: dict[int, str] = {}
    for gpu in shown:
        keys[len(lines)] = f"gpu:{gpu.index}"
        lines.append(_row(frame, gpu, shape))
        for line in _histories(frame, gpu, trails, shape):
            keys[len(lines)] = f"gpu:{gpu.index}"
            lines.append(line)
    if len(shown) < len(gpus):
        lines.append([(f"and {len(gpus) - len(shown)} more: press 2", "dim")])
    return Block(lines[:height], keys)


def _heading(frame: Frame, gpus: tuple[Gpu, ...], shape: _Shape) -> Line:
    state = part_state(frame.gpus, frame.period_s)
    if frame.gpus.error is not None:
        return warned_rule([(f"{len(gpus)} GPUs", "title")], shape.width, state)
    titles = [(INDEX + 1 + at * shape.column, meter.label) for at, meter in enumerate(METERS)]
    at = shape.meters
    for label, width in FIGURES:
        titles.append((at + width - len(label), label))
        at += width
    names = {printable(g.name or "") for g in gpus}
    what = f"{len(gpus)} × {names.pop()}" if len(names) == 1 else f"{len(gpus)} GPUs"
    # Where NVML is slow and is asked less often, that has room at 80 columns too.
    titles.append((at + 2, f"every {seconds(frame.gpus.period_s)}" if state else what))
    return ruled(titles, shape.width)


def ruled(titles: list[tuple[int, str]], width: int) -> Line:
    """Column titles standing in a rule, each at its column; what does not fit is left out."""
    line: Line = []
    used = 0
    for at, text in titles:
        if at + len(text) > width:
            break
        filler = max(at - used, 0)
        line += [("─" * (filler - 1), "rule"), (" ", "")] if filler else []
        line.append((text, "title"))
        used += filler + len(text)
        if used < width:
            line.append((" ", ""))
            used += 1
    line.append(("─" * (width - used), "rule"))
    return line


def _row(frame: Frame, gpu: Gpu, shape: _Shape) -> Line:
    line: Line = [(pad(str(gpu.index), INDEX - 1, right=True) + " ", "strong")]
    for meter in METERS:
        value = meter.read(gpu)
        text = DASH if value is None else f"{value:.0f}"
        line += [(pad(text, VALUE, right=True) + " ", value_role(value)), *bar(value, shape.bar, meter.role), (" ", "")]
    values = (memory_pct(frame, gpu), gpu.power_w, gpu.temp_c, gpu.sm_clock_mhz)
    for value, (_, width) in zip(values, FIGURES, strict=True):
        text = DASH if value is None else f"{value:.0f}"
        line.append((pad(text, width, right=True), "dim" if value is None else ""))
    if shape.rest:
        troubles = _troubles(frame, gpu, shape.rest)
        line += [("  ", ""), *(_links(gpu, shape.rest) if shape.rows > 1 or not troubles else troubles)]
    return fit(line, shape.width)


def _troubles(frame: Frame, gpu: Gpu, width: int) -> Line:
    words = [*flags(gpu), *(f"▲ {reason}" for reason in throttle_reasons(gpu))]
    if words:
        return [(as_many(words, width), "warn")]
    return [(watched_slice(frame, gpu) or "MIG", "dim")] if gpu.mig_enabled else []


def _links(gpu: Gpu, width: int) -> Line:
    parts = [labelled(link_name(gpu), flow_text(gpu.pcie_rx_bytes_per_s, gpu.pcie_tx_bytes_per_s))]
    nvlink = flow_text(gpu.nvlink_rx_bytes_per_s, gpu.nvlink_tx_bytes_per_s)
    if nvlink != DASH:
        parts.insert(0, labelled("NVLink", nvlink))
    return joined(parts, width)


def _histories(frame: Frame, gpu: Gpu, trails: Trails, shape: _Shape) -> list[Line]:
    """The history of each meter below it, and what is wrong below the rest: these rows change seldom."""
    rows = shape.rows - 1
    if not rows:
        return []
    cells = VALUE + shape.bar
    slots = trails.stretch(cells if rows == 1 else 2 * cells)
    drawn: list[list[str]] = []
    for meter in METERS:
        series = f"gpu.{gpu.index}.{meter.series}"
        if rows == 1:
            drawn.append([spark(trails.values(series, cells, slots), 100.0)])
        else:
            drawn.append(chart(trails.pairs(series, cells, slots), rows, 100.0))
    lines: list[Line] = []
    for row in range(rows):
        line: Line = [(" " * (INDEX + 1), "")]
        for meter, texts in zip(METERS, drawn, strict=True):
            line += [(texts[row], meter.role), ("  ", "")]
        if row == 0:
            line += [(" ", ""), *_troubles(frame, gpu, shape.width - shape.meters - 2)]
        lines.append(fit(line, shape.width))
    return lines
