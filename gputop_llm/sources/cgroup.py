"""CPU quota, throttling, memory limit and I/O pressure of a process's control group, v1 and v2.

A limit of any ancestor holds for all below it, so the tightest one up to the
root that can be seen counts, and its group's throttling and use are reported. Pressure is of the process's own group.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gputop_llm.model import CgroupCpu
from gputop_llm.sources.procfs import ProcFs, printable

NOT_VISIBLE = "its control group can't be seen from here"
NO_PRESSURE_V1 = "control groups v1 keep no pressure figures"
NO_PRESSURE = "the kernel keeps no pressure figures of this group (boot it with psi=1)"

# v1 says "no limit" with the largest multiple of the page size in a signed 64-bit number.
_NO_LIMIT_BYTES = 1 << 60
_LIMITS_EVERY = 10


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """What a CPU group has counted since it was made; None where the file says nothing."""

    periods: int | None
    throttled_periods: int | None
    throttled_s: float | None
    used_s: float | None


@dataclass(frozen=True, slots=True)
class CgroupSample:
    """One reading of the group that limits a process. `quota_cpus` is None without a quota."""

    path: str
    version: int
    quota_cpus: float | None
    counters: CpuCounters
    mem_used_bytes: int | None
    mem_limit_bytes: int | None
    io_some_s: float | None = None
    io_full_s: float | None = None


@dataclass(frozen=True, slots=True)
class CgroupPlace:
    """The folders that count for a process: the one with the tightest limit, its own where there is none."""

    path: str
    version: int
    cpu_dir: str
    quota_cpus: float | None
    account_dir: str
    memory_dir: str | None
    mem_limit_bytes: int | None
    own_dir: str


class CgroupReader:
    """Reads control groups.

    Which group a process is in, and where its limits are, is looked up again every tenth time.

    Args:
        proc: whose /proc/PID/cgroup names the groups.
        root: where control groups are mounted.
    """

    def __init__(self, proc: ProcFs, root: str = "/sys/fs/cgroup") -> None:
        self._proc = proc
        self._root = root
        self._groups: dict[int, tuple[CgroupPlace | None, int]] = {}

    def place(self, pid: int) -> CgroupPlace | None:
        """The group that limits a process; None if its groups can't be seen from here.

        Raises:
            OSError: the process is gone or may not be read.
        """
        place, left = self._groups.get(pid, (None, 0))
        if left == 0:
            place, left = self._locate(printable(self._proc.read(f"{pid}/cgroup"))), _LIMITS_EVERY
        self._groups[pid] = (place, left - 1)
        return place

    def forget_all_but(self, pids: Collection[int]) -> None:
        """Drops what is known of processes that are no longer read."""
        self._groups = {pid: group for pid, group in self._groups.items() if pid in pids}

    def _locate(self, text: str) -> CgroupPlace | None:
        paths = {}
        for line in text.splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            for controller in controllers.split(","):
                paths[controller] = (controllers, path)
        if "cpu" in paths:
            return self._locate_v1(paths)
        return self._locate_v2(paths[""][1]) if "" in paths else None

    def _locate_v2(self, path: str) -> CgroupPlace | None:
        base = self._root if os.path.exists(f"{self._root}/cgroup.controllers") else f"{self._root}/unified"
        chain = self._chain(base, path, "")
        if chain is None:
            return None
        quota_dir, quota = _tightest([(folder, _quota_v2(folder)) for folder in chain])
        limit_dir, limit = _tightest([(folder, _number(f"{folder}/memory.max")) for folder in chain])
        used_dir = limit_dir or chain[0]
        own = quota_dir or chain[0]
        mem_limit = None if limit is None else int(limit)
        return CgroupPlace(_below(own, base), 2, own, quota, own, used_dir, mem_limit, chain[0])

    def _locate_v1(self, paths: dict[str, tuple[str, str]]) -> CgroupPlace | None:
        mounts = {}
        for controller in ("cpu", "cpuacct", "memory"):
            if controller in paths:
                together, path = paths[controller]
                base = f"{self._root}/{together}"
                base = base if os.path.isdir(base) else f"{self._root}/{controller}"
                mounts[controller] = (base, self._chain(base, path, controller))
        base, chain = mounts["cpu"]
        if chain is None:
            return None
        quota_dir, quota = _tightest([(folder, _quota_v1(folder)) for folder in chain])
        own = quota_dir or chain[0]
        # The use of the limited group: the same path in the accounting tree, which may be mounted elsewhere. Another
        # group there (the whole machine, at worst) says nothing about this one.
        account_base, _ = mounts.get("cpuacct", (base, chain))
        account = f"{account_base}{own.removeprefix(base)}"
        memory_chain = mounts.get("memory", ("", None))[1] or []
        limit_dir, limit = _tightest([(folder, _limit_v1(folder)) for folder in memory_chain])
        memory = limit_dir or (memory_chain[0] if memory_chain else None)
        mem_limit = None if limit is None else int(limit)
        return CgroupPlace(_below(own, base), 1, own, quota, account, memory, mem_limit, chain[0])

    def _chain(self, base: str, path: str, controller: str) -> list[str] | None:
        """The group's folder and all above it, innermost first; None if it lies outside of what is mounted here."""
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            return None
        if os.path.isdir("/".join([base, *parts])):
            return ["/".join([base, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
        # In a container of v1 the path is the host's, and the mount is the container's own group: if it is ours too.
        try:
            ours = printable(self._proc.read("self/cgroup"))
        except OSError:
            return None
        same = any(
            line.endswith(f":{path}") and controller in line.split(":")[1].split(",") for line in ours.splitlines()
        )
        return [base] if same and os.path.isdir(base) else None


def cpu_between(before: CgroupSample | None, after: CgroupSample, seconds: float) -> CgroupCpu:
    """What happened in a group between two readings `seconds` apart.

    throttled_pct = Δnr_throttled ÷ Δnr_periods; a quota without a period in
    between (the group was idle) throttled nothing. Without `before`, or when the
    limiting group became another one, rates are None.
    """
    used = throttled = share = some = full = None
    if before is not None and before.path == after.path and seconds > 0:
        used = _rate(before.counters.used_s, after.counters.used_s, seconds)
        some, full = (
            None if rate is None else min(100.0, 100.0 * rate)
            for rate in (
                _rate(before.io_some_s, after.io_some_s, seconds),
                _rate(before.io_full_s, after.io_full_s, seconds),
            )
        )
        if after.quota_cpus is not None:
            throttled = _rate(before.counters.throttled_s, after.counters.throttled_s, seconds)
            periods = _rate(before.counters.periods, after.counters.periods, 1.0)
            hit = _rate(before.counters.throttled_periods, after.counters.throttled_periods, 1.0)
            if periods is not None and hit is not None:
                share = min(100.0, 100.0 * hit / periods) if periods else 0.0
    return CgroupCpu(
        path=after.path,
        version=after.version,
        quota_cpus=after.quota_cpus,
        used_cpus=used,
        throttled_pct=share,
        throttled_s_per_s=throttled,
        mem_used_bytes=after.mem_used_bytes,
        mem_limit_bytes=after.mem_limit_bytes,
        io_some_pct=some,
        io_full_pct=full,
    )


def no_pressure(now: CgroupSample) -> str | None:
    """Why a group has no figures of I/O pressure; None if it has."""
    if now.version == 1:
        return NO_PRESSURE_V1
    return NO_PRESSURE if now.io_some_s is None else None


def _rate(before: float | None, after: float | None, seconds: float) -> float | None:
    if before is None or after is None or after < before:
        return None
    return (after - before) / seconds


def sample(place: CgroupPlace) -> CgroupSample:
    """What a group has counted by now."""
    fields = _fields(f"{place.cpu_dir}/cpu.stat")
    if place.version == 2:
        throttled = _scaled(fields.get("throttled_usec"), 1e-6)
        used = _scaled(fields.get("usage_usec"), 1e-6)
        memory = "memory.current"
    else:
        throttled = _scaled(fields.get("throttled_time"), 1e-9)
        used = _scaled(_number(f"{place.account_dir}/cpuacct.usage"), 1e-9)
        memory = "memory.usage_in_bytes"
    stalled = _stalled(f"{place.own_dir}/io.pressure") if place.version == 2 else {}
    mem_used = _number(f"{place.memory_dir}/{memory}") if place.memory_dir else None
    return CgroupSample(
        path=place.path,
        version=place.version,
        quota_cpus=place.quota_cpus,
        counters=CpuCounters(fields.get("nr_periods"), fields.get("nr_throttled"), throttled, used),
        mem_used_bytes=None if mem_used is None else int(mem_used),
        mem_limit_bytes=place.mem_limit_bytes,
        io_some_s=_scaled(stalled.get("some"), 1e-6),
        io_full_s=_scaled(stalled.get("full"), 1e-6),
    )


def _stalled(path: str) -> dict[str, int]:
    """The total stall times of a pressure file in microseconds, by "some" and "full"."""
    lines = (line.partition(" ") for line in _text(path).splitlines())
    totals = ((kind, rest.rpartition(" total=")[2]) for kind, _, rest in lines)
    return {kind: int(total) for kind, total in totals if total.isdigit()}


def _tightest(limits: Sequence[tuple[str, float | None]]) -> tuple[str | None, float | None]:
    """The folder with the smallest limit and that limit; the innermost one of equals."""
    known = [(limit, -depth, folder) for depth, (folder, limit) in enumerate(reversed(limits)) if limit is not None]
    if not known:
        return None, None
    limit, _, folder = min(known)
    return folder, limit


def _quota_v2(folder: str) -> float | None:
    quota, _, period = _text(f"{folder}/cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else None


def _quota_v1(folder: str) -> float | None:
    quota, period = _number(f"{folder}/cpu.cfs_quota_us"), _number(f"{folder}/cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _limit_v1(folder: str) -> float | None:
    limit = _number(f"{folder}/memory.limit_in_bytes")
    return None if limit is None or limit >= _NO_LIMIT_BYTES else limit


def _below(folder: str, base: str) -> str:
    return folder.removeprefix(base) or "/"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _fields(path: str) -> dict[str, int]:
    pairs = (line.partition(" ") for line in _text(path).splitlines())
    return {key: int(value) for key, _, value in pairs if value.isdigit()}


def _number(path: str) -> float | None:
    """A number in a file; None without the file or with a word ("max") or -1 in it."""
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return printable(file.read(4096) or b"").strip()
    except OSError:
        return ""
