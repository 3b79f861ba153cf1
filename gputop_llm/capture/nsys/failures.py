"""What nsys says when it fails, and what that means: cause and fix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.printable import printable


@dataclass(frozen=True, slots=True)
class Meaning:
    """Why it failed, and what to do; clauses."""

    why: str
    todo: str


_KNOWN: tuple[tuple[str, Meaning], ...] = (
    (
        r"No CUDA events collected|CUDA profiling might have not been started correctly|does not contain CUDA kernel",
        Meaning(
            "nsys saw no CUDA call in the window: it wraps another process than the one that uses the GPU, or the "
            "workers were forked without being traced",
            "start the server itself by `gputop-llm run --nsys -- COMMAND`, its workers by spawn "
            "(VLLM_WORKER_MULTIPROC_METHOD=spawn)",
        ),
    ),
    (
        r"Installed CUDA driver version.*is not supported",
        Meaning("nsys is older than the driver: kernels may be missing", "update Nsight Systems"),
    ),
    (
        r"CUPTI buffers: \d+ of \d+|Not all CUDA events might have been collected|CUPTI events might be missing",
        Meaning("its buffers ran over, or the program ended: events are missing", "take a shorter window"),
    ),
    (
        r"incomplete CUPTI events dropped",
        Meaning(
            "this GPU's hardware trace lost kernels",
            "start the server with software tracing: nsys launch --trace=cuda-sw,nvtx COMMAND",
        ),
    ),
    (
        r"paranoid level|perf_event_paranoid",
        Meaning("the kernel lets this user take no CPU samples", "sysctl kernel.perf_event_paranoid=1, or run as root"),
    ),
    (
        r"perf_event_open",
        Meaning(
            "the container's seccomp profile forbids CPU samples",
            "start the container with --cap-add=SYS_ADMIN, or a profile that allows perf_event_open",
        ),
    ),
    (
        r"MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
        Meaning(
            "another profiler (torch.profiler, or a native window) has CUPTI in that process",
            "one at a time: end that one first",
        ),
    ),
    (
        r"NVGPUCTRPERM|[Ii]nsufficient privilege.*GPU|permission to access.*(counters|GPU metrics)",
        Meaning(
            "the driver gives GPU counters to administrators only",
            "run gputop-llm as root, or set the driver's option NVreg_RestrictProfilingToAdminUsers=0 "
            "(in a container: --cap-add=SYS_ADMIN)",
        ),
    ),
    (
        r"None of the installed GPUs are supported",
        Meaning("nsys can read the counters of no GPU here (none is Turing or newer, or none is visible)", ""),
    ),
    (
        r"(counters|metrics|resource|device).*already (being )?(in use|used)|already in use",
        Meaning(
            "somebody else reads the GPU's counters (DCGM, ncu, or another nsys)",
            "dcgmi profile --pause, or end the other one",
        ),
    ),
    (
        r"out[- ]of[- ]order|[Ww]rong event order",
        Meaning("this nsys writes CUDA graphs in the wrong order", "use Nsight Systems 2024.2 or later"),
    ),
    (
        r"Local Endpoint is not available|Connection to Agent lost",
        Meaning(
            "nsys lost its agent: it was ended, or nsys was moved or is run through a link",
            "run nsys by its real path; a server that was started under it must be started again",
        ),
    ),
    (
        r"Importer error status|[Ii]mporter.*(not found|cannot|failed)|error while loading shared libraries",
        Meaning(
            "nsys recorded, but its importer can't run (a library is missing)",
            "install libdw1 and libssh-4, or the package of NVIDIA; ldd on QdstrmImporter says which library",
        ),
    ),
    (
        r"newer than your current version|created in Nsight Systems version",
        Meaning("the report is of a newer nsys than the one that reads it", "update Nsight Systems"),
    ),
    (
        r"Configuring is not allowed in this state",
        Meaning("somebody else collects in this session", "wait until `nsys sessions list` shows it as Launched"),
    ),
    (
        r"Failed to find session|[Ss]ession .*(not found|does not exist)",
        Meaning("the session is gone: the server or nsys's agent has ended", "start the server again"),
    ),
    (
        r"unrecogni[sz]ed option|not supported by|illegal .*argument|invalid .*argument",
        Meaning("this nsys does not know an option", "update Nsight Systems"),
    ),
    (
        r"No space left on device|disk.*full",
        Meaning("the disk is full", "free some, or set TMPDIR for the server and name another place with --output"),
    ),
    (
        r"out of memory|OUT_OF_MEMORY",
        Meaning("there was no memory left for nsys's buffers on the GPU", "leave the engine less of the GPU's memory"),
    ),
    (
        r"[Ss]hared memory|shm",
        Meaning("nsys could not use shared memory", "give the container more (--shm-size), or end the other nsys"),
    ),
    (
        r"collection.*(never|not) start|Generated:\s*$",
        Meaning(
            "the range never began: nothing called cudaProfilerStart, or a range's name is no registered string",
            "NSYS_NVTX_PROFILER_REGISTER_ONLY=0 for names, or take a window without a range",
        ),
    ),
)
_PATTERNS = tuple((re.compile(pattern), meaning) for pattern, meaning in _KNOWN)
_PROGRESS = re.compile(r"\[\s*=*\s*\d{1,3}\s*%[^\r\n]*")


def meaning_of(text: str) -> Meaning | None:
    """The meaning of the first thing in a text that is known to fail; None where there is none."""
    return next((meaning for pattern, meaning in _PATTERNS if pattern.search(text)), None)


def explained(text: str) -> Meaning:
    """The same; for what is unknown its own last words."""
    found = meaning_of(text)
    return found if found is not None else Meaning(f"nsys says: {last_words(text) or 'nothing'}", "")


def last_words(text: str) -> str:
    """The last line that is no progress bar, made safe to show."""
    lines = [_PROGRESS.sub("", part).strip() for line in text.splitlines() for part in line.split("\r")]
    words = [line for line in lines if line and not re.fullmatch(r"\[?\d+/\d+\]?.*", line)]
    return printable(words[-1], 300) if words else ""
