"""The GPUs of a frame as text: one row each, then what needs words."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_llm.model import Frame, Gpu
from gputop_llm.printable import printable
from gputop_llm.report.reasons import unknown
from gputop_llm.units import DASH, pct, rate, size

# Held by a healthy GPU at rest, or by whoever set the clocks: no reason to worry.
_HARMLESS = {"idle", "app_clocks"}
_IN_TABLE = (
    "util_pct",
    "gpm",
    "gpm.sm_active_pct",
    "gpm.sm_occupancy_pct",
    "gpm.tensor_pct",
    "gpm.dram_bw_pct",
    "mem_used_bytes",
    "mem_total_bytes",
    "processes.mem_bytes",
    "power_w",
    "power_limit_w",
    "temp_c",
    "sm_clock_mhz",
)


def gpu_lines(frame: Frame) -> list[str]:
    """A table of the GPUs, or why there is none."""
    node = frame.gpus.value
    if node is None:
        return []
    driver = f"driver {printable(node.driver or DASH)}, CUDA {printable(node.cuda or DASH)}"
    driver += ", in a vGPU guest" if node.vgpu_guest else ", under WSL" if node.wsl else ""
    if not node.gpus:
        return [f"No GPU: {printable(node.problem or 'none on this node')}"]
    lines = [
        f"GPU  {_names(node.gpus)}, {driver}",
        f"  {'#':>3} {'util':>5} {'SM act':>6} {'occup':>5} {'tensor':>6} {'DRAM':>5} {'memory GiB':>13} {'':>5}"
        f" {'power W':>9} {'temp':>5} {'SM MHz':>10}",
    ]
    for gpu in node.gpus:
        lines.append(_row(gpu))
    for gpu in node.gpus:
        lines += [f"  GPU {gpu.index}: {printable(text)}" for text in (*_remarks(gpu), *_missing(gpu))]
    return lines


def _row(gpu: Gpu) -> str:
    gpm = gpu.gpm
    shares = [
        f"{pct(gpu.util_pct):>5}",
        f"{pct(gpm.sm_active_pct if gpm else None):>6}",
        f"{pct(gpm.sm_occupancy_pct if gpm else None):>5}",
        f"{pct(gpm.tensor_pct if gpm else None):>6}",
        f"{pct(gpm.dram_bw_pct if gpm else None):>5}",
        f"{_pair(_gib(gpu.mem_used_bytes), _gib(gpu.mem_total_bytes)):>13}",
        f"{pct(gpu.mem_used_pct):>5}",
        f"{_pair(_whole(gpu.power_w), _whole(gpu.power_limit_w)):>9}",
        f"{_whole(gpu.temp_c) + ' C' if gpu.temp_c is not None else DASH:>5}",
        f"{_pair(_whole(gpu.sm_clock_mhz), _whole(gpu.sm_clock_max_mhz)):>10}",
    ]
    return f"  {gpu.index:>3} {' '.join(shares)}"


def _names(gpus: tuple[Gpu, ...]) -> str:
    """Each model once, with its GPUs' indices where there are several models."""
    by_name: dict[str, list[int]] = {}
    for gpu in gpus:
        by_name.setdefault(printable(gpu.name or DASH), []).append(gpu.index)
    if len(by_name) == 1:
        return f"{len(gpus)} × {next(iter(by_name))}" if len(gpus) > 1 else next(iter(by_name))
    return ", ".join(f"{name} ({', '.join(map(str, indices))})" for name, indices in by_name.items())


def _remarks(gpu: Gpu) -> Iterator[str]:
    if gpu.lost:
        yield "LOST: it does not answer any more"
    if gpu.mem_source == "host-shared":
        yield f"its memory is the host's RAM, shared with all programs: {size(gpu.mem_free_bytes)} available"
    held = [t for t in gpu.throttle or () if t.active and t.name not in _HARMLESS]
    if held:
        reasons = (
            t.name.replace("_", " ") + ("" if t.share_pct is None else f" {pct(t.share_pct)} of the time") for t in held
        )
        yield f"clock limits in force: {', '.join(reasons)}"
    if gpu.pcie_gen is not None or gpu.pcie_tx_bytes_per_s is not None:
        reduced = gpu.pcie_width is not None and gpu.pcie_width_max is not None and gpu.pcie_width < gpu.pcie_width_max
        yield (
            f"PCIe gen {_known(gpu.pcie_gen)} x{_known(gpu.pcie_width)}"
            + (f", REDUCED from x{gpu.pcie_width_max}" if reduced else "")
            + f", sends {rate(gpu.pcie_tx_bytes_per_s)}, receives {rate(gpu.pcie_rx_bytes_per_s)}"
            + (f", {gpu.pcie_replays} replays" if gpu.pcie_replays else "")
        )
    if gpu.nvlink_tx_bytes_per_s is not None or gpu.nvlink_rx_bytes_per_s is not None:
        yield f"NVLink sends {rate(gpu.nvlink_tx_bytes_per_s)}, receives {rate(gpu.nvlink_rx_bytes_per_s)}"
    errors = [
        f"{count} {what}"
        for count, what in (
            (gpu.ecc_uncorrected, "uncorrected ECC errors"),
            (gpu.nvlink_errors, "NVLink errors"),
            (gpu.remapped_rows, "remapped rows"),
        )
        if count
    ]
    errors += ["row remap pending: reset needed"] if gpu.remap_pending else []
    errors += ["ROW REMAP FAILED"] if gpu.remap_failed else []
    errors += [f"Xid {event.xid}" for event in gpu.xids]
    if errors:
        yield ", ".join(errors)
    for part in gpu.mig_instances:
        used = f"{size(part.mem_used_bytes)} of {size(part.mem_total_bytes)}"
        share = "" if part.mem_used_pct is None else f" ({pct(part.mem_used_pct)})"
        yield f"MIG {part.name or DASH} (instance {_known(part.gpu_instance)}): {used}{share}"


def _missing(gpu: Gpu) -> list[str]:
    """Why figures of the table are unknown."""
    return unknown({name: gpu.missing[name] for name in _IN_TABLE if name in gpu.missing})


def _pair(value: str, top: str) -> str:
    return f"{value}/{top}" if (value, top) != (DASH, DASH) else DASH


def _gib(value: int | None) -> str:
    return DASH if value is None else f"{value / 2**30:.1f}"


def _whole(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}"


def _known(value: int | None) -> str:
    return DASH if value is None else str(value)
