"""The driver as a whole: which version runs, and why it can't be talked to, as one sentence."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import re
from pathlib import Path
from types import ModuleType

from gputop_llm.sources.nvml_ask import text
from gputop_llm.sources.nvml_errors import (
    DRIVER_NOT_LOADED,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    code_of,
    failures,
    plain,
)

WSL_LIBRARY = Path("/usr/lib/wsl/lib/libnvidia-ml.so.1")
NO_PACKAGE = "the Python package nvidia-ml-py can't be imported, so GPUs can't be read; install it beside gputop-llm"
NO_GPU = "the NVIDIA driver runs but shows no GPU here; in a container, check that the devices are passed in"


def load_from(library: Path) -> bool:
    """Loads a libnvidia-ml that no search path names, so that nvidia-ml-py finds it by its name; False if it can't be.

    Under WSL it lies with Windows' other libraries, where only some distributions look.
    """
    try:
        ctypes.CDLL(str(library))
    except OSError:
        return False
    return True


def loaded_version(path: Path) -> str | None:
    """The version of the kernel module in use ("550.90.07"), from /proc/driver/nvidia/version; None if unreadable."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)*)\s", path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found[1] if found else None


def library_version(lib: ModuleType) -> str | None:
    """The version of libnvidia-ml in use ("550.107.02"); needs no initialised driver. None if it can't tell."""
    with contextlib.suppress(*failures(lib)):
        # "12.550.107.02": the CUDA major version stands before the driver's.
        major, _, rest = text(lib.nvmlSystemGetNVMLVersion()).partition(".")
        return rest if len(major) < 3 else f"{major}.{rest}"
    return None


def driver_version(lib: ModuleType) -> str | None:
    """The driver's version from NVML; None if it does not tell."""
    with contextlib.suppress(*failures(lib)):
        return text(lib.nvmlSystemGetDriverVersion())
    return None


def cuda_version(lib: ModuleType) -> str | None:
    """The newest CUDA version that the driver supports ("13.0"); None if it does not tell."""
    with contextlib.suppress(*failures(lib)):
        version = int(lib.nvmlSystemGetCudaDriverVersion_v2())
        return f"{version // 1000}.{version % 1000 // 10}"
    return None


def problem(error: Exception, lib: ModuleType, version_path: Path, replaced: bool, wsl: bool) -> str:
    """Why NVML can't be used, as one sentence with what to do.

    Args:
        replaced: NVML worked earlier in this process, so its library may be older than the one on disk.
        wsl: this is Linux under Windows.
    """
    code = code_of(error)
    if code is None:
        return f"NVML did not start: {error}"
    if code == LIB_RM_VERSION_MISMATCH:
        return _mismatch(lib, version_path, replaced)
    if code == LIBRARY_NOT_FOUND and wsl:
        return f"no NVIDIA driver library ({WSL_LIBRARY}); install NVIDIA's driver in Windows, not in WSL"
    if code == LIBRARY_NOT_FOUND:
        return "no NVIDIA driver library on this machine (libnvidia-ml.so.1 was not found), so there is no GPU to read"
    if code == DRIVER_NOT_LOADED:
        return f"{plain(code)}; `modprobe nvidia` or a reboot loads it"
    if code == NO_PERMISSION:
        return f"NVML did not start: {plain(code)} on the /dev/nvidia* device files"
    return f"NVML did not start: {plain(code)}"


def new_cuda_fails(
    lib: ModuleType | None = None, version_path: Path = Path("/proc/driver/nvidia/version")
) -> str | None:
    """Why no new CUDA process can start here: driver and library are of two versions. None where that isn't so."""
    try:
        lib = lib or importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        lib.nvmlInit()
        lib.nvmlShutdown()
    except failures(lib) as error:
        return _mismatch(lib, version_path, False) if code_of(error) == LIB_RM_VERSION_MISMATCH else None
    return None


def _mismatch(lib: ModuleType, version_path: Path, replaced: bool) -> str:
    loaded = loaded_version(version_path) or "of another version"
    library = library_version(lib) or "of another version"
    if replaced:
        return (
            f"the driver was replaced while this program ran: driver {loaded} is loaded, library {library} is still "
            "in use here; restart gputop-llm, and if that does not help, reboot or reload the kernel module"
        )
    return (
        f"driver {loaded} is loaded but library {library} is installed; a reboot or a reload of the kernel module "
        "fixes it; the running engine is not affected, but new CUDA processes on this machine will fail"
    )
