"""The node's CPU, memory and swap, and the load of the watched processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gputop_llm.clock import Clock, SystemClock
from gputop_llm.errors import SourceError
from gputop_llm.model import CgroupCpu, Host, ProcessLoad, TargetProcess
from gputop_llm.sources.cgroup import (
    NOT_VISIBLE,
    CgroupPlace,
    CgroupReader,
    CgroupSample,
    cpu_between,
    no_pressure,
    sample,
)
from gputop_llm.sources.host_process import NEEDS_RIGHTS, NEEDS_TWO_POLLS, WatchedProcess, explained
from gputop_llm.sources.procfs import GONE, PAGE_BYTES, ProcFs

# user nice system idle iowait irq softirq steal; the guest times behind them are counted in user and nice already.
_IDLE, _IOWAIT, _STEAL, _FIELDS = 3, 4, 7, 8
# Where each figure stands.
_FILES = {
    **dict.fromkeys(("cpu_pct", "iowait_pct", "steal_pct"), "stat"),
    **dict.fromkeys(("swap_in_bytes_per_s", "swap_out_bytes_per_s"), "vmstat"),
    **dict.fromkeys(("mem_total_bytes", "mem_available_bytes", "swap_used_bytes"), "meminfo"),
    "load_1m": "loadavg",
}
_RATES = ("cpu_pct", "iowait_pct", "steal_pct", "swap_in_bytes_per_s", "swap_out_bytes_per_s")


@dataclass(frozen=True, slots=True)
class _Node:
    cpu: tuple[int, ...] | None
    swap_in: int | None
    swap_out: int | None
    at_s: float


class HostSource:
    """Reads the host. A poll of an engine of three processes and 150 threads costs about 1 ms.

    Args:
        watch: the processes to read, asked at each poll.
        proc_root: where /proc is mounted.
        cgroup_root: where control groups are mounted.
        clock: time, for tests.
    """

    name = "host"
    deadline_s = 2.0

    def __init__(
        self,
        watch: Callable[[], Sequence[TargetProcess]],
        proc_root: str = "/proc",
        cgroup_root: str = "/sys/fs/cgroup",
        clock: Clock | None = None,
    ) -> None:
        self._watch = watch
        self._clock = clock or SystemClock()
        self._proc = ProcFs(proc_root)
        self._cgroups = CgroupReader(self._proc, cgroup_root)
        self._watched: dict[int, WatchedProcess] = {}
        self._samples: dict[CgroupPlace, tuple[CgroupSample, float]] = {}
        self._node: _Node | None = None
        self._cores: int | None = None

    def poll(self) -> Host:
        """Reads the node and all watched processes once.

        The first poll has no rates. A process that has ended is left out.

        Raises:
            SourceError: /proc can't be read at all.
        """
        try:
            now = self._read_node()
        except OSError as error:
            raise SourceError(
                "cannot read the host's load", f"{self._proc.root}/stat: {error.strerror}", "mount /proc"
            ) from error
        before, self._node = self._node, now
        shares = _shares(before, now)
        memory = self._memory()
        total, free = memory.get("SwapTotal"), memory.get("SwapFree")
        seconds = now.at_s - before.at_s if before else 0.0
        host = Host(
            cores=self._cores,
            cpu_pct=shares.get("cpu"),
            iowait_pct=shares.get("iowait"),
            steal_pct=shares.get("steal"),
            load_1m=self._load(),
            mem_total_bytes=memory.get("MemTotal"),
            mem_available_bytes=memory.get("MemAvailable"),
            swap_used_bytes=None if total is None or free is None else total - free,
            swap_in_bytes_per_s=_pages_per_s(before.swap_in, now.swap_in, seconds) if before else None,
            swap_out_bytes_per_s=_pages_per_s(before.swap_out, now.swap_out, seconds) if before else None,
            processes=tuple(self._processes()),
            missing={} if before else dict.fromkeys(_RATES, NEEDS_TWO_POLLS),
        )
        nowhere = {name: f"{self._proc.root}/{file} does not tell it" for name, file in _FILES.items()}
        return replace(host, missing=explained(host, nowhere))

    def abort(self) -> None:
        """Does nothing: reads of /proc can't be interrupted."""

    def close(self) -> None:
        """Nothing is held."""

    def _processes(self) -> list[ProcessLoad]:
        wanted = {process.pid: process for process in self._watch() if process.pid is not None}
        self._watched = {pid: watched for pid, watched in self._watched.items() if pid in wanted}
        self._cgroups.forget_all_but(wanted)
        groups = _Groups(self._cgroups, self._clock, self._samples)
        loads = []
        for pid, process in wanted.items():
            if pid not in self._watched:
                self._watched[pid] = WatchedProcess(self._proc, pid, self._clock)
            load = self._watched[pid].load(process)
            if load is not None:
                loads.append(load if load.state is None else groups.added_to(load))
        self._samples = groups.samples
        return loads

    def _read_node(self) -> _Node:
        if self._cores is None:
            lines = self._proc.read("stat").splitlines()
            self._cores = sum(line.startswith(b"cpu") for line in lines) - 1
        numbers = self._proc.read("stat", 512).partition(b"\n")[0].split()[1 : 1 + _FIELDS]
        swapped = self._swapped()
        return _Node(
            tuple(int(number) for number in numbers) if len(numbers) == _FIELDS else None,
            swapped.get(b"pswpin"),
            swapped.get(b"pswpout"),
            self._clock.mono(),
        )

    def _swapped(self) -> dict[bytes, int]:
        try:
            lines = self._proc.read("vmstat").splitlines()
        except OSError:
            return {}
        return {name: int(value) for name, _, value in (x.partition(b" ") for x in lines if x.startswith(b"pswp"))}

    def _memory(self) -> Mapping[str, int]:
        try:
            lines = self._proc.read("meminfo").decode("ascii", "replace").splitlines()
        except OSError:
            return {}
        fields = (line.split() for line in lines)
        return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) > 1 and f[1].isdigit()}

    def _load(self) -> float | None:
        try:
            return float(self._proc.read("loadavg").split()[0])
        except (OSError, ValueError, IndexError):
            return None


