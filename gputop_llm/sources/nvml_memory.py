"""GPU memory: the device's own, or the host's RAM where the two are one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gputop_llm.model.gpu import GpuProcess
from gputop_llm.sources.nvml_ask import Asker, known
from gputop_llm.sources.nvml_errors import Implausible

_MEMORY_V2 = 0x02000028
_INTEGRATED = re.compile(r"\b(GB10|Tegra|Xavier|Orin|Thor|Jetson|nvgpu)\b", re.IGNORECASE)


def is_integrated(name: str | None) -> bool:
    """True for parts known to share the host's RAM (GB10, Jetson); by name, since a discrete GPU may fail alike."""
    return bool(name and _INTEGRATED.search(name))


def device_memory(asker: Asker) -> tuple[int | None, int | None]:
    """Used and total bytes of a device or MIG instance.

    Used is without the driver's own reserve where the driver can tell them apart (as nvidia-smi shows it).
    """
    fields = ("mem_used_bytes", "mem_total_bytes")
    calls = (("nvmlDeviceGetMemoryInfo", _MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
    used_total: tuple[int, int] | None = asker.ask(fields, *calls, read=_used_total)
    return used_total or (None, None)


def _used_total(answer: Any) -> tuple[int, int]:
    used, total = known(answer.used), known(answer.total)
    if total == 0:
        raise Implausible("the driver answers a total of 0 bytes")
    return used, total


def host_shared(
    asker: Asker, processes: Sequence[GpuProcess] | None, meminfo_path: Path
) -> tuple[int | None, int | None]:
    """Bytes used by GPU processes and the host's RAM, for a part whose memory is the host's.

    Programs that do not use the GPU are not counted.
    """
    total = mem_total_bytes(meminfo_path)
    if total is None:
        asker.lacks("mem_total_bytes", f"the GPU shares the host's RAM, and {meminfo_path} can't be read")
    else:
        asker.missing.pop("mem_total_bytes", None)
    if processes is None:
        asker.lacks("mem_used_bytes", "the GPU shares the host's RAM, and its processes are unknown")
        return None, total
    asker.missing.pop("mem_used_bytes", None)
    return sum(process.mem_bytes or 0 for process in processes), total


def mem_total_bytes(meminfo_path: Path) -> int | None:
    """The host's RAM in bytes, from MemTotal of /proc/meminfo; None if unreadable."""
    try:
        found = re.search(r"^MemTotal:\s+(\d+) kB", meminfo_path.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return int(found[1]) * 1024 if found else None
