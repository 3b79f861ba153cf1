"""Every value of one GPU, each with its unit or with the reason why it is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gputop_llm.model import Frame, Gpu
from gputop_llm.printable import printable
from gputop_llm.tui.draw import Line, beside, fit, pad, rule, width_of, wrapped
from gputop_llm.tui.panels.common import clock_text, reason_for, spaced, target_name
from gputop_llm.units import DASH, pct, rate, size

LABEL = 26
TWO_COLUMNS = 110


@dataclass(frozen=True, slots=True)
class Field:
    """A field of `Gpu` ("gpm.…": of its `Gpm`), its label, and how its value is written."""

    name: str
    label: str
    text: Callable[[Any], str]


def _whole(unit: str) -> Callable[[float], str]:
    return lambda value: f"{value:.0f} {unit}"


def _energy(joules: float) -> str:
    return f"{joules / 1e3:.0f} kJ" if joules < 3.6e6 else f"{joules / 3.6e6:.1f} kWh"


def _plain(value: object) -> str:
    return printable(str(value))


def _memory_kind(source: str) -> str:
    return "the host's RAM, shared" if source == "host-shared" else source


def _yes_no(value: bool) -> str:
    return "yes" if value else "no"


def _gpm_pct(value: float) -> str:
    return pct(value, 1)


SECTIONS: tuple[tuple[str, tuple[Field, ...]], ...] = (
    (
        "What the chip does",
        (
            Field("util_pct", "NVML util", pct),
            Field("mem_util_pct", "NVML memory util", pct),
            Field("gpm.sm_active_pct", "SM active", _gpm_pct),
            Field("gpm.sm_occupancy_pct", "SM occupancy", _gpm_pct),
            Field("gpm.tensor_pct", "tensor, any", _gpm_pct),
            Field("gpm.tensor_hmma_pct", "tensor HMMA", _gpm_pct),
            Field("gpm.tensor_imma_pct", "tensor IMMA", _gpm_pct),
            Field("gpm.tensor_dfma_pct", "tensor DFMA", _gpm_pct),
            Field("gpm.fp32_pct", "FP32", _gpm_pct),
            Field("gpm.fp16_pct", "FP16", _gpm_pct),
            Field("gpm.fp64_pct", "FP64", _gpm_pct),
            Field("gpm.integer_pct", "integer", _gpm_pct),
            Field("gpm.dram_bw_pct", "DRAM bandwidth", _gpm_pct),
            Field("gpm.graphics_pct", "graphics engine", _gpm_pct),
            Field("gpm.interval_s", "GPM averaged over", lambda v: f"{v:.2f} s"),
        ),
    ),
    (
        "Memory",
        (
            Field("mem_used_bytes", "used", size),
            Field("mem_total_bytes", "total", size),
            Field("mem_used_pct", "used share", pct),
            Field("mem_free_bytes", "free", size),
            Field("mem_source", "kind", _memory_kind),
            Field("mem_bus_width_bits", "bus width", lambda v: f"{v} bits"),
        ),
    ),
    (
        "Clocks and power",
        (
            Field("sm_clock_mhz", "SM clock", _whole("MHz")),
            Field("sm_clock_max_mhz", "SM clock, highest", _whole("MHz")),
            Field("mem_clock_mhz", "memory clock", _whole("MHz")),
            Field("mem_clock_max_mhz", "memory clock, highest", _whole("MHz")),
            Field("power_w", "power", _whole("W")),
            Field("power_limit_w", "power limit", _whole("W")),
            Field("power_pct", "share of the limit", pct),
            Field("energy_j", "energy since driver load", _energy),
            Field("temp_c", "temperature", _whole("°C")),
            Field("temp_mem_c", "memory temperature", _whole("°C")),
            Field("temp_slowdown_c", "slows down at", _whole("°C")),
            Field("temp_shutdown_c", "shuts down at", _whole("°C")),
            Field("fan_pct", "fan", pct),
        ),
    ),
    (
        "Links",
        (
            Field("pcie_rx_bytes_per_s", "PCIe in", rate),
            Field("pcie_tx_bytes_per_s", "PCIe out", rate),
            Field("gpm.pcie_rx_bytes_per_s", "PCIe in, by GPM", rate),
            Field("gpm.pcie_tx_bytes_per_s", "PCIe out, by GPM", rate),
            Field("pcie_gen", "PCIe generation", _plain),
            Field("pcie_gen_max", "PCIe generation, highest", _plain),
            Field("pcie_width", "PCIe lanes", _plain),
            Field("pcie_width_max", "PCIe lanes, highest", _plain),
            Field("pcie_replays", "PCIe replays", _plain),
            Field("nvlink_rx_bytes_per_s", "NVLink in", rate),
            Field("nvlink_tx_bytes_per_s", "NVLink out", rate),
            Field("gpm.nvlink_rx_bytes_per_s", "NVLink in, by GPM", rate),
            Field("gpm.nvlink_tx_bytes_per_s", "NVLink out, by GPM", rate),
            Field("nvlink_errors", "NVLink errors", _plain),
        ),
    ),
    (
        "Health",
        (
            Field("lost", "lost", _yes_no),
            Field("ecc_uncorrected", "ECC uncorrected", _plain),
            Field("ecc_corrected", "ECC corrected", _plain),
            Field("remapped_rows", "remapped rows", _plain),
            Field("remap_pending", "row remap pending", _yes_no),
            Field("remap_failed", "row remap failed", _yes_no),
        ),
    ),
    (
        "Identity",
        (
            Field("index", "NVML index", _plain),
            Field("name", "name", _plain),
            Field("architecture", "architecture", _plain),
            Field("uuid", "UUID", _plain),
            Field("pci_bus_id", "PCI bus", _plain),
            Field("integrated", "integrated", _yes_no),
            Field("mig_enabled", "MIG enabled", _yes_no),
        ),
    ),
)


def gpu_details(frame: Frame, gpu: Gpu, width: int) -> list[Line]:
    """All sections of one GPU; in two columns where there is room."""
    sections = [[_heading(title), *(_field(gpu, f) for f in fields)] for title, fields in SECTIONS]
    node = frame.gpus.value
    if node is not None:
        sections[-1] += [
            _row("driver", printable(node.driver or DASH), ""),
            _row("CUDA", printable(node.cuda or DASH), ""),
            _row("vGPU guest", _yes_no(node.vgpu_guest), ""),
            *([_row("under WSL", "yes", "")] if node.wsl else []),
        ]
    sections += [_throttle(gpu), _xids(gpu), _processes(frame, gpu), _mig(gpu)]
    return in_columns([s for s in sections if s], width)


def in_columns(sections: list[list[Line]], width: int) -> list[Line]:
    """Sections under each other, or, where there is room, in two columns of about the same height."""
    if width < TWO_COLUMNS:
        return [line for section in sections for row in section for line in _finished(row, width)]
    column = (width - 2) // 2
    sections = [[line for row in section for line in _finished(row, column)] for section in sections]
    total = sum(len(s) for s in sections)
    left: list[Line] = []
    right: list[Line] = []
    for section in sections:
        (left if len(left) < total / 2 - len(section) / 2 and not right else right).extend(section)
    return beside(left, right, column, width)


def _finished(line: Line, width: int) -> list[Line]:
    """A heading as a rule of the column's width; a long value on as many lines as it needs."""
    if line and line[0][1] == "title":
        return [rule(line, width)]
    if width_of(line) <= width or len(line) < 2:
        return [fit(line, width)]
    label, rest = line[0], line[1:]
    texts = wrapped("".join(text for text, _ in rest), width - LABEL, rest[-1][1])
    return [fit([label if at == 0 else (" " * LABEL, ""), *text], width) for at, text in enumerate(texts)]


