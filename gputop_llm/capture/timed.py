"""Times and grids of a program's kernels without GPU counters: by our own client, in short windows while it runs.

For where ncu can't be used. CUDA loads the client into the program (`gputop-llm run`), so nothing of it is changed; a
window costs it far less than a replay. What runs between two windows, or in the last one that the program doesn't
live to end, isn't seen: durations are a sample, and counts mean nothing.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.native import connect_prepared, library_path
from gputop_llm.capture.window import Window
from gputop_llm.errors import GputopError
from gputop_llm.ncu import child
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.timeline.launch_shape import Extents, extents_of
from gputop_llm.timeline.model import Kind, Timeline
from gputop_llm.timeline.native_format import Kinds
from gputop_llm.timeline.read_native import read_native

_VARIABLE = "CUDA_INJECTION64_PATH"
_WINDOW_NS = 250_000_000
_MOST_BYTES = 64 << 20
_MOST_WINDOWS = 200
_RECORD = "window{}.gtw"


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel with one launch shape: durations in ns, sorted; grid and block as x, y, z, None where unknown."""

    name: str
    grid: Extents | None
    block: Extents | None
    durations_ns: tuple[int, ...]


def time_kernels(
    argv: Sequence[str], output: Path, within_s: float, environment: Mapping[str, str] = os.environ
) -> tuple[list[TimedKernel], int | None]:
    """Runs a program to its end: its kernels, the longest in total first, and its exit code (None: its time was up).

    Args:
        output: where what it prints goes.

    Raises:
        GputopError: it can't be started, or nothing could be recorded in it; says why.
        KeyboardInterrupt: Ctrl-C; the program is ended by then.
    """
    inside = {**environment, _VARIABLE: str(library_path())}
    with tempfile.TemporaryDirectory(prefix="gputop-llm-") as name:
        folder = CaptureFolder(Path(name), "timed")
        folder.make()
        with closing(folder):
            windows = _Windows(folder)
            with open(output, "wb") as printed:
                ended = child.run(argv, printed, within_s, environment=inside, running=windows.look)
            windows.close()
            found = _found([folder.path / one for one in windows.whole])
    if not found:
        raise GputopError("no kernel was timed", *windows.why())
    return found, ended.code


class _Windows:
    """One window after the other in whatever process of the program has CUDA."""

    def __init__(self, folder: CaptureFolder) -> None:
        self._folder = folder
        self._proc = ProcFs()
        self._window: Window | None = None
        self._told = False
        self.begun = 0
        self.whole: list[str] = []
        self.refused: str | None = None

    def look(self, pid: int) -> None:
        """Called again and again while the program runs."""
        if self._window is None:
            self._begin(pid)
        window = self._window
        if window is None:
            return
        window.collect(0.02)
        if window.greeted and not window.over and not self._told:
            self._told = True
            window.start()
        if window.over:
            self.close()

    def close(self) -> None:
        """Ends the window that is open, if one is."""
        window, self._window = self._window, None
        if window is None:
            return
        window.collect(0.0)
        stream = window.members[0].stream
        window.put_away()
        if stream.end is not None:
            self.whole.append(window.members[0].name)
        if stream.refusal is not None:
            self.refused = stream.refusal.text

    def why(self) -> tuple[str, str]:
        """Why nothing was recorded, and what to do."""
        if self.refused is not None:
            todo = "start a program without PyTorch by `env LD_PRELOAD=CUDA/extras/CUPTI/lib64/libcupti.so COMMAND`"
            return self.refused, todo if "CUPTI" in self.refused else ""
        if self.begun:
            return "the program ended before a window in it had", "let it launch the kernel for a second or longer"
        return "the program didn't use CUDA, or was over too soon", "let it launch the kernel for a second or longer"

    def _begin(self, pid: int) -> None:
        if self.begun >= _MOST_WINDOWS or self.refused is not None:
            return
        for one in child.family(pid):
            with suppress(GputopError, OSError):
                channel = connect_prepared(one, self._proc.stat(one).start_ticks)
                if channel is None:
                    continue
                record = [(_RECORD.format(self.begun), channel)]
                self._window = Window(record, self._folder, Kinds.KERNELS, _WINDOW_NS, _MOST_BYTES)
                self._told = False
                self.begun += 1
                return


def _found(records: Sequence[Path]) -> list[TimedKernel]:
    durations: dict[tuple[str, int, int], list[int]] = {}
    for record in records:
        with suppress(GputopError):
            _add(read_native([record]), durations)
    found = [
        TimedKernel(name, extents_of(grid), extents_of(block), tuple(sorted(times)))
        for (name, grid, block), times in durations.items()
    ]
    return sorted(found, key=lambda one: -sum(one.durations_ns))


def _add(timeline: Timeline, durations: dict[tuple[str, int, int], list[int]]) -> None:
    ops = timeline.ops
    for row in (ops.kind == Kind.KERNEL).nonzero()[0]:
        key = (timeline.name(int(ops.name_id[row])), int(ops.grid[row]), int(ops.block[row]))
        durations.setdefault(key, []).append(int(ops.end[row] - ops.start[row]))
