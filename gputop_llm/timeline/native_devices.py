"""Which GPU a row of a native record means: each process has its own CUDA ordinals."""

from __future__ import annotations

from collections.abc import Callable

from gputop_llm.timeline.model import Device


class NativeDevices:
    """The GPUs of all records. A number keeps its meaning unless another process has taken it.

    Two processes may name one GPU by the same number, or two by it (CUDA_VISIBLE_DEVICES): the record doesn't tell.
    Taking them for one would hide idle time, so each stands alone, and `ambiguous` has the numbers.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._devices: dict[int, Device] = {}
        self._seen: set[int] = set()
        self.ambiguous: set[int] = set()

    def of_process(self, process: int, pid: int | None) -> Callable[[int], int]:
        """From an ordinal of a process (its position in the timeline) to the timeline's number."""

        def number(ordinal: int) -> int:
            key = process, ordinal
            if key not in self._numbers:
                taken = ordinal in self._devices
                free = max(self._devices) + 1 if taken else ordinal
                if ordinal in self._seen:
                    self.ambiguous.add(ordinal)
                self._seen.add(ordinal)
                name = f"device {ordinal} of PID {pid}" if free != ordinal else None
                self._devices[free] = Device(number=free, name=name)
                self._numbers[key] = free
            return self._numbers[key]

        return number

    def devices(self) -> list[Device]:
        """All GPUs that rows name."""
        return [self._devices[number] for number in sorted(self._devices)]
