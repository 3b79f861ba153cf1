"""One simulated GPU: from the work done in a time slice to what its sensors would read.

Utilisation and GPM figures follow from the work alone; power, clock and temperatures lag
behind it as on a real card. The power model is fitted by eye to an H200: about 115 W idle,
250 W at a light decode load, near the limit in dense prefill.
"""

from __future__ import annotations

import math
import random
from collections import deque

from gputop_llm.demo.roofline import GpuSpec, Work
from gputop_llm.model import Gpm, Gpu, GpuProcess, ThrottleReason

SLICE_S = 0.25
"""Sensors move in steps of this simulated time, whatever the polling."""

_WINDOW_SLICES = 4
_POWER_LIMIT_W = 700.0
_IDLE_W = 115.0
_SM_W, _DRAM_W, _TENSOR_W = 150.0, 190.0, 560.0
_AMBIENT_C, _KELVIN_PER_W, _MEM_ABOVE_C = 27.0, 0.052, 4.0
_POWER_LAG_S, _TEMP_LAG_S, _CLOCK_LAG_S = 0.6, 22.0, 0.4
_CLOCK_MAX_MHZ, _CLOCK_IDLE_MHZ, _CLOCK_STEP_MHZ = 1980.0, 345.0, 15.0
_PCIE_RX_PER_STEP, _PCIE_TX_PER_STEP = 110_000.0, 34_000.0

MISSING = {
    "fan_pct": "not supported by this GPU (simulated)",
    "nvlink_tx_bytes_per_s": "this GPU has no active NVLink (simulated)",
    "nvlink_rx_bytes_per_s": "this GPU has no active NVLink (simulated)",
    "nvlink_errors": "this GPU has no active NVLink (simulated)",
}


