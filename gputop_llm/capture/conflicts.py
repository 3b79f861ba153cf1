"""Other profilers in a process: CUPTI serves one at a time."""

from __future__ import annotations

import re

from gputop_llm.sources.procfs import ProcFs

_MOST_BYTES = 32 << 20
#: Beginnings of file names, and whose they are; the client looks for the same ones (others.c).
TOOLS = {
    "libToolsInjection": "Nsight Systems",
    "libcuda-injection-nsys": "Nsight Systems",
    "libcuda-injection": "Nsight Compute",
    "libInterceptorInjection": "Nsight Compute",
    "libTreeLauncherTargetInjection": "Nsight Compute",
    "libcudadebugger": "cuda-gdb",
    "libsanitizer": "Compute Sanitizer",
    "libproton": "Triton's profiler (Proton)",
    "libcupti_trace_injection": "CUPTI's trace injection",
    "libparcagpu": "Parca",
    "libscorep_adapter": "Score-P",
    "libhpcrun": "HPCToolkit",
    "libTAU": "TAU",
}
_TOOL = re.compile(rb"/(%s)[^/\n]*$" % "|".join(TOOLS).encode(), re.MULTILINE)


def other_profiler(pid: int, proc: ProcFs) -> str | None:
    """The profiler whose library a process has mapped; None where there is none.

    Raises:
        OSError: its mappings can't be read.
    """
    maps = proc.read(f"{pid}/maps", _MOST_BYTES)
    found = _TOOL.search(maps)
    return TOOLS[found[1].decode()] if found else None


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
