"""The MIG instances of a GPU: each has memory and processes of its own."""

from __future__ import annotations

from typing import Any

from gputop_llm.model.gpu import GpuProcess, MigInstance
from gputop_llm.sources.nvml_ask import ONCE, Asker, known, text
from gputop_llm.sources.nvml_errors import GPU_IS_LOST, NOT_FOUND, GpuLost, code_of
from gputop_llm.sources.nvml_memory import device_memory
from gputop_llm.sources.nvml_procs import ProcessReader

_LOOK_AGAIN_S = 10.0


class MigReader:
    """Reads the instances of one parent GPU; looks for new ones every few seconds."""

    def __init__(self, parent: Asker) -> None:
        self._parent = parent
        self._instances: list[Asker] = []
        self._look_at_s = float("-inf")

    def read(self) -> tuple[MigInstance, ...]:
        """All instances; reasons go into the parent's `missing` as `mig_instances[i].field`."""
        now = self._parent.clock.mono()
        if now >= self._look_at_s:
            self._look_at_s = now + _LOOK_AGAIN_S
            self._instances = self._look()
        instances = []
        for asker in self._instances:
            asker.begin()
            try:
                instances.append(_instance(asker))
            except GpuLost as lost:
                if lost.code == GPU_IS_LOST:
                    raise
                self._look_at_s = now  # the instance is gone, not the card: somebody partitioned it anew
            self._parent.missing.update(asker.missing)
        return tuple(instances)

    def _look(self) -> list[Asker]:
        count = self._parent.ask("mig_instances", ("nvmlDeviceGetMaxMigDeviceCount",), every_s=ONCE)
        found: list[Asker] = []
        for index in range(count or 0):
            handle = self._handle(index)
            if handle is not None:
                asker = Asker(self._parent.lib, handle, self._parent.clock, f"mig_instances[{len(found)}].")
                asker.place = self._parent.place
                found.append(asker)
        return found

    def _handle(self, index: int) -> Any:
        try:
            return self._parent.lib.nvmlDeviceGetMigDeviceHandleByIndex(self._parent.handle, index)
        except self._parent.failures as error:
            reason = self._parent.judge(error)
            if code_of(error) != NOT_FOUND:  # which is an index without an instance
                self._parent.lacks("mig_instances", reason)
            return None


def _instance(asker: Asker) -> MigInstance:
    used, total = device_memory(asker)
    gpu_instance = asker.ask("gpu_instance", ("nvmlDeviceGetGpuInstanceId",), read=known, every_s=ONCE)
    sm_count = asker.ask(
        "sm_count", ("nvmlDeviceGetAttributes",), read=lambda answer: known(answer.multiprocessorCount), every_s=ONCE
    )
    processes: tuple[GpuProcess, ...] = ProcessReader(asker).read() or ()
    return MigInstance(
        gpu_instance=gpu_instance,
        compute_instance=asker.ask("compute_instance", ("nvmlDeviceGetComputeInstanceId",), read=known, every_s=ONCE),
        uuid=asker.ask("uuid", ("nvmlDeviceGetUUID",), read=text, every_s=ONCE),
        name=asker.ask("name", ("nvmlDeviceGetName",), read=text, every_s=ONCE),
        mem_used_bytes=used,
        mem_total_bytes=total,
        sm_count=sm_count,
        processes=processes,
    )