def _heading(title: str) -> Line:
    return [(title, "title")]


def _row(label: str, text: str, reason: str) -> Line:
    if text == DASH:
        return [(pad(label, LABEL), "dim"), (DASH, "dim"), (f"  {reason}", "dim")]
    return [(pad(label, LABEL), "dim"), (text, "")]


def value_of(gpu: Gpu, name: str) -> object:
    """A field of the GPU, or of its GPM reading."""
    owner, _, field = name.rpartition(".")
    holder = gpu.gpm if owner == "gpm" else gpu
    return None if holder is None else getattr(holder, field)


def _field(gpu: Gpu, field: Field) -> Line:
    value = value_of(gpu, field.name)
    if value is None:
        return _row(field.label, DASH, reason_for(gpu.missing, field.name))
    return _row(field.label, field.text(value), "")


def _throttle(gpu: Gpu) -> list[Line]:
    lines = [_heading("Why clocks are lowered")]
    if gpu.throttle is None:
        return [*lines, _row("throttle reasons", DASH, reason_for(gpu.missing, "throttle"))]
    for reason in gpu.throttle:
        state = "active" if reason.active else "no"
        share = "" if reason.share_pct is None else f", {reason.share_pct:.0f} % of the time"
        source = "" if reason.source == "counter" else " (momentary)"
        alarming = reason.active and reason.name != "idle"
        text = f"{'▲ ' if alarming else ''}{state}{share}{source}"
        lines.append([(pad(spaced(reason.name), LABEL), "dim"), (text, "warn" if alarming else "")])
    return lines


