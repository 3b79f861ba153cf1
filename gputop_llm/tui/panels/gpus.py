"""The overview's GPU panel: what NVML calls utilisation beside what the chip really does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputop_llm.model import Frame, Gpu
from gputop_llm.printable import printable
from gputop_llm.tui.charts import chart, spark
from gputop_llm.tui.draw import Block, Line, Run, bar, fit, joined, pad, rule, wrapped
from gputop_llm.tui.panels.common import labelled, part_state, spaced
from gputop_llm.tui.trails import Trails, stretch_slots
from gputop_llm.units import DASH, pct, rate, seconds, size

LABEL = 10
HISTORY_S = 300.0


@dataclass(frozen=True, slots=True)
class Meter:
    """One number of a GPU on the scale 0–100."""

    label: str
    series: str
    role: str
    hint: str
    read: Callable[[Gpu], float | None]


METERS = (
    Meter("NVML util", "util_pct", "busy", "some kernel was running", lambda g: g.util_pct),
    Meter(
        "SM active",
        "sm_active_pct",
        "work",
        "SMs that had a warp",
        lambda g: None if g.gpm is None else g.gpm.sm_active_pct,
    ),
    Meter("tensor", "tensor_pct", "work", "tensor pipes in use", lambda g: None if g.gpm is None else g.gpm.tensor_pct),
    Meter(
        "DRAM", "dram_bw_pct", "work", "memory bandwidth in use", lambda g: None if g.gpm is None else g.gpm.dram_bw_pct
    ),
)
_MEMORY = Meter("memory", "mem_used_pct", "mem", "", lambda g: g.mem_used_pct)
_POWER = Meter("power", "power_pct", "mem", "", lambda g: g.power_pct)


def gpu_panel(frame: Frame, trails: Trails, width: int, height: int) -> Block:
    """Title and rows for one GPU (tall) or many (one or two rows each)."""
    node = frame.gpus.value
    if node is None or node.problem is not None or not node.gpus:
        return _no_gpus(frame, width, height)
    if len(node.gpus) == 1:
        return _one(frame, node.gpus[0], trails, width, height)
    return _many(frame, node.gpus, trails, width, height)


def _no_gpus(frame: Frame, width: int, height: int) -> Block:
    node = frame.gpus.value
    if node is not None and node.problem is not None:
        text, role = f"▲ {printable(node.problem)}", "warn"
    elif node is not None:
        text, role = "the driver knows no GPU", "dim"
    elif frame.gpus.error is not None:
        text, role = f"▲ {printable(frame.gpus.error)}", "warn"
    else:
        text, role = "reading the GPUs …", "dim"
    return Block([rule([("GPU", "title")], width), *wrapped(text, width, role)][:height])


# -- one GPU ------------------------------------------------------------------


def _one(frame: Frame, gpu: Gpu, trails: Trails, width: int, height: int) -> Block:
    per_meter = max(1, min(8, (height - 5) // 4)) if height >= 13 else 1
    tall = per_meter > 1
    bar_width = 14 if width < 76 else 20 if width < 110 else 26
    scale = 4 if tall else 0
    history = max(0, width - LABEL - 5 - 1 - bar_width - 2 - scale)
    slots = stretch_slots(history * (2 if tall else 1) or 1, HISTORY_S)
    span = trails.span_s(history * (2 if tall else 1), slots)
    lines = [_title(frame, gpu, width, f"{seconds(span)} on 0–100 %")]
    for meter in METERS:
        lines += _meter(gpu, meter, trails, bar_width, history, slots, per_meter)
    extra = [
        _memory_line(gpu, trails, width, bar_width, history if height >= 11 else 0, slots, tall),
        *([_power_line(gpu, trails, bar_width, history, slots, tall)] if height >= 4 * per_meter + 5 else []),
        _clock_line(gpu, width),
        _link_line(gpu, width),
    ]
    lines += extra
    return Block(lines[:height], dict.fromkeys(range(height), f"gpu:{gpu.index}"))


def _title(frame: Frame, gpu: Gpu, width: int, remark: str) -> Line:
    title: Line = [(f"GPU {gpu.index}", "title"), (f" {printable(gpu.name or 'unknown model')}", "")]
    for flag in flags(gpu):
        title += [("  ", ""), (flag, "warn")]
    state = part_state(frame.gpus, frame.period_s)
    return rule(title, width, state or [(remark, "dim")])


def _meter(gpu: Gpu, meter: Meter, trails: Trails, bar_width: int, history: int, slots: int, rows: int) -> list[Line]:
    value = meter.read(gpu)
    series = f"gpu.{gpu.index}.{meter.series}"
    first: Line = [
        (pad(meter.label, LABEL), ""),
        (pad(pct(value), 5, right=True), "strong" if value is not None else "dim"),
        (" ", ""),
        *bar(value, bar_width, meter.role),
        ("  ", ""),
    ]
    if rows == 1:
        return [[*first, (spark(trails.values(series, history, slots), 100.0), meter.role)]]
    drawn = chart(trails.pairs(series, history, slots), rows, 100.0)
    usual = trails.usual(series)
    notes = [meter.hint, f"usual {pct(usual)}" if usual is not None else ""]
    lines: list[Line] = []
    for row, text in enumerate(drawn):
        mark = "100" if row == 0 else "0" if row == rows - 1 else ""
        if row == 0:
            left = first
        else:
            note = notes[row - 1] if row <= len(notes) else ""
            left = [(pad(note, LABEL + 5 + 1 + bar_width + 2), "dim")]
        lines.append([*left, (pad(mark, 3, right=True) + " ", "dim"), (text, meter.role)])
    return lines


def _memory_line(gpu: Gpu, trails: Trails, width: int, bar_width: int, history: int, slots: int, tall: bool) -> Line:
    amount = f"{_amount(gpu.mem_used_bytes, gpu.mem_total_bytes)}{' of host RAM' if gpu.integrated else ''}"
    line = _gauge(_MEMORY, gpu, bar_width)
    if history < 60:
        return [*line, *joined([[(amount, "")], _power_words(gpu)], width - LABEL - 8 - bar_width)]
    return [*line, *_history_with(amount, _MEMORY, gpu, trails, history, slots, tall)]


def _power_line(gpu: Gpu, trails: Trails, bar_width: int, history: int, slots: int, tall: bool) -> Line:
    limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f} W"
    words = DASH if gpu.power_w is None else f"{gpu.power_w:.0f}{limit or ' W'}"
    return [*_gauge(_POWER, gpu, bar_width), *_history_with(words, _POWER, gpu, trails, history, slots, tall)]


def _gauge(meter: Meter, gpu: Gpu, bar_width: int) -> Line:
    value = meter.read(gpu)
    return [
        (pad(meter.label, LABEL), ""),
        (pad(pct(value), 5, right=True), value_weight(value)),
        (" ", ""),
        *bar(value, bar_width, meter.role),
        ("  ", ""),
    ]


def _history_with(words: str, meter: Meter, gpu: Gpu, trails: Trails, history: int, slots: int, tall: bool) -> Line:
    """Words, then what room is left as a history that ends where those of the meters end."""
    scale = 4 if tall else 0
    room = history + scale
    text_width = 20
    cells = room - text_width
    series = f"gpu.{gpu.index}.{meter.series}"
    per_cell = slots * (2 if tall else 1)
    return [(pad(words, text_width), ""), (spark(trails.values(series, cells, per_cell), 100.0), meter.role)]


def value_weight(value: float | None) -> str:
    """Known numbers stand out."""
    return "dim" if value is None else "strong"


def _amount(used: float | None, total: float | None) -> str:
    if used is None or total is None:
        return size(used if total is None else total)
    used_text, total_text = size(used), size(total)
    used_number, _, unit = used_text.partition(" ")
    return f"{used_number} of {total_text}" if total_text.endswith(f" {unit}") else f"{used_text} of {total_text}"


def _power_words(gpu: Gpu) -> list[Run]:
    if gpu.power_w is None:
        return labelled("power", DASH)
    limit = "" if gpu.power_limit_w is None else f" of {gpu.power_limit_w:.0f}"
    share = "" if gpu.power_pct is None else f" ({gpu.power_pct:.0f} %)"
    return labelled("power", f"{gpu.power_w:.0f}{limit} W{share}")


def _clock_line(gpu: Gpu, width: int) -> Line:
    return joined(
        [
            labelled("SM", _of(gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, "MHz")),
            labelled("memory", _of(gpu.mem_clock_mhz, gpu.mem_clock_max_mhz, "MHz")),
            labelled("temp", _temperature(gpu)),
            _throttle_words(gpu),
        ],
        width,
    )


def _of(value: float | None, top: float | None, unit: str) -> str:
    if value is None:
        return DASH
    return f"{value:.0f} {unit}" if top is None else f"{value:.0f}/{top:.0f} {unit}"


def _temperature(gpu: Gpu) -> str:
    if gpu.temp_c is None:
        return DASH
    limit = "" if gpu.temp_slowdown_c is None else f" (slows at {gpu.temp_slowdown_c:.0f})"
    return f"{gpu.temp_c:.0f} °C{limit}"


def _throttle_words(gpu: Gpu) -> list[Run]:
    if gpu.throttle is None:
        return labelled("throttle", DASH)
    active = throttle_reasons(gpu)
    if active:
        return [("▲ throttled: " + ", ".join(active), "warn")]
    return labelled("throttle", "none")


def throttle_reasons(gpu: Gpu) -> list[str]:
    """Active reasons as words, being idle aside."""
    return [
        spaced(t.name) + ("" if t.share_pct is None else f" {t.share_pct:.0f} %")
        for t in gpu.throttle or ()
        if t.active and t.name != "idle"
    ]


def _link_line(gpu: Gpu, width: int) -> Line:
    processes = DASH if gpu.processes is None else str(len(gpu.processes))
    xids = f"Xid {', '.join(str(x.xid) for x in gpu.xids)}" if gpu.xids else "Xid none"
    return joined(
        [
            labelled(link_text(gpu), f"in {rate(gpu.pcie_rx_bytes_per_s)} out {rate(gpu.pcie_tx_bytes_per_s)}"),
            labelled("NVLink", nvlink_text(gpu)),
            labelled("ECC errors", DASH if gpu.ecc_uncorrected is None else str(gpu.ecc_uncorrected)),
            [(xids, "warn" if gpu.xids else "dim")],
            labelled("processes", processes),
        ],
        width,
    )


def link_text(gpu: Gpu) -> str:
    """ "PCIe 5×16" """
    if gpu.pcie_gen is None or gpu.pcie_width is None:
        return "PCIe"
    return f"PCIe {gpu.pcie_gen}×{gpu.pcie_width}"


def nvlink_text(gpu: Gpu) -> str:
    """Received and sent over NVLink."""
    if gpu.nvlink_rx_bytes_per_s is None and gpu.nvlink_tx_bytes_per_s is None:
        return DASH
    return f"in {rate(gpu.nvlink_rx_bytes_per_s)} out {rate(gpu.nvlink_tx_bytes_per_s)}"


def flags(gpu: Gpu) -> list[str]:
    """What is wrong with the board itself, in words."""
    found = []
    if gpu.lost:
        found.append("▲ lost")
    if gpu.xids:
        found.append(f"▲ Xid {gpu.xids[-1].xid}")
    if gpu.ecc_uncorrected:
        found.append(f"▲ ECC {gpu.ecc_uncorrected}")
    if gpu.remap_failed:
        found.append("▲ row remap failed")
    elif gpu.remap_pending:
        found.append("▲ row remap pending")
    if gpu.pcie_width and gpu.pcie_width_max and gpu.pcie_width < gpu.pcie_width_max:
        found.append(f"▲ PCIe ×{gpu.pcie_width} of ×{gpu.pcie_width_max}")
    return found


# -- many GPUs ----------------------------------------------------------------

_INDEX = 3


def _many(frame: Frame, gpus: tuple[Gpu, ...], trails: Trails, width: int, height: int) -> Block:
    bar_width = max(3, min(14, (width - 54) // 4 - 1)) if width >= 72 else 3
    column = 4 + bar_width + 2
    rows = 2 if height >= 2 * len(gpus) + 1 else 1
    shown = gpus if rows * len(gpus) < height else gpus[: max(1, height - 2)]
    lines: list[Line] = [_many_title(frame, gpus, width, column)]
    keys: dict[int, str] = {}
    for gpu in shown:
        for line in gpu_rows(gpu, trails, width, bar_width, rows):
            keys[len(lines)] = f"gpu:{gpu.index}"
            lines.append(line)
    if len(shown) < len(gpus):
        lines.append([(f"and {len(gpus) - len(shown)} more: press 2", "dim")])
    return Block(lines[:height], keys)


def _many_title(frame: Frame, gpus: tuple[Gpu, ...], width: int, column: int) -> Line:
    state = part_state(frame.gpus, frame.period_s)
    if state:
        return rule([(f"{len(gpus)} GPUs", "title")], width, state)
    titles = [(0, f"─ {len(gpus)} GPUs")]
    titles += [(_INDEX + at * column + 1, meter.label) for at, meter in enumerate(METERS)]
    titles[0] = (0, "─")
    at = _INDEX + len(METERS) * column
    for label, cell in (("mem", 6), ("power", 7), ("temp", 6), ("SM MHz", 7)):
        titles.append((at + cell - len(label), label))
        at += cell
    names = sorted({printable(g.name or "") for g in gpus})
    titles.append((at + 2, f"{len(gpus)} × {names[0]}" if len(names) == 1 else f"{len(gpus)} GPUs"))
    return ruled(titles, width)


def ruled(titles: list[tuple[int, str]], width: int) -> Line:
    """Column titles standing in a rule, each at its column; what does not fit is left out."""
    line: Line = []
    used = 0
    for at, text in titles:
        if at + len(text) > width:
            break
        if at > used:
            line.append(("─" * (at - used - 1) + " " if used else "─" * (at - used), "rule"))
        line.append((text, "rule" if text == "─" else "title"))
        used = at + len(text)
        if used < width and text != "─":
            line.append((" ", ""))
            used += 1
    line.append(("─" * (width - used), "rule"))
    return line


def gpu_rows(gpu: Gpu, trails: Trails, width: int, bar_width: int, rows: int) -> list[Line]:
    """One GPU as one row; with `rows` = 2 its four histories stand under its four numbers."""
    line: Line = [(pad(str(gpu.index), _INDEX - 1, right=True) + " ", "strong")]
    for meter in METERS:
        value = meter.read(gpu)
        text = DASH if value is None else f"{value:.0f}"
        line += [(pad(text, 4, right=True) + " ", value_weight(value)), *bar(value, bar_width, meter.role), (" ", "")]
    for text, cell in (
        (pct(gpu.mem_used_pct), 6),
        (DASH if gpu.power_w is None else f"{gpu.power_w:.0f} W", 7),
        (DASH if gpu.temp_c is None else f"{gpu.temp_c:.0f} °C", 6),
        (DASH if gpu.sm_clock_mhz is None else f"{gpu.sm_clock_mhz:.0f}", 7),
    ):
        line.append((pad(text, cell, right=True), "dim" if text == DASH else ""))
    words = [*flags(gpu), *(f"▲ {reason}" for reason in throttle_reasons(gpu))]
    if not words and gpu.mig_enabled:
        words = ["MIG"]
    line.append(("  " + "  ".join(words), "warn" if words != ["MIG"] else "dim"))
    lines = [fit(line, width)]
    if rows > 1:
        lines.append(_history_row(gpu, trails, width, bar_width))
    return lines


def _history_row(gpu: Gpu, trails: Trails, width: int, bar_width: int) -> Line:
    cells = 4 + bar_width
    slots = stretch_slots(cells, HISTORY_S)
    line: Line = [(" " * (_INDEX + 1), "")]
    for meter in METERS:
        drawn = spark(trails.values(f"gpu.{gpu.index}.{meter.series}", cells, slots), 100.0)
        line += [(drawn, meter.role), ("  ", "")]
    line.append((" ", ""))
    links = joined(
        [
            labelled(link_text(gpu), f"in {rate(gpu.pcie_rx_bytes_per_s)} out {rate(gpu.pcie_tx_bytes_per_s)}"),
            labelled("NVLink", nvlink_text(gpu)),
        ],
        width - _INDEX - len(METERS) * (cells + 2),
    )
    return fit([*line, *links], width)
