"""A GPU's meters, and its state in words, for every panel that shows GPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gputop_llm.model import Frame, Gpu, MigInstance
from gputop_llm.tui.panels.common import spaced
from gputop_llm.units import DASH, rate, size


@dataclass(frozen=True, slots=True)
class Meter:
    """One number of a GPU on the scale 0–100: its label, its field and series, and what it means."""

    label: str
    field: str
    role: str
    hint: str
    read: Callable[[Gpu], float | None]

    @property
    def series(self) -> str:
        """The field's name in the history."""
        return self.field.removeprefix("gpm.")


# What NVML calls utilisation stands beside what the chip does, on one scale.
METERS = (
    Meter("NVML util", "util_pct", "busy", "time with any kernel", lambda g: g.util_pct),
    Meter(
        "SM active",
        "gpm.sm_active_pct",
        "work",
        "SMs with work",
        lambda g: None if g.gpm is None else g.gpm.sm_active_pct,
    ),
    Meter(
        "tensor", "gpm.tensor_pct", "work", "tensor pipes in use", lambda g: None if g.gpm is None else g.gpm.tensor_pct
    ),
    Meter(
        "DRAM", "gpm.dram_bw_pct", "work", "bandwidth in use", lambda g: None if g.gpm is None else g.gpm.dram_bw_pct
    ),
)
MEMORY = Meter("memory", "mem_used_pct", "mem", "", lambda g: g.mem_used_pct)
POWER = Meter("power", "power_pct", "mem", "", lambda g: g.power_pct)


def instance_of(frame: Frame, gpu: Gpu) -> MigInstance | None:
    """The MIG instance of a GPU that the attached target runs on; None if it is on none, or on several."""
    processes = frame.focused.processes if frame.focused else ()
    numbers = {p.mig_instance for p in processes if gpu.index in p.gpus and p.mig_instance is not None}
    found = [instance for instance in gpu.mig_instances if instance.gpu_instance in numbers]
    return found[0] if len(found) == 1 else None


def memory_pct(frame: Frame, gpu: Gpu) -> float | None:
    """Used share of a GPU's memory, or of that of the target's MIG instance."""
    instance = instance_of(frame, gpu)
    return gpu.mem_used_pct if instance is None else instance.mem_used_pct


def memory_text(frame: Frame, gpu: Gpu) -> str:
    """ "71.1 of 140 GiB", "MIG2: 36.2 of 39.5 GiB", "89.3 of 122 GiB host RAM, 23.0 GiB free" """
    instance = instance_of(frame, gpu)
    if instance is not None:
        return f"MIG{instance.gpu_instance}: {amount_text(instance.mem_used_bytes, instance.mem_total_bytes)}"
    words = amount_text(gpu.mem_used_bytes, gpu.mem_total_bytes)
    if gpu.mem_source == "host-shared":
        words += f" host RAM, {size(gpu.mem_free_bytes)} free"
    return words


def value_role(value: object) -> str:
    """Known numbers stand out, unknown ones step back."""
    return "dim" if value is None else "strong"


def amount_text(used: float | None, total: float | None) -> str:
    """ "71.1 of 140 GiB" """
    if used is None or total is None:
        return size(used if total is None else total)
    used_text, total_text = size(used), size(total)
    used_number, _, unit = used_text.partition(" ")
    return f"{used_number} of {total_text}" if total_text.endswith(f" {unit}") else f"{used_text} of {total_text}"


def power_text(gpu: Gpu) -> str:
    """ "246 of 700 W" """
    if gpu.power_w is None:
        return DASH
    return f"{gpu.power_w:.0f} W" if gpu.power_limit_w is None else f"{gpu.power_w:.0f} of {gpu.power_limit_w:.0f} W"


def watched_slice(frame: Frame, gpu: Gpu) -> str | None:
    """The MIG instance that the watched engine is on: "MIG2 36.2 of 39.5 GiB"; None without, or on several."""
    part = instance_of(frame, gpu)
    if part is None:
        return None
    return f"MIG{part.gpu_instance} {amount_text(part.mem_used_bytes, part.mem_total_bytes)}"


def throttle_reasons(gpu: Gpu) -> list[str]:
    """Active reasons for lowered clocks, being idle aside."""
    return [
        spaced(t.name) + ("" if t.share_pct is None else f" {t.share_pct:.0f} %")
        for t in gpu.throttle or ()
        if t.active and t.name != "idle"
    ]


def link_name(gpu: Gpu) -> str:
    """ "PCIe 5×16" """
    if gpu.pcie_gen is None or gpu.pcie_width is None:
        return "PCIe"
    return f"PCIe {gpu.pcie_gen}×{gpu.pcie_width}"


def flow_text(received: float | None, sent: float | None) -> str:
    """ "in 42.3 out 12.9 MiB/s", or "–" when neither is known."""
    if received is None and sent is None:
        return DASH
    in_text, out_text = rate(received), rate(sent)
    in_number, _, unit = in_text.partition(" ")
    short = unit and out_text.endswith(f" {unit}")
    return f"in {in_number if short else in_text} out {out_text}"


def flags(gpu: Gpu) -> list[str]:
    """What is wrong with the board itself, in words, the worst first."""
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


def as_many(words: list[str], width: int, gap: str = "  ") -> str:
    """As many of the words as fit; "+2" stands for two that do not."""
    text = ""
    for at, word in enumerate(words):
        left = len(words) - at - 1
        trial = f"{text}{gap}{word}" if text else word
        if len(trial) + (len(gap) + 2 if left else 0) > width:
            rest = f"+{left + 1}"
            return f"{text}{gap}{rest}" if text else (f"▲ {rest}" if word.startswith("▲") else rest)
        text = trial
    return text
