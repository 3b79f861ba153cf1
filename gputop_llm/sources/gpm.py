"""GPU Performance Monitoring (Hopper and newer): what the SMs, tensor cores and memory really do.

Each metric is an average between two samples that the driver takes of hardware counters; both
buffers of a GPU are allocated once and used in turn.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from gputop_llm.clock import Clock
from gputop_llm.model.gpu import Gpm
from gputop_llm.sources.nvml_ask import RETRY_UNSUPPORTED_S, Asker
from gputop_llm.sources.nvml_errors import NO_PERMISSION, code_of, lasts
from gputop_llm.sources.nvml_fields import NEEDS_TWO

_MIB = 1024.0 * 1024.0
_VERSION = 1
_SHORTEST_S = 0.1
"""NVML asks for at least 100 ms between two samples."""

_OVERSHOOT_PCT = 105.0
"""Counters that are read a moment apart can exceed the peak by a little; that is 100 %."""

_MOST_BYTES_PER_S = 1e13
"""Several times the fastest NVLink: counters that began anew between two samples wrap to far more."""

_Metrics = tuple[tuple[str, int], ...]
"""Field of `Gpm` and NVML_GPM_METRIC_*; the rates come in MiB/s, the rest in percent."""

_EACH_TICK: _Metrics = (
    ("sm_active_pct", 2),
    ("sm_occupancy_pct", 3),
    ("tensor_pct", 5),
    ("dram_bw_pct", 10),
    ("pcie_tx_bytes_per_s", 20),
    ("pcie_rx_bytes_per_s", 21),
    ("nvlink_rx_bytes_per_s", 60),
    ("nvlink_tx_bytes_per_s", 61),
)
_BY_PIPE: _Metrics = (
    ("graphics_pct", 1),
    ("integer_pct", 4),
    ("tensor_dfma_pct", 6),
    ("tensor_hmma_pct", 7),
    ("tensor_imma_pct", 9),
    ("fp64_pct", 11),
    ("fp32_pct", 12),
    ("fp16_pct", 13),
)
_BY_PIPE_EVERY_S = 4.0
"""Working out the split by pipe takes the driver 1.2 ms on an H200, the metrics of each tick 0.04 ms."""


class GpmReader:
    """Two samples in turn for one GPU."""

    def __init__(self, asker: Asker, clock: Clock) -> None:
        self._asker = asker
        self._clock = clock
        self._samples: list[Any] = []
        self._taken_s: list[float | None] = [None, None]
        self._older = 0
        self._requests: dict[_Metrics, Any] = {}
        self._pipes: tuple[float, dict[str, float], dict[str, str]] | None = None
        self._refused: tuple[str, float] | None = None
        self._last: tuple[Gpm | None, dict[str, str]] = (None, {"gpm": NEEDS_TWO})

    def read(self) -> tuple[Gpm | None, dict[str, str]]:
        """The averages since the previous read, and why the rest is unknown (`gpm` or `gpm.field`).

        Raises:
            DriverGone, GpuLost: the answer says so.
        """
        now = self._clock.mono()
        if self._refused is not None:
            if now < self._refused[1]:
                return None, {"gpm": self._refused[0]}
            self._refused = None
        newest_s = self._taken_s[1 - self._older]
        if newest_s is not None and now - newest_s < _SHORTEST_S:
            return self._last
        try:
            self._last = self._sample(now)
        except self._asker.failures as error:
            reason = self._asker.judge(error)
            if code_of(error) == NO_PERMISSION:
                reason += ": the profiling counters are kept for administrators on this machine"
            self._last = self._fail(reason, lasts(error))
        return self._last

    def forget(self) -> None:
        """Drops the samples that were taken, so that no average reaches across a gap."""
        self._taken_s = [None, None]
        self._pipes = None
        self._last = (None, {"gpm": NEEDS_TWO})

    def close(self) -> None:
        """Gives the buffers back to the driver."""
        for sample in self._samples:
            with contextlib.suppress(*self._asker.failures):
                self._asker.lib.nvmlGpmSampleFree(sample)
        self._samples = []
        self.forget()

    def _sample(self, now: float) -> tuple[Gpm | None, dict[str, str]]:
        lib = self._asker.lib
        if not self._samples and not lib.nvmlGpmQueryDeviceSupport(self._asker.handle).isSupportedDevice:
            reason = f"not available {self._asker.place}" if self._asker.place else "needs a Hopper or newer GPU"
            return self._fail(f"{reason} (GPM)", lasting=True)
        while len(self._samples) < 2:
            self._samples.append(lib.nvmlGpmSampleAlloc())
        lib.nvmlGpmSampleGet(self._asker.handle, self._samples[self._older])
        self._taken_s[self._older] = now
        newer, self._older = self._older, 1 - self._older
        before_s = self._taken_s[self._older]
        if before_s is None:
            return None, {"gpm": NEEDS_TWO}
        older, newest = self._samples[self._older], self._samples[newer]
        values, missing = self._metrics(_EACH_TICK, older, newest)
        if self._pipes is None or now - self._pipes[0] >= _BY_PIPE_EVERY_S:
            self._pipes = (now, *self._metrics(_BY_PIPE, older, newest))
        _, pipes, pipes_missing = self._pipes
        return Gpm(interval_s=now - before_s, **values, **pipes), missing | pipes_missing

    def _metrics(self, metrics: _Metrics, before: Any, after: Any) -> tuple[dict[str, float], dict[str, str]]:
        request = self._requests.get(metrics)
        if request is None:
            request = self._requests[metrics] = self._asker.lib.c_nvmlGpmMetricsGet_t()
            request.version = _VERSION
            request.numMetrics = len(metrics)
            for position, (_, metric) in enumerate(metrics):
                request.metrics[position].metricId = metric
        request.sample1, request.sample2 = before, after
        self._asker.lib.nvmlGpmMetricsGet(request)
        values: dict[str, float] = {}
        missing: dict[str, str] = {}
        for position, (field, _) in enumerate(metrics):
            answer = request.metrics[position]
            code, value = int(answer.nvmlReturn), float(answer.value)
            if code != 0:
                missing[f"gpm.{field}"] = self._asker.judge(code)
            elif not math.isfinite(value) or value < 0.0:
                missing[f"gpm.{field}"] = f"the driver answers {value}, which can't be"
            elif field.endswith("_per_s"):
                if value * _MIB > _MOST_BYTES_PER_S:
                    missing[f"gpm.{field}"] = f"the driver answers {value:.3g} MiB/s, which can't be"
                else:
                    values[field] = value * _MIB
            elif value > _OVERSHOOT_PCT:
                missing[f"gpm.{field}"] = f"the driver answers {value:.0f} %, which can't be"
            else:
                values[field] = min(value, 100.0)
        return values, missing

    def _fail(self, reason: str, lasting: bool) -> tuple[None, dict[str, str]]:
        self.forget()
        if lasting:
            self._refused = (reason, self._clock.mono() + RETRY_UNSUPPORTED_S)
        return None, {"gpm": reason}
