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
) -> tuple[int | None, int | None, int | None]:
    """Bytes used by GPU processes, the host's RAM, and what of it is available, for a part whose memory is the host's.

    Programs that do not use the GPU are not counted.
    """
    total, available = (_meminfo(meminfo_path, name) for name in ("MemTotal", "MemAvailable"))
    if total is None:
        asker.lacks("mem_total_bytes", f"the GPU shares the host's RAM, and {meminfo_path} can't be read")
    else:
        asker.missing.pop("mem_total_bytes", None)
    known_sizes = [process.mem_bytes for process in processes or () if process.mem_bytes is not None]
    if processes is None or len(known_sizes) < len(processes):
        whose = "its processes are" if processes is None else "the memory of some of its processes is"
        asker.lacks("mem_used_bytes", f"the GPU shares the host's RAM, and {whose} unknown")
        return None, total, available
    asker.missing.pop("mem_used_bytes", None)
    return sum(known_sizes), total, available


def _meminfo(path: Path, name: str) -> int | None:
    """A line of /proc/meminfo in bytes; None if unreadable."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(encoding="ascii"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return int(found[1]) * 1024 if found else None
