"""The processes that NVML lists on a GPU or MIG instance, with their memory and SM utilisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gputop_llm.model.gpu import GpuProcess
from gputop_llm.sources.nvml_ask import Asker, known, percent
from gputop_llm.sources.nvml_errors import NOT_FOUND, Implausible

_SLOW_S = 5.0
_UTIL_EVERY_S = 2.5
"""The driver takes 1.5 ms for it on an H200, and who shares a GPU changes slowly."""

_UTIL_WINDOW_S = 1.5
"""NVML averages over up to a second; an older sample is of work that has ended."""

_NO_INSTANCE = 2**32 - 1
_FUNCTION = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}


class ProcessReader:
    """Lists the processes of one handle."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    def read(self) -> tuple[GpuProcess, ...] | None:
        """Compute, MPS and graphics processes, each once; None when the compute list can't be read.

        Graphics and MPS lists change rarely and are read every few seconds; that a GPU has none
        is no loss to tell of.
        """
        compute = self._list("compute", ("processes",), 0.0)
        if compute is None:
            return None
        found: dict[tuple[int, int | None], GpuProcess] = {}
        for process in (
            *compute,
            *(self._list("mps", (), _SLOW_S) or ()),
            *(self._list("graphics", (), _SLOW_S) or ()),
        ):
            found.setdefault((process.pid, process.gpu_instance), process)
        return tuple(found.values())

    def with_sm_util(self, processes: Sequence[GpuProcess]) -> tuple[GpuProcess, ...]:
        """The same processes with their SM utilisation in percent; 0 where the driver saw no work."""
        if not processes:
            return ()
        call = ("nvmlDeviceGetProcessUtilization", self._since_us)
        field = "processes.sm_util_pct"
        samples = self._asker.ask(field, call, read=_newest, every_s=_UTIL_EVERY_S, answers={NOT_FOUND: {}})
        if samples is None:
            return tuple(processes)
        return tuple(replace(process, sm_util_pct=samples.get(process.pid, 0.0)) for process in processes)

    def _since_us(self) -> int:
        return int((self._asker.clock.wall() - _UTIL_WINDOW_S) * 1e6)

    def _list(self, kind: str, fields: tuple[str, ...], every_s: float) -> tuple[GpuProcess, ...] | None:
        def read(answer: Any) -> tuple[GpuProcess, ...]:
            # 0 and all bits set are what a driver older or newer than nvidia-ml-py leaves in the list.
            return tuple(_process(item, kind) for item in answer if 0 < item.pid < 2**31)

        function = f"nvmlDeviceGet{_FUNCTION[kind]}RunningProcesses"
        listed: tuple[GpuProcess, ...] | None = self._asker.ask(
            fields, (function,), (function + "_v2",), read=read, every_s=every_s
        )
        return listed


def tell_unknown_memory(asker: Asker, processes: Sequence[GpuProcess]) -> None:
    """Notes how many of the processes have no memory figure, so that no sum is taken for complete."""
    without = sum(process.mem_bytes is None for process in processes)
    if without:
        asker.lacks(
            "processes.mem_bytes",
            f"the driver does not tell the memory of {without} of {len(processes)} processes; sums leave them out",
        )


def _process(item: Any, kind: str) -> GpuProcess:
    instance = getattr(item, "gpuInstanceId", None)
    return GpuProcess(
        pid=int(item.pid),
        kind=kind,
        mem_bytes=_or_none(item.usedGpuMemory),
        sm_util_pct=None,
        gpu_instance=None if instance is None or instance == _NO_INSTANCE else int(instance),
    )


def _or_none(answer: Any) -> int | None:
    try:
        return None if answer is None else known(answer)
    except Implausible:
        return None


def _newest(samples: Any) -> dict[int, float | None]:
    """SM utilisation by PID; None where the driver answers nonsense, as some do for a process's first sample."""
    newest: dict[int, tuple[int, float | None]] = {}
    for sample in samples:
        try:
            util: float | None = percent(sample.smUtil)
        except Implausible:
            util = None
        if sample.pid not in newest or sample.timeStamp >= newest[sample.pid][0]:
            newest[sample.pid] = (sample.timeStamp, util)
    return {pid: util for pid, (_, util) in newest.items()}