def _xids(gpu: Gpu) -> list[Line]:
    lines = [_heading("Xid events")]
    if not gpu.xids:
        return [
            *lines,
            _row("Xid", "none seen", "")
            if "xids" not in gpu.missing
            else _row("Xid", DASH, reason_for(gpu.missing, "xids")),
        ]
    return [*lines, *([(f"▲ Xid {x.xid} at {clock_text(x.at_s)}", "warn")] for x in gpu.xids)]


def _processes(frame: Frame, gpu: Gpu) -> list[Line]:
    lines = [_heading("Processes that NVML lists")]
    if gpu.processes is None:
        return [*lines, _row("processes", DASH, reason_for(gpu.missing, "processes"))]
    if not gpu.processes:
        return [*lines, [("none", "dim")]]
    found = frame.targets.value.targets if frame.targets.value else ()
    whose = {p.nvml_pid: target_name(target) for target in found for p in target.processes if p.nvml_pid is not None}
    for process in gpu.processes:
        instance = "" if process.gpu_instance is None else f"  MIG {process.gpu_instance}"
        owner = f"  {whose[process.pid]}" if process.pid in whose else ""
        lines.append(
            [
                (pad(f"pid {process.pid}", 14), ""),
                (f"{process.kind}  {size(process.mem_bytes)}  SM {pct(process.sm_util_pct)}{instance}{owner}", ""),
            ]
        )
    return lines


def _mig(gpu: Gpu) -> list[Line]:
    if not gpu.mig_instances:
        return []
    lines = [_heading("MIG instances")]
    for at, part in enumerate(gpu.mig_instances):
        share = "" if part.mem_used_pct is None else f" ({pct(part.mem_used_pct)})"
        used = f"{size(part.mem_used_bytes)} of {size(part.mem_total_bytes)}{share}"
        sms = DASH if part.sm_count is None else str(part.sm_count)
        lines.append(
            [
                (
                    f"{printable(part.name or DASH)}  GI {_id(part.gpu_instance)}  CI {_id(part.compute_instance)}",
                    "strong",
                )
            ]
        )
        lines.append(_row("  memory", used, ""))
        lines.append(_row("  SMs", sms, reason_for(gpu.missing, f"mig_instances[{at}].sm_count")))
        lines.append(_row("  UUID", printable(part.uuid or DASH), reason_for(gpu.missing, f"mig_instances[{at}].uuid")))
        for process in part.processes:
            lines.append(_row(f"  pid {process.pid}", size(process.mem_bytes), "no memory figure"))
    return lines


def _id(value: int | None) -> str:
    return DASH if value is None else str(value)


def reasons_text(missing: Mapping[str, str], width: int) -> list[Line]:
    """Names and reasons of everything that is not known."""
    lines: list[Line] = []
    for name in sorted(missing):
        lines += wrapped(f"{spaced(name)}: {printable(missing[name])}", width, "dim", "  ")
    return lines
