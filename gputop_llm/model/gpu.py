"""What one poll of the GPUs says. None means unknown; `missing` says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ThrottleReason:
    """One reason for lowered clocks.

    `share_pct` is the share of the time since the previous poll during which
    the reason held, from NVML's cumulative counters; None where only the
    momentary bit is known (`source` tells: "counter" or "bit").
    """

    name: str
    active: bool
    share_pct: float | None
    source: str


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that NVML lists on a GPU.

    `pid` is in the namespace that NVML reports from (the host's).
    """

    pid: int
    kind: str
    mem_bytes: int | None
    sm_util_pct: float | None
    gpu_instance: int | None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG slice with its own memory; the parent's utilisation is not its own."""

    gpu_instance: int | None
    compute_instance: int | None
    uuid: str | None
    name: str | None
    mem_used_bytes: int | None
    mem_total_bytes: int | None
    sm_count: int | None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def mem_used_pct(self) -> float | None:
        """Used share of its own memory in percent; None where either side is unknown or zero."""
        if self.mem_used_bytes is None or not self.mem_total_bytes:
            return None
        return 100.0 * self.mem_used_bytes / self.mem_total_bytes


@dataclass(frozen=True, slots=True)
class XidEvent:
    """An Xid error event; `at_s` is wall time of its receipt."""

    at_s: float
    xid: int


@dataclass(frozen=True, slots=True)
class Gpm:
    """Hopper GPU Performance Monitoring: averages between the last two samples.

    Percentages are of the chip's peak for that unit; rates in bytes per second. The split by
    pipe (graphics, integer, tensor HMMA/IMMA/DFMA, FP64/32/16) is read every 4 s and keeps its value in between.
    """

    interval_s: float
    graphics_pct: float | None = None
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_pct: float | None = None
    tensor_hmma_pct: float | None = None
    tensor_imma_pct: float | None = None
    tensor_dfma_pct: float | None = None
    fp32_pct: float | None = None
    fp16_pct: float | None = None
    fp64_pct: float | None = None
    integer_pct: float | None = None
    dram_bw_pct: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment.

    `missing` maps a field's name to the reason why it is None.
    `mem_source` is "device", or "host-shared" for integrated parts whose memory is the host's RAM;
    `host_available_bytes` is then what the host could still give (MemAvailable), else None.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    architecture: str | None = None
    pci_bus_id: str | None = None
    integrated: bool = False
    lost: bool = False

    util_pct: float | None = None
    mem_util_pct: float | None = None
    mem_used_bytes: int | None = None
    mem_total_bytes: int | None = None
    mem_source: str = "device"
    host_available_bytes: int | None = None

    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    mem_clock_mhz: float | None = None
    mem_clock_max_mhz: float | None = None
    mem_bus_width_bits: int | None = None

    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    temp_c: float | None = None
    temp_mem_c: float | None = None
    temp_slowdown_c: float | None = None
    temp_shutdown_c: float | None = None
    fan_pct: float | None = None
    throttle: tuple[ThrottleReason, ...] | None = None

    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_errors: int | None = None

    ecc_uncorrected: int | None = None
    ecc_corrected: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    xids: tuple[XidEvent, ...] = ()

    mig_enabled: bool | None = None
    mig_instances: tuple[MigInstance, ...] = ()
    gpm: Gpm | None = None
    processes: tuple[GpuProcess, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def mem_used_pct(self) -> float | None:
        """Used share of the memory in percent; None where either side is unknown or zero."""
        if self.mem_used_bytes is None or not self.mem_total_bytes:
            return None
        return 100.0 * self.mem_used_bytes / self.mem_total_bytes

    @property
    def mem_free_bytes(self) -> int | None:
        """Bytes that can still be taken: what is not used, or of a shared memory what the host could still give."""
        if self.mem_source == "host-shared":
            return self.host_available_bytes
        if self.mem_used_bytes is None or self.mem_total_bytes is None:
            return None
        return self.mem_total_bytes - self.mem_used_bytes

    @property
    def power_pct(self) -> float | None:
        """Power as a share of the enforced limit in percent; None without a real limit."""
        if self.power_w is None or not self.power_limit_w:
            return None
        return 100.0 * self.power_w / self.power_limit_w


@dataclass(frozen=True, slots=True)
class GpuPair:
    """How two GPUs (by index) are joined; `missing` maps a field's name to the reason why it is None.

    `path` is what they have to cross where no NVLink joins them, as `nvidia-smi topo -m` calls it: "same board",
    "PIX" (one PCIe switch), "PXB" (several), "PHB" (a host bridge), "NODE" (host bridges of one NUMA node),
    "SYS" (between NUMA nodes). `peer_access` tells whether one may read the other's memory directly.
    """

    a: int
    b: int
    path: str | None = None
    nvlink: bool | None = None
    peer_access: bool | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuNode:
    """All GPUs of this node, and the driver they run on. `pairs` holds every two of them, a below b.

    `problem` is one sentence when GPUs can't be read at all (no driver, library mismatch);
    the program works on without them. `vgpu_guest` and `wsl` (the driver is Windows') tell of go-betweens that answer
    only a part of the questions.
    """

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    problem: str | None = None
    vgpu_guest: bool = False
    wsl: bool = False
    pairs: tuple[GpuPair, ...] = ()
