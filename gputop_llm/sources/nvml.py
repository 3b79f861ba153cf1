"""The GPU source: NVML from its first call to its last, through lost GPUs and driver reloads.

What is read of one GPU is in `nvml_gpu`; this module keeps the connection to the driver.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from gputop_llm.clock import Clock, SystemClock
from gputop_llm.model.gpu import Gpu, GpuNode, GpuPair
from gputop_llm.sources import nvml_driver, nvml_topology
from gputop_llm.sources.nvml_errors import (
    DRIVER_GONE,
    LIBRARY_NOT_FOUND,
    LOST,
    DriverGone,
    GpuLost,
    code_of,
    failures,
    plain,
)
from gputop_llm.sources.nvml_gpu import GpuReader, lost_gpu
from gputop_llm.sources.nvml_xid import XidWatch

_RETRY_FIRST_S = 30.0
_RETRY_LONGEST_S = 600.0
_CLOCK = SystemClock()


class NvmlSource:
    """All GPUs of this node; without a driver it says why, and looks again now and then.

    Args:
        lib: pynvml, or what stands in for it; imported on the first poll when None.
    """

    name = "nvml"
    deadline_s = 5.0

    def __init__(
        self,
        lib: ModuleType | None = None,
        clock: Clock = _CLOCK,
        meminfo_path: Path = Path("/proc/meminfo"),
        version_path: Path = Path("/proc/driver/nvidia/version"),
        dxg_path: Path = Path("/dev/dxg"),
    ) -> None:
        self._lib = lib
        self._clock = clock
        self._meminfo_path = meminfo_path
        self._version_path = version_path
        # Windows' driver is reached through this device, and no other system has it.
        self._wsl = dxg_path.exists()
        self._xids = XidWatch(clock)
        self._readers: dict[int, GpuReader] = {}
        self._dead: dict[int, Gpu] = {}
        self._node = GpuNode()
        self._pairs: tuple[GpuPair, ...] | None = None
        self._has_read = False
        self._up = False
        self._worked = False
        self._busy = False
        self._retry_s = _RETRY_FIRST_S
        self._retry_at_s = float("-inf")

    def poll(self) -> GpuNode:
        """One reading of every GPU; `problem` instead of GPUs when there is no driver to ask. Never raises."""
        self._busy = True
        try:
            if not self._up or (self._dead and self._clock.mono() >= self._retry_at_s):
                self._start()
            return self._read() if self._up else self._node
        except DriverGone as gone:
            return self._driver_gone(gone)
        finally:
            self._busy = False

    def abort(self) -> None:
        """Does nothing: a hung driver call can't be interrupted from outside."""

    def close(self) -> None:
        """Lets the driver go; not while a poll hangs in it, since that would hang this thread too."""
        if not self._busy:
            self._stop()

    def _start(self) -> None:
        """Initialises NVML anew unless it is too early after the last attempt; sets `_node` and `_up`."""
        now = self._clock.mono()
        if now < self._retry_at_s:
            return
        self._stop()
        self._wait_longer(now)
        if self._lib is None:
            try:
                self._lib = importlib.import_module("pynvml")
            except ImportError:
                self._node = GpuNode(problem=nvml_driver.NO_PACKAGE)
                return
        try:
            self._initialise(self._lib)
            self._up = True
            count = int(self._lib.nvmlDeviceGetCount())
        except failures(self._lib) as error:
            self._fail(self._lib, error)
            return
        self._worked = True
        self._node = GpuNode(driver=nvml_driver.driver_version(self._lib), cuda=nvml_driver.cuda_version(self._lib))
        if count == 0:
            self._stop()
            self._node = GpuNode(driver=self._node.driver, cuda=self._node.cuda, problem=nvml_driver.NO_GPU)
            return
        for index in range(count):
            self._open(self._lib, index)
        self._xids.open(self._lib, self._handles())
        self._pairs, self._has_read = None, False

    def _initialise(self, lib: ModuleType) -> None:
        try:
            lib.nvmlInit()
        except failures(lib) as error:
            again = self._wsl and code_of(error) == LIBRARY_NOT_FOUND
            if not (again and nvml_driver.load_from(nvml_driver.WSL_LIBRARY)):
                raise
            lib.nvmlInit()

    def _open(self, lib: ModuleType, index: int) -> None:
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(index)
        except failures(lib) as error:
            code = code_of(error)
            if code in DRIVER_GONE:
                raise DriverGone(code) from error
            why = str(error) if code is None else plain(code)
            self._dead[index] = lost_gpu(Gpu(index=index), why, self._xids.events(index), lost=code in LOST)
        else:
            self._readers[index] = GpuReader(
                lib, index, handle, self._clock, self._node.driver, self._meminfo_path, self._wsl
            )

    def _read(self) -> GpuNode:
        self._xids.poll()
        gpus: dict[int, Gpu] = dict(self._dead)
        for index, reader in list(self._readers.items()):
            xids = self._xids.events(index)
            try:
                gpus[index] = reader.read(xids, self._xids.reason(index))
            except GpuLost as why:
                gpus[index] = self._dead[index] = reader.lost(why, xids)
                del self._readers[index]
                self._retry_s = _RETRY_FIRST_S
                self._wait_longer(self._clock.mono())
        if not self._dead:
            self._retry_s = _RETRY_FIRST_S
        if self._pairs is None and self._has_read:
            self._pairs = self._joined()
        self._has_read = True
        return GpuNode(
            gpus=tuple(gpus[index] for index in sorted(gpus)),
            driver=self._node.driver,
            cuda=self._node.cuda,
            vgpu_guest=any(reader.vgpu_guest for reader in self._readers.values()),
            wsl=self._wsl,
            pairs=self._pairs or (),
        )

    def _joined(self) -> tuple[GpuPair, ...]:
        """How the GPUs are joined: a few milliseconds for every two, which the first reading is not to wait for."""
        assert self._lib is not None
        try:
            return nvml_topology.pairs(self._lib, self._handles())
        except GpuLost:
            # The next reading finds out which one.
            return ()

    def _handles(self) -> dict[int, Any]:
        return {index: reader.handle for index, reader in self._readers.items()}

    def _driver_gone(self, gone: DriverGone) -> GpuNode:
        """The driver was unloaded or replaced under us; the next poll starts afresh if it is not too early."""
        self._stop()
        self._node = GpuNode(
            driver=nvml_driver.loaded_version(self._version_path),
            problem=f"the connection to the NVIDIA driver was lost: {gone}; it is tried again now and then",
        )
        return self._node

    def _fail(self, lib: ModuleType, error: Exception) -> None:
        self._node = GpuNode(
            driver=nvml_driver.loaded_version(self._version_path),
            problem=nvml_driver.problem(error, lib, self._version_path, replaced=self._worked, wsl=self._wsl),
        )
        self._stop()

    def _wait_longer(self, now_s: float) -> None:
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, _RETRY_LONGEST_S)

    def _stop(self) -> None:
        """Lets go of all handles and of the driver; what the GPUs said last is gone, Xid events stay."""
        for reader in self._readers.values():
            reader.close()
        self._xids.close()
        if self._up and self._lib is not None:
            with contextlib.suppress(*failures(self._lib)):
                self._lib.nvmlShutdown()
        self._readers, self._dead, self._up = {}, {}, False