class _Groups:
    """The control groups of one poll: processes of one group share one reading."""

    def __init__(
        self, reader: CgroupReader, clock: Clock, before: Mapping[CgroupPlace, tuple[CgroupSample, float]]
    ) -> None:
        self.samples: dict[CgroupPlace, tuple[CgroupSample, float]] = {}
        self._reader = reader
        self._clock = clock
        self._before = before
        self._results: dict[CgroupPlace, CgroupCpu] = {}

    def added_to(self, load: ProcessLoad) -> ProcessLoad:
        """The load with its control group, or why it has none."""
        try:
            place = self._reader.place(load.pid)
        except GONE:
            return load
        except OSError:
            return replace(load, missing={**load.missing, "cgroup": NEEDS_RIGHTS})
        if place is None:
            return replace(load, missing={**load.missing, "cgroup": NOT_VISIBLE})
        if place not in self._results:
            at_s = self._clock.mono()
            earlier, earlier_s = self._before.get(place, (None, at_s))
            now = sample(place)
            self.samples[place] = (now, at_s)
            self._results[place] = cpu_between(earlier, now, at_s - earlier_s)
        group = self._results[place]
        if group.io_some_pct is None:
            why = no_pressure(self.samples[place][0]) or NEEDS_TWO_POLLS
            load = replace(load, missing={**load.missing, "cgroup.io_some_pct": why, "cgroup.io_full_pct": why})
        return replace(load, cgroup=group)


def _shares(before: _Node | None, now: _Node) -> dict[str, float]:
    """Shares of all cores' time in percent; empty without two readings that differ."""
    if before is None or before.cpu is None or now.cpu is None:
        return {}
    # Single fields may step back a little (iowait does); time doesn't.
    spent = [max(0, new - old) for old, new in zip(before.cpu, now.cpu, strict=True)]
    total = sum(spent)
    if total == 0:
        return {}
    return {
        "cpu": 100.0 * (total - spent[_IDLE] - spent[_IOWAIT]) / total,
        "iowait": 100.0 * spent[_IOWAIT] / total,
        "steal": 100.0 * spent[_STEAL] / total,
    }


def _pages_per_s(before: int | None, now: int | None, seconds: float) -> float | None:
    if before is None or now is None or seconds <= 0:
        return None
    return max(0, now - before) * PAGE_BYTES / seconds
