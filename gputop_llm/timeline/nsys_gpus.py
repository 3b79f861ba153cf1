"""Which physical GPU a row means: each process has its own CUDA ordinals, each file its own GPU numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gputop_llm.timeline.model import Device, Process
from gputop_llm.timeline.nsys_facts import Facts


class NsysGpus:
    """The GPUs of all files; those of the first keep their numbers."""

    def __init__(self) -> None:
        self._files: list[FileGpus] = []
        self._numbers: dict[str, int] = {}
        self._devices: dict[int, Device] = {}

    def of_file(self, facts: Facts, processes: Sequence[Process]) -> FileGpus:
        """The GPUs of the next file; `processes` is the timeline's growing list."""
        self._files.append(FileGpus(self, len(self._files), facts, processes))
        return self._files[-1]

    def devices(self, used: bool) -> list[Device]:
        """The GPUs that rows name, or (if no row does) all that the files list."""
        if not used:
            for file in self._files:
                file.add_all()
        return [self._devices[number] for number in sorted(self._devices)]

    def add(self, key: str, device: Device) -> int:
        """The number of a GPU in the timeline."""
        if key not in self._numbers:
            taken = self._devices
            number = device.number if device.number not in taken else max(taken) + 1
            self._numbers[key] = number
            self._devices[number] = replace(device, number=number)
        return self._numbers[key]


class FileGpus:
    """The GPUs of one file."""

    def __init__(self, gpus: NsysGpus, file: int, facts: Facts, processes: Sequence[Process]) -> None:
        self._gpus, self._file, self._processes = gpus, file, processes
        self._ordinals = facts.ordinals
        self._by_number = {gpu.device.number: gpu for gpu in facts.gpus}
        self._by_ordinal = {gpu.cuda_ordinal: gpu for gpu in facts.gpus if gpu.cuda_ordinal is not None}
        self._users: dict[int, set[int]] = {}

    @property
    def ambiguous(self) -> set[int]:
        """Ordinals that several processes use, with nothing to tell whether they mean the same GPU."""
        return {ordinal for ordinal, users in self._users.items() if len(users) > 1}

    def number(self, process: int, ordinal: int) -> int:
        """The timeline's number of the GPU that a process calls `ordinal`."""
        pid = self._processes[process].pid if process >= 0 else None
        number = self._ordinals.get((pid, ordinal)) if pid is not None else None
        if number is None:
            self._users.setdefault(ordinal, set()).add(process)
            gpu = self._by_ordinal.get(ordinal)
            number = gpu.device.number if gpu else ordinal
        return self._add(number)

    def add_all(self) -> None:
        """Enters the GPUs that the file lists, used or not."""
        for number in self._by_number:
            self._add(number)

    def _add(self, number: int) -> int:
        gpu = self._by_number.get(number)
        # Without a UUID, a GPU of one file is never taken for that of another.
        key = gpu.uuid if gpu and gpu.uuid else f"{self._file}:{number}"
        return self._gpus.add(key, gpu.device if gpu else Device(number=number))
