"""One GPU: which NVML queries make up its reading, and how often each is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from gputop_llm.clock import Clock
from gputop_llm.model.gpu import Gpm, Gpu, GpuProcess, MigInstance, XidEvent
from gputop_llm.model.pcie import link_bytes_per_s
from gputop_llm.sources.gpm import GpmReader
from gputop_llm.sources.nvml_ask import ONCE, Asker, Call, celsius, known, percent, text
from gputop_llm.sources.nvml_errors import NOT_SUPPORTED, GpuLost, Implausible
from gputop_llm.sources.nvml_fields import (
    MEMORY_TEMP,
    PCIE_RX_BYTES,
    PCIE_TX_BYTES,
    CounterRate,
    FieldKey,
    FieldReader,
    FieldValue,
)
from gputop_llm.sources.nvml_memory import device_memory, host_shared, is_integrated
from gputop_llm.sources.nvml_mig import MigReader
from gputop_llm.sources.nvml_nvlink import NO_LINK, NvlinkReader
from gputop_llm.sources.nvml_procs import ProcessReader, tell_unknown_memory
from gputop_llm.sources.nvml_throttle import Throttle, counter_fields

_SLOW_S = 5.0
_COSTLY_S = 10.0
"""For what costs milliseconds a call (measured on an H200: the energy counter 3.7 ms) and nobody watches live."""

_MIG_LOOK_S = 10.0
_VGPU_GUEST = 2
# A GeForce lacks much of it without WSL, too.
_WSL = "on this GPU, or not under WSL"
_ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}


def _mhz(answer: Any) -> float:
    return float(known(answer))


def _milli(answer: Any) -> float:
    return known(answer) / 1000.0


def _limit_w(answer: Any) -> float:
    if known(answer) == 0:
        raise Implausible("the driver reports a limit of 0 W, which is none")
    return _milli(answer)


def _at_least_one(answer: Any) -> int:
    if known(answer) == 0:
        raise Implausible("the driver answers 0")
    return int(answer)


def _architecture(answer: Any) -> str:
    return _ARCHITECTURES.get(answer) or f"architecture {known(answer)}"


_Row = tuple[str, float, Callable[[Any], Any], tuple[Call, ...]]

_ROWS: tuple[_Row, ...] = (
    ("name", ONCE, text, (("nvmlDeviceGetName",),)),
    ("uuid", ONCE, text, (("nvmlDeviceGetUUID",),)),
    ("architecture", ONCE, _architecture, (("nvmlDeviceGetArchitecture",),)),
    ("pci_bus_id", ONCE, lambda answer: text(answer.busId), (("nvmlDeviceGetPciInfo",),)),
    ("sm_clock_max_mhz", ONCE, _mhz, (("nvmlDeviceGetMaxClockInfo", 1),)),
    ("mem_clock_max_mhz", ONCE, _mhz, (("nvmlDeviceGetMaxClockInfo", 2),)),
    ("mem_bus_width_bits", ONCE, _at_least_one, (("nvmlDeviceGetMemoryBusWidth",),)),
    ("temp_slowdown_c", ONCE, celsius, (("nvmlDeviceGetTemperatureThreshold", 1),)),
    ("temp_shutdown_c", ONCE, celsius, (("nvmlDeviceGetTemperatureThreshold", 0),)),
    ("pcie_gen_max", ONCE, _at_least_one, (("nvmlDeviceGetMaxPcieLinkGeneration",),)),
    ("pcie_width_max", ONCE, _at_least_one, (("nvmlDeviceGetMaxPcieLinkWidth",),)),
    ("sm_clock_mhz", 0.0, _mhz, (("nvmlDeviceGetClockInfo", 1),)),
    ("mem_clock_mhz", 0.0, _mhz, (("nvmlDeviceGetClockInfo", 2),)),
    ("power_w", 0.0, _milli, (("nvmlDeviceGetPowerUsage",),)),
    ("energy_j", _COSTLY_S, _milli, (("nvmlDeviceGetTotalEnergyConsumption",),)),
    ("temp_c", 0.0, celsius, (("nvmlDeviceGetTemperature", 0), ("nvmlDeviceGetTemperatureV", 0))),
    ("pcie_gen", 0.0, _at_least_one, (("nvmlDeviceGetCurrPcieLinkGeneration",),)),
    ("pcie_width", 0.0, _at_least_one, (("nvmlDeviceGetCurrPcieLinkWidth",),)),
    (
        "power_limit_w",
        _SLOW_S,
        _limit_w,
        (("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)),
    ),
    ("fan_pct", _SLOW_S, lambda answer: float(known(answer)), (("nvmlDeviceGetFanSpeed",),)),
    ("pcie_replays", _SLOW_S, known, (("nvmlDeviceGetPcieReplayCounter",),)),
    # Volatile counts: since the driver was loaded, as in nvidia-smi's first column.
    ("ecc_corrected", _SLOW_S, known, (("nvmlDeviceGetTotalEccErrors", 0, 0),)),
    ("ecc_uncorrected", _SLOW_S, known, (("nvmlDeviceGetTotalEccErrors", 1, 0),)),
)
"""Field, how long an answer is good for, how it is read, and the calls that may answer (the first one wins)."""

_NOT_OF_ITS_OWN = "the GPU is part of the chip: it has no memory or PCIe bus of its own"
_BUS_FIELDS = frozenset(
    ("mem_bus_width_bits", "pcie_gen", "pcie_gen_max", "pcie_width", "pcie_width_max", "pcie_replays")
)


class GpuReader:
    """Reads one GPU again and again; keeps what turns its counters into rates.

    Args:
        driver: the driver's version, which decides on the numbers of some counters.
        wsl: the driver is Windows', which answers less.
    """

    def __init__(
        self,
        lib: ModuleType,
        index: int,
        handle: Any,
        clock: Clock,
        driver: str | None,
        meminfo_path: Path,
        wsl: bool = False,
    ) -> None:
        self.index = index
        self.handle = handle
        self.vgpu_guest = False
        self._clock = clock
        self._meminfo_path = meminfo_path
        self._wsl = wsl
        self._asker = Asker(lib, handle, clock)
        self._fields = FieldReader(self._asker)
        self._counters = counter_fields(driver)
        self._throttle = Throttle()
        self._pcie = {PCIE_TX_BYTES: CounterRate(), PCIE_RX_BYTES: CounterRate()}
        self._nvlink = NvlinkReader(self._asker)
        self._gpm = GpmReader(self._asker, clock)
        self._mig = MigReader(self._asker)
        self._processes = ProcessReader(self._asker)
        self._identity = Gpu(index=index)

    def read(self, xids: tuple[XidEvent, ...], no_xids: str | None) -> Gpu:
        """The GPU now; `no_xids` is why Xid events can't be known.

        Raises:
            DriverGone: the driver as a whole stopped answering.
            GpuLost: this GPU did.
        """
        ask = self._asker
        ask.begin()
        self.vgpu_guest = ask.ask((), ("nvmlDeviceGetVirtualizationMode",), every_s=ONCE) == _VGPU_GUEST
        ask.place = "in a vGPU guest" if self.vgpu_guest else _WSL if self._wsl else None
        integrated = self._identity.integrated
        values: dict[str, Any] = {}
        for field, every_s, read, calls in _ROWS:
            if integrated and field in _BUS_FIELDS:
                ask.lacks(field, _NOT_OF_ITS_OWN)
            else:
                values[field] = ask.ask(field, *calls, read=read, every_s=every_s)
        values["integrated"] = integrated = is_integrated(values["name"])
        mig = self._mig_enabled()
        values["mig_enabled"] = mig
        instances = self._mig.read() if mig else ()
        values["util_pct"], values["mem_util_pct"] = self._utilisation(mig, integrated)
        rows = ask.ask(
            ("remapped_rows", "remap_pending", "remap_failed"),
            ("nvmlDeviceGetRemappedRows",),
            read=lambda answer: (known(answer[0]) + known(answer[1]), bool(answer[2]), bool(answer[3])),
            every_s=_SLOW_S,
        )
        values["remapped_rows"], values["remap_pending"], values["remap_failed"] = rows or (None, None, None)
        processes = self._all_processes(instances, bool(mig))
        used, total = device_memory(ask)
        if total is None and integrated and ask.code("mem_total_bytes") == NOT_SUPPORTED:
            used, total, available = host_shared(ask, processes, self._meminfo_path)
            values["host_available_bytes"] = available
            values["mem_source"] = "host-shared"
        links = self._nvlink.fields(self._clock.mono())
        gpm = self._read_gpm(bool(mig), integrated)
        self._read_counters(values, links, gpm, integrated)
        if no_xids:
            ask.lacks("xids", no_xids)
        gpu = Gpu(
            index=self.index,
            mem_used_bytes=used,
            mem_total_bytes=total,
            mig_instances=instances,
            processes=processes,
            gpm=gpm,
            xids=xids,
            missing=ask.missing,
            **values,
        )
        self._identity = gpu
        return gpu

    def lost(self, why: GpuLost, xids: tuple[XidEvent, ...]) -> Gpu:
        """What is still known of the GPU after it stopped answering: which one it was."""
        self._gpm.forget()
        return lost_gpu(self._identity, str(why), xids)

    def close(self) -> None:
        """Gives buffers back to the driver."""
        self._gpm.close()

    def _mig_enabled(self) -> bool | None:
        enabled: bool | None = self._asker.ask(
            "mig_enabled",
            ("nvmlDeviceGetMigMode",),
            read=lambda answer: answer[0] == 1,
            every_s=_MIG_LOOK_S,
        )
        return enabled

    def _utilisation(self, mig: bool | None, integrated: bool) -> tuple[float | None, float | None]:
        ask = self._asker
        found: tuple[float, float] | None = ask.ask(
            ("util_pct", "mem_util_pct"),
            ("nvmlDeviceGetUtilizationRates",),
            read=lambda answer: (percent(answer.gpu), percent(answer.memory)),
        )
        util, mem_util = found or (None, None)
        if util is None and mig and ask.code("util_pct") == NOT_SUPPORTED:
            for field in ("util_pct", "mem_util_pct"):
                ask.lacks(field, "MIG is on: the driver tells no utilisation (NVML_ERROR_NOT_SUPPORTED)")
        if integrated:
            ask.lacks("mem_util_pct", _NOT_OF_ITS_OWN)
            mem_util = None
        return util, mem_util

    def _all_processes(self, instances: tuple[MigInstance, ...], mig: bool) -> tuple[GpuProcess, ...] | None:
        listed = self._processes.read()
        if mig:
            self._asker.lacks("processes.sm_util_pct", "MIG is on: the driver tells no utilisation by process")
            here = {(process.pid, process.gpu_instance) for process in listed or ()}
            within = [process for instance in instances for process in instance.processes]
            more = tuple(p for p in within if not here & {(p.pid, p.gpu_instance), (p.pid, None)})
            if listed is not None or more:
                self._asker.missing.pop("processes", None)
                listed = (listed or ()) + more
        elif listed is not None:
            listed = self._processes.with_sm_util(listed)
        if listed is not None:
            tell_unknown_memory(self._asker, listed)
        return listed

    def _read_gpm(self, mig: bool, integrated: bool) -> Gpm | None:
        if mig:
            self._asker.lacks("gpm", "MIG is on: the counters belong to the instances, and are not read")
            return None
        gpm, missing = self._gpm.read()
        self._asker.missing.update(missing)
        if gpm is None:
            return None
        without: dict[str, str] = {}
        if self._nvlink.absent:
            without |= dict.fromkeys(("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"), NO_LINK)
        if integrated:
            without |= dict.fromkeys(("dram_bw_pct", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"), _NOT_OF_ITS_OWN)
        for field, reason in without.items():
            self._asker.lacks(f"gpm.{field}", reason)
        nothing: dict[str, Any] = dict.fromkeys(without)
        return dataclasses.replace(gpm, **nothing) if without else gpm

    def _read_counters(
        self, values: dict[str, Any], links: tuple[FieldKey, ...], gpm: Gpm | None, integrated: bool
    ) -> None:
        """Everything that comes as a field value: one call for all of it."""
        ask, now = self._asker, self._clock.mono()
        # GPM tells the PCIe rates at no cost; each of these counters costs 0.4 ms on an H200.
        by_gpm = gpm is not None and gpm.pcie_tx_bytes_per_s is not None and gpm.pcie_rx_bytes_per_s is not None
        pcie: tuple[FieldKey, ...] = () if integrated or by_gpm else (PCIE_TX_BYTES, PCIE_RX_BYTES)
        counters, later = self._throttle.due(self._counters, now)
        found = self._fields.read((MEMORY_TEMP, *pcie, *counters, *links))
        values["temp_mem_c"] = self._memory_temperature(found)
        ceiling = link_bytes_per_s(values.get("pcie_gen_max"), values.get("pcie_width_max"))
        for field, key in (("pcie_tx_bytes_per_s", PCIE_TX_BYTES), ("pcie_rx_bytes_per_s", PCIE_RX_BYTES)):
            if integrated:
                ask.lacks(field, _NOT_OF_ITS_OWN)
                continue
            rate, reason = self._pcie[key].update(found.get(key), now, ceiling)
            if by_gpm:
                rate = getattr(gpm, field)
            if rate is None:
                ask.lacks(field, reason if key in found else self._fields.reason(key))
                rate = None if gpm is None else ask.instead(field, getattr(gpm, field))
            values[field] = rate
        values["nvlink_tx_bytes_per_s"], values["nvlink_rx_bytes_per_s"], values["nvlink_errors"] = self._nvlink.read(
            found, self._fields, gpm, now
        )
        if values["nvlink_errors"] == 0 and values.get("architecture") == "Hopper":
            values["nvlink_errors"] = None
            ask.lacks("nvlink_errors", "on Hopper the driver answers 0, whatever happened: nvidia-smi nvlink -e counts")
        bits = ask.ask(
            "throttle", ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        supported = ask.ask(
            (),
            ("nvmlDeviceGetSupportedClocksEventReasons",),
            ("nvmlDeviceGetSupportedClocksThrottleReasons",),
            every_s=ONCE,
        )
        values["throttle"] = self._throttle.update(bits, supported, found, now, later)
        if values["throttle"] is not None:
            ask.missing.pop("throttle", None)
        elif bits is not None:
            ask.lacks("throttle", "this GPU tells no reason for its clocks")

    def _memory_temperature(self, found: dict[FieldKey, FieldValue]) -> float | None:
        if MEMORY_TEMP not in found:
            self._asker.lacks("temp_mem_c", self._fields.reason(MEMORY_TEMP))
            return None
        try:
            return celsius(found[MEMORY_TEMP].value)
        except Implausible as error:
            self._asker.lacks("temp_mem_c", str(error))
            return None


_IDENTITY = ("index", "uuid", "name", "architecture", "pci_bus_id", "integrated")


def lost_gpu(last: Gpu, why: str, xids: tuple[XidEvent, ...], lost: bool = True) -> Gpu:
    """A GPU of which only the identity is known; every other field is missing for the same reason."""
    bare = Gpu(**{field: getattr(last, field) for field in _IDENTITY}, lost=lost, xids=xids)
    unknown = [field.name for field in dataclasses.fields(Gpu) if getattr(bare, field.name) is None]
    return dataclasses.replace(bare, missing=dict.fromkeys(unknown, why))
