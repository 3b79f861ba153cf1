"""Whether a process that belongs to no engine runs PyTorch, from the libraries that it has mapped."""

from __future__ import annotations

from collections.abc import Collection

from gputop_llm.clock import Clock
from gputop_llm.sources.dist_info import installed_version
from gputop_llm.sources.namespaces import same_files
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.procfs import ProcFs

_LIBRARY = b"/libtorch"
_MAPS_MAX_BYTES = 2 << 20
# It holds GPU memory already; what it has not loaded by then it hardly will.
_AGAIN_S, _LOOKS = 15.0, 4


class TorchProcesses:
    """Remembers what it found while a process lives; one without PyTorch is looked at a few times."""

    def __init__(self, proc: ProcFs, clock: Clock) -> None:
        self._proc = proc
        self._clock = clock
        self._known: dict[tuple[int, int], tuple[str | None, float, int]] = {}

    def remark(self, process: Process) -> str | None:
        """ "PyTorch 2.6.0", or without the version where that can't be read; None without PyTorch."""
        key = process.pid, process.start_ticks
        found, again_s, looks = self._known.get(key, (None, 0.0, 0))
        if found is None and looks < _LOOKS and self._clock.mono() >= again_s:
            found = self._look(process)
            self._known[key] = found, self._clock.mono() + _AGAIN_S, looks + 1
        return found

    def forget_all_but(self, alive: Collection[tuple[int, int]]) -> None:
        """Drops what is known of processes other than these (PID, start)."""
        self._known = {key: known for key, known in self._known.items() if key in alive}

    def _look(self, process: Process) -> str | None:
        try:
            if _LIBRARY not in self._proc.read(f"{process.pid}/maps", _MAPS_MAX_BYTES):
                return None
        except OSError:
            return None
        same = same_files(self._proc, process.pid)
        version = installed_version(self._proc, process.pid, process.argv, ("torch",), same_files=same)
        return f"PyTorch {version}" if version else "PyTorch"
