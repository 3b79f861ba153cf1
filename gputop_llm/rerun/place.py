"""Where a script runs: by which Python, and on which GPU. Never on one without room."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gputop_llm.errors import GputopError
from gputop_llm.model.gpu import Gpu
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.units import size

_TORCH = re.compile(r"(/[^\0\n]*?)/lib(?:64)?/python3[^/\n]*/(?:site|dist)-packages/torch/lib/libtorch[\w.]*")
_MOST_MAPS = 8 << 20
#: A server that is busy may still take some more for itself.
_SERVER_MARGIN = 1 << 30
#: Of the one server that was measured beside a re-run (docs/rerun.md).
SERVING_COST = "a loaded server lost under 15 % of its rate meanwhile, the one time it was measured (H200)"


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter with torch, and whose it is."""

    path: str
    whose: str


@dataclass(frozen=True, slots=True)
class Chosen:
    """A GPU with room; `serving` says that an engine, or any other process that computes, is on it."""

    index: int
    uuid: str | None
    name: str | None
    free_bytes: int
    serving: bool


def python_for(pid: int | None, proc: ProcFs | None = None) -> tuple[Python | None, str]:
    """The engine's own interpreter where it can be used, else this program's if that has torch; else why there is none.

    Args:
        pid: a process of the engine.
    """
    why = "the capture's engine doesn't run here any more"
    if pid is not None:
        try:
            path, why = _of_engine(pid, proc or ProcFs())
        except OSError as error:
            path, why = None, f"the engine's process can't be looked at: {error.strerror or error}"
        if path is not None:
            return Python(path, f"the engine's own, of PID {pid}"), ""
    if importlib.util.find_spec("torch") is not None:
        return Python(sys.executable, "this program's own"), ""
    return None, f"{why}, and this program's own Python has no torch"


def _of_engine(pid: int, proc: ProcFs) -> tuple[str | None, str]:
    if os.stat(f"{proc.root}/{pid}/ns/mnt").st_ino != os.stat(f"{proc.root}/self/ns/mnt").st_ino:
        return None, "the engine runs in a container: write the script with --write, and run it in there"
    found = _TORCH.search(proc.read(f"{pid}/maps", _MOST_MAPS).decode("utf-8", "replace"))
    if found is None:
        return None, "the engine has no torch loaded"
    path = next((p for name in ("python3", "python") if os.access(p := f"{found[1]}/bin/{name}", os.X_OK)), None)
    if path is None:
        path = proc.link(f"{pid}/exe")
    owners = {os.lstat(one).st_uid for one in (path, os.path.realpath(path), found[1], found[0])}
    if strangers := owners - {0, os.geteuid()}:
        told = ", ".join(map(str, sorted(strangers)))
        return None, f"the engine's Python belongs to another user (UID {told}), whose programs are not run here"
    return path, ""


def gpu_for(gpus: Sequence[Gpu], serving: Collection[int], needs_bytes: int, asked: int | None = None) -> Chosen:
    """The GPU to run on: the one asked for, else the emptiest that serves nothing, else the emptiest.

    Args:
        serving: indices of GPUs that engines use.
        needs_bytes: what the script takes.

    Raises:
        GputopError: there is none with room, or not the one asked for.
    """
    known = [
        Chosen(gpu.index, gpu.uuid, gpu.name, gpu.mem_total_bytes - gpu.mem_used_bytes, _in_use(gpu, serving))
        for gpu in gpus
        if gpu.mem_total_bytes is not None and gpu.mem_used_bytes is not None and not gpu.lost and not gpu.mig_enabled
    ]
    if asked is not None:
        known = [one for one in known if one.index == asked]
        if not known:
            raise GputopError(f"cannot run on GPU {asked}", "there is none, or its memory can't be told")
    room = [one for one in known if one.free_bytes >= needs_bytes + (_SERVER_MARGIN if one.serving else 0)]
    if not room:
        told = ", ".join(f"GPU {one.index} has {size(one.free_bytes)} free" for one in known) or "no GPU can be seen"
        raise GputopError(
            "no GPU has room for it",
            f"{size(needs_bytes)} are needed ({size(_SERVER_MARGIN)} more beside a server); {told}",
            "write the script with --write, and run it where there is room",
        )
    return min(room, key=lambda one: (one.serving, -one.free_bytes))


def _in_use(gpu: Gpu, serving: Collection[int]) -> bool:
    """Training and engines that aren't known may grow as well; a screen's X server is none."""
    return gpu.index in serving or any(process.kind != "graphics" for process in gpu.processes or ())
