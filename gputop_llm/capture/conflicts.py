"""Other profilers in a process: CUPTI serves one at a time."""

from __future__ import annotations

import re

from gputop_llm.sources.procfs import ProcFs

_MOST_BYTES = 32 << 20
#: File names in /proc/PID/maps, and whose they are.
_INJECTED = (
    (re.compile(rb"/(libToolsInjection|libcuda-injection-nsys|libnsys)[^/\n]*\.so"), "Nsight Systems"),
    (re.compile(rb"/(libcuda-injection|libInterceptorInjectionTarget|libTreeLauncherTargetInjection)[^/\n]*\.so"),
     "Nsight Compute"),
    (re.compile(rb"/libsanitizer-collection[^/\n]*\.so"), "Compute Sanitizer"),
)  # fmt: skip


def other_profiler(pid: int, proc: ProcFs) -> str | None:
    """The profiler whose library a process has mapped; None where there is none.

    Raises:
        OSError: its mappings can't be read.
    """
    maps = proc.read(f"{pid}/maps", _MOST_BYTES)
    return next((name for pattern, name in _INJECTED if pattern.search(maps)), None)


def has_cuda(pid: int, proc: ProcFs) -> bool:
    """Whether a process has the CUDA driver mapped.

    Raises:
        OSError: its mappings can't be read.
    """
    return b"/libcuda.so" in proc.read(f"{pid}/maps", _MOST_BYTES)


def has_cupti(pid: int, proc: ProcFs) -> bool:
    """Whether a process has CUPTI mapped.

    Raises:
        OSError: its mappings can't be read.
    """
    return b"/libcupti.so" in proc.read(f"{pid}/maps", _MOST_BYTES)


def has_torch(pid: int, proc: ProcFs) -> bool:
    """Whether a process has PyTorch mapped.

    Raises:
        OSError: its mappings can't be read.
    """
    return b"/libtorch_cpu.so" in proc.read(f"{pid}/maps", _MOST_BYTES)
