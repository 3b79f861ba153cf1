"""What an NVML return code means: in plain words, and for what happens next.

The codes are part of NVML's stable ABI (nvml.h), so they are written down here
and work with any version of nvidia-ml-py.
"""

from __future__ import annotations

import ctypes
from types import ModuleType

UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
RESET_REQUIRED = 16
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28
UNKNOWN = 999

_TABLE: dict[int, tuple[str, str]] = {
    UNINITIALIZED: ("NVML_ERROR_UNINITIALIZED", "the connection to the driver is gone"),
    INVALID_ARGUMENT: ("NVML_ERROR_INVALID_ARGUMENT", "this driver does not know the query"),
    NOT_SUPPORTED: ("NVML_ERROR_NOT_SUPPORTED", "not supported by this GPU"),
    NO_PERMISSION: ("NVML_ERROR_NO_PERMISSION", "no permission"),
    5: ("NVML_ERROR_ALREADY_INITIALIZED", "already initialised"),
    NOT_FOUND: ("NVML_ERROR_NOT_FOUND", "the driver found nothing"),
    7: ("NVML_ERROR_INSUFFICIENT_SIZE", "the answer grew while it was read"),
    8: ("NVML_ERROR_INSUFFICIENT_POWER", "the GPU's external power cables are not properly attached"),
    DRIVER_NOT_LOADED: ("NVML_ERROR_DRIVER_NOT_LOADED", "the NVIDIA kernel driver is not loaded"),
    TIMEOUT: ("NVML_ERROR_TIMEOUT", "the driver did not answer in time"),
    11: ("NVML_ERROR_IRQ_ISSUE", "the kernel found an interrupt problem with the GPU"),
    LIBRARY_NOT_FOUND: ("NVML_ERROR_LIBRARY_NOT_FOUND", "libnvidia-ml.so.1 was not found"),
    FUNCTION_NOT_FOUND: ("NVML_ERROR_FUNCTION_NOT_FOUND", "the installed driver is too old for this query"),
    14: ("NVML_ERROR_CORRUPTED_INFOROM", "the GPU's infoROM is corrupted"),
    GPU_IS_LOST: ("NVML_ERROR_GPU_IS_LOST", "the GPU is lost: it fell off the bus or can't be reached"),
    RESET_REQUIRED: ("NVML_ERROR_RESET_REQUIRED", "the GPU needs a reset"),
    17: ("NVML_ERROR_OPERATING_SYSTEM", "the operating system blocked the request"),
    LIB_RM_VERSION_MISMATCH: ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "driver and library versions differ"),
    19: ("NVML_ERROR_IN_USE", "the GPU is in use by another administrative command"),
    20: ("NVML_ERROR_MEMORY", "the driver ran out of memory"),
    21: ("NVML_ERROR_NO_DATA", "the driver has no data yet"),
    22: ("NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", "not supported while ECC is on"),
    23: ("NVML_ERROR_INSUFFICIENT_RESOURCES", "the driver ran out of resources"),
    24: ("NVML_ERROR_FREQ_NOT_SUPPORTED", "not a supported frequency"),
    25: ("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "driver and nvidia-ml-py disagree on this query's version"),
    26: ("NVML_ERROR_DEPRECATED", "this driver has withdrawn the query"),
    27: ("NVML_ERROR_NOT_READY", "the driver is not ready yet"),
    GPU_NOT_FOUND: ("NVML_ERROR_GPU_NOT_FOUND", "the GPU is no longer there"),
    29: ("NVML_ERROR_INVALID_STATE", "the GPU is in a state that does not allow the query"),
    UNKNOWN: ("NVML_ERROR_UNKNOWN", "the driver answered “unknown error”"),
}

DRIVER_GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Codes after which no handle is worth anything: shut down and initialise again."""

LOST = frozenset({GPU_IS_LOST, GPU_NOT_FOUND})
"""Codes that say that this one GPU is gone while the others may work on."""

_LASTING = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, 22, 24, 25, 26})


class DriverGone(Exception):
    """The driver as a whole stopped answering; `code` is the NVML return code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(plain(code))


class GpuLost(Exception):
    """One GPU stopped answering; `code` is the NVML return code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(plain(code))


class Implausible(Exception):
    """The driver answered with something that can't be a reading; the message says what."""


def plain(code: int, place: str | None = None) -> str:
    """The meaning of an NVML return code in words, with its name in brackets.

    Args:
        place: where the GPU is reached by a go-between that answers less ("in a vGPU guest"); None: directly.
    """
    name, words = _TABLE.get(code, (f"NVML error {code}", "the driver refused"))
    if place is not None and code == NOT_SUPPORTED:
        words = f"not available {place}"
    return f"{words} ({name})"


def failures(lib: ModuleType) -> tuple[type[Exception], ...]:
    """What a call into nvidia-ml-py may raise and a source must live with.

    Besides NVML's own codes: the function or constant is not in the installed version, takes other
    arguments there, or the driver's answer is no UTF-8.
    """
    return (
        lib.NVMLError,
        getattr(lib, "NVMLLibraryMismatchError", lib.NVMLError),  # not in nvidia-ml-py 12.535
        AttributeError,
        TypeError,
        ValueError,
        ctypes.ArgumentError,
    )


def code_of(error: Exception) -> int | None:
    """The NVML return code behind one of `failures`; None if it never reached the driver."""
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return FUNCTION_NOT_FOUND
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def judge(error: Exception | int, place: str | None = None) -> str:
    """The reason, in words, of a failure that costs one field.

    Args:
        error: one of `failures`, or a bare return code.
        place: as in `plain`.

    Raises:
        DriverGone, GpuLost: it costs more than that.
    """
    code = error if isinstance(error, int) else code_of(error)
    if code is None:
        return f"the installed nvidia-ml-py can't ask for it ({error})"
    if code in DRIVER_GONE:
        raise DriverGone(code)
    if code in LOST:
        raise GpuLost(code)
    return plain(code, place)


def lasts(error: Exception | int) -> bool:
    """True if the same call will fail again: not worth asking on each tick.

    Some such calls make the kernel of a vGPU guest log a line every time.
    """
    code = error if isinstance(error, int) else code_of(error)
    return code is None or code in _LASTING