class SimulatedGpu:
    """Sensors of one GPU.

    Args:
        index: NVML index.
        spec: its peaks.
        linked: whether NVLink is up.
        dice: for the noise of the sensors.
    """

    def __init__(self, index: int, spec: GpuSpec, linked: bool, dice: random.Random) -> None:
        self.index = index
        self._spec = spec
        self._linked = linked
        self._dice = dice
        self._slices: deque[Work] = deque(maxlen=_WINDOW_SLICES)
        self._power_w = _IDLE_W
        self._temp_c = _AMBIENT_C + _KELVIN_PER_W * _IDLE_W
        self._clock_mhz = _CLOCK_IDLE_MHZ
        self._energy_j = 0.0
        self._capped_slices: deque[float] = deque(maxlen=_WINDOW_SLICES)
        self._noise_w = 0.0

    def advance(self, work: Work) -> None:
        """One slice later: `work` is what was done in it."""
        self._slices.append(work)
        share = 1 / SLICE_S
        wanted_w = (
            _IDLE_W
            + _SM_W * work.sm_active_s * share
            + _DRAM_W * work.dram_bytes * share / self._spec.hbm_bytes_per_s
            + _TENSOR_W * work.flop * share / self._spec.bf16_flop_per_s
        )
        capped = wanted_w > _POWER_LIMIT_W
        self._capped_slices.append(100.0 if capped else 0.0)
        self._power_w += _toward(self._power_w, min(wanted_w, _POWER_LIMIT_W), _POWER_LAG_S)
        self._temp_c += _toward(self._temp_c, _AMBIENT_C + _KELVIN_PER_W * self._power_w, _TEMP_LAG_S)
        clock = _CLOCK_IDLE_MHZ if work.busy_s == 0 else _CLOCK_MAX_MHZ
        if capped:
            clock *= math.sqrt(_POWER_LIMIT_W / wanted_w)
        self._clock_mhz += _toward(self._clock_mhz, clock, _CLOCK_LAG_S)
        self._energy_j += self._power_w * SLICE_S
        self._noise_w = self._dice.gauss(0.0, 0.008 * self._power_w)

    def reading(self, mem_used_bytes: int, processes: tuple[GpuProcess, ...]) -> Gpu:
        """What NVML would say now; rates and GPM over the last second."""
        window = Work()
        for work in self._slices:
            window.add(work)
        seconds = max(1, len(self._slices)) * SLICE_S
        util = min(100.0, 100 * window.busy_s / seconds)
        gpm = self._gpm(window, seconds)
        # Loading a step's inputs and reading its tokens back is all that crosses PCIe.
        rx, tx = (per_step * window.steps / seconds for per_step in (_PCIE_RX_PER_STEP, _PCIE_TX_PER_STEP))
        link = window.nvlink_bytes / seconds if self._linked else None
        return Gpu(
            index=self.index,
            uuid=f"GPU-00000000-0000-0000-0000-demo{self.index:08d}",
            name=f"{self._spec.name} (simulated)",
            architecture="Hopper",
            pci_bus_id=f"00000000:{0x18 + 0x10 * self.index:02X}:00.0",
            util_pct=float(round(util)),
            mem_util_pct=float(round(min(util, 1.25 * (gpm.dram_bw_pct or 0.0)))),
            mem_used_bytes=mem_used_bytes,
            mem_total_bytes=self._spec.mem_bytes,
            sm_clock_mhz=_CLOCK_STEP_MHZ * round(self._clock_mhz / _CLOCK_STEP_MHZ),
            sm_clock_max_mhz=_CLOCK_MAX_MHZ,
            mem_clock_mhz=3201.0,
            mem_clock_max_mhz=3201.0,
            mem_bus_width_bits=6016,
            power_w=round(self._power_w + self._noise_w, 1),
            power_limit_w=_POWER_LIMIT_W,
            energy_j=round(self._energy_j, 1),
            temp_c=float(round(self._temp_c)),
            temp_mem_c=float(round(self._temp_c + _MEM_ABOVE_C)),
            temp_slowdown_c=89.0,
            temp_shutdown_c=95.0,
            throttle=self._throttle(util),
            pcie_tx_bytes_per_s=round(tx),
            pcie_rx_bytes_per_s=round(rx),
            pcie_gen=5,
            pcie_gen_max=5,
            pcie_width=16,
            pcie_width_max=16,
            pcie_replays=0,
            nvlink_tx_bytes_per_s=link,
            nvlink_rx_bytes_per_s=link,
            nvlink_errors=0 if self._linked else None,
            ecc_uncorrected=0,
            ecc_corrected=0,
            remapped_rows=0,
            remap_pending=False,
            remap_failed=False,
            mig_enabled=False,
            gpm=gpm,
            processes=processes,
            missing={name: why for name, why in MISSING.items() if not (self._linked and name.startswith("nvlink"))},
        )

    def _gpm(self, window: Work, seconds: float) -> Gpm:
        def pct(amount: float, peak: float) -> float:
            return round(min(100.0, 100 * amount / (seconds * peak)), 2)

        tensor = pct(window.flop, self._spec.bf16_flop_per_s)
        link = window.nvlink_bytes / seconds if self._linked else None
        return Gpm(
            interval_s=seconds,
            graphics_pct=pct(window.busy_s, 1.0),
            sm_active_pct=pct(window.sm_active_s, 1.0),
            sm_occupancy_pct=pct(window.occupancy_s, 1.0),
            tensor_pct=tensor,
            tensor_hmma_pct=tensor,
            tensor_imma_pct=0.0,
            tensor_dfma_pct=0.0,
            # Norms, rotary embeddings and sampling: little beside the matrix units.
            fp32_pct=round(0.11 * tensor + pct(0.012 * window.busy_s, 1.0), 2),
            fp16_pct=0.0,
            fp64_pct=0.0,
            integer_pct=round(0.16 * tensor + pct(0.035 * window.busy_s, 1.0), 2),
            dram_bw_pct=pct(window.dram_bytes, self._spec.hbm_bytes_per_s),
            pcie_tx_bytes_per_s=round(_PCIE_TX_PER_STEP * window.steps / seconds),
            pcie_rx_bytes_per_s=round(_PCIE_RX_PER_STEP * window.steps / seconds),
            nvlink_tx_bytes_per_s=link,
            nvlink_rx_bytes_per_s=link,
        )

    def _throttle(self, util: float) -> tuple[ThrottleReason, ...]:
        capped = sum(self._capped_slices) / max(1, len(self._capped_slices))
        return (
            ThrottleReason("idle", util == 0, None, "bit"),
            ThrottleReason("sw_power_cap", capped > 0, capped, "counter"),
            ThrottleReason("hw_slowdown", False, None, "bit"),
            ThrottleReason("sw_thermal", False, 0.0, "counter"),
            ThrottleReason("hw_thermal", False, 0.0, "counter"),
            ThrottleReason("hw_power_brake", False, 0.0, "counter"),
        )


def _toward(now: float, goal: float, lag_s: float) -> float:
    """The change of a first-order lag in one slice."""
    return (goal - now) * (1 - math.exp(-SLICE_S / lag_s))
