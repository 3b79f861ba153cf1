"""Takes a window of GPU metrics and CPU samples of the whole node."""

from __future__ import annotations

import os
from pathlib import Path

from gputop_llm.capture.nsys.collection import Collection
from gputop_llm.capture.nsys.tool import Tool, distrusted
from gputop_llm.capture.nsys.window import WindowTaker
from gputop_llm.capture.preflight import Refused, check_room
from gputop_llm.capture.way import Setting
from gputop_llm.timeline.nsys_export import find_nsys

_NOTHING_SEEN = "nsys wrote no sample: somebody else may read the GPU's counters (DCGM, ncu)"
_FREQUENCY_HZ = 10_000
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")


class SystemTaker(WindowTaker):
    """One window of the node."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, _NOTHING_SEEN)

    def prepare(self) -> None:
        check_room(self.setting.plan)
        found = find_nsys()
        if not found:
            raise Refused("cannot capture", "there is no nsys on this machine", "install Nsight Systems")
        path = found[0].path
        if (doubt := distrusted(path)) is not None:
            raise Refused("cannot capture", f"{path} can't be trusted: {doubt}", "install nsys as root")
        tool = Tool(path)
        metrics = next((name for name in sorted(tool.flags("start")) if name.startswith("--gpu-metrics-device")), None)
        if metrics is None:
            raise Refused("cannot capture", f"{path} can't read GPU metrics", "use Nsight Systems 2021.2 or newer")
        sampled = "system-wide" if _may_sample() else "none"
        name = f"gputop-llm-system-{os.getpid()}"
        options = (
            ("--session-new", name),
            (metrics, "all"),
            ("--gpu-metrics-frequency", str(_FREQUENCY_HZ)),
            ("--sample", sampled),
            ("--cpuctxsw", sampled),
        )
        self.collection = Collection(tool, name, self.setting.folder, options)


def _may_sample() -> bool:
    """Whether this user may sample other processes' CPUs."""
    if os.geteuid() == 0:
        return True
    try:
        return int(_PARANOID.read_text()) <= 0
    except (OSError, ValueError):
        return False
