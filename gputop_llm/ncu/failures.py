"""What ncu says when it fails, each with its cause and what to do.

The first that matches decides: causes stand before what only follows from them, as "No kernels were profiled" does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

_MOST_KERNELS = 8
#: ncu says so when the program has ended by itself.
_RAN_TO_ITS_END = "==PROF== Disconnected from process"
_LISTED_KERNEL = re.compile(r"^\s*\d+\.\s+(\S.*?)\s*$")


@dataclass(frozen=True, slots=True)
class Failure:
    """A way in which ncu fails. `id` is stable; `why` and `todo` are clauses of one sentence."""

    id: str
    why: str
    todo: str

    @property
    def refuses_counters(self) -> bool:
        """Whether it is only the GPU's counters that can't be had."""
        return self.id in _WITHOUT_COUNTERS

    def error(self, what: str) -> GputopError:
        """The failure as the sentence that the user reads. ncu changed nothing in the program that ran."""
        return GputopError(what, self.why, self.todo)


_ROOT = "run ncu as root or with CAP_SYS_ADMIN"
_MEMORY_FULL = "the GPU's memory is full, and ncu must save it before each replay"
_LESS_MEMORY = "ask for fewer metrics (one pass saves nothing), use --replay-mode application, or run the kernel alone"
_FAILURES: tuple[tuple[str, Failure], ...] = tuple(
    (pattern, Failure(id, why, todo))
    for id, pattern, why, todo in (
        (
            "vgpu",
            r"ERR_NVGPUCTRPERM.*vGPU|vGPU.*(not supported|not enabled|profiling)|profiling is not.*vGPU",
            "profiling is not enabled for this virtual GPU",
            "have the host's administrator enable profiling for the vGPU, or profile on a whole GPU",
        ),
        (
            "permission",
            r"ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance Counters",
            "GPU counters are restricted to administrators here",
            f"{_ROOT}; or set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia driver on the host; a container "
            "needs --cap-add=SYS_ADMIN at its start",
        ),
        (
            "confidential-computing",
            r"confidential comput|CC[- ]mode",
            "the GPU runs in confidential-computing mode, which hides its counters",
            "profile on a GPU without that mode, or in its developer-tools mode",
        ),
        (
            "mig-shared",
            r"Failed to access .*shared|shared (resources|metrics).*MIG|MIG.*not (available|supported)",
            "metrics of units that MIG slices share can't be read from one slice",
            "leave those metrics out, or profile on a GPU without MIG",
        ),
        (
            "no-profiler-library",
            r"LibraryNotLoaded|Failed to initialize the profiler",
            "the driver's profiling libraries can't be loaded (sandboxes such as gVisor lack them)",
            "run outside of the sandbox, with the driver's full libraries in the container",
        ),
        (
            "counters-busy",
            r"driver resource was unavailable|[Rr]esource.*(already )?in use",
            "something else holds the GPU's counters: DCGM, another ncu, or a CUPTI profiler",
            "pause it (dcgmi profile --pause) or stop the other profiler, then repeat",
        ),
        (
            "driver-too-old",
            r"Insufficient driver version|driver.*(too old|not supported by)",
            "the driver is too old for this ncu",
            "use an ncu no newer than the CUDA version that nvidia-smi shows",
        ),
        (
            "no-cuda-driver",
            r"failed to connect to the CUDA driver|stub libcuda",
            "there is no CUDA driver, or a stub of it is found first",
            "take the stubs folder out of LD_LIBRARY_PATH, and look whether nvidia-smi works here",
        ),
        (
            "no-memory-for-replay",
            r"Failed to save memory|out of memory",
            _MEMORY_FULL,
            _LESS_MEMORY,
        ),
        (
            "stream-capture",
            r"[Pp]rofiling during a stream capture",
            "the kernel is launched while a CUDA graph is being captured",
            "profile the replay (--graph-profiling node), or start the program without CUDA graphs",
        ),
        (
            "lock-file",
            r"Failed to (open|create|open/create) lock file",
            "another user's ncu left its lock file",
            "set TMPDIR to a folder of your own",
        ),
        (
            "program-ended",
            r"Connection error detected communicating with target|target application terminated before",
            "the program ended or crashed while it was profiled",
            "run it without ncu first; with ncu, ask for fewer metrics",
        ),
        (
            "nothing-to-attach",
            r"No processes found on",
            "no program waits for ncu: it can attach only to one that was started under ncu --mode=launch",
            "run the hot operation alone under ncu instead; a running server can't be attached to",
        ),
        (
            "report-unreadable",
            r"Could not open report file|Failed to load report file",
            "ncu can't read the report file",
            "copy it again, whole; a newer ncu may have written it",
        ),
        (
            "not-executable",
            r"does not exist or is not an executable",
            "the program is not there, or can't be executed",
            "give its path, or make it executable",
        ),
        (
            "bad-regex",
            r"Invalid regex provided",
            "the pattern for the kernel's name is no regular expression",
            "escape what it means literally: 'gemm<' needs no escape, '(' and '[' do",
        ),
        (
            "unknown-option",
            r"unrecogni[sz]ed option|did not match any (section|set|metric)",
            "this ncu does not know an option, or lacks a section",
            "update Nsight Compute; `ncu --list-sections` shows what it has",
        ),
        (
            "program-failed",
            r"application returned an error code",
            "the program failed before it launched a kernel that matches",
            "run it without ncu first",
        ),
        (
            "child-processes",
            r"launched by child processes requires",
            "the kernels are launched by a child process, which ncu did not follow",
            "add --target-processes all",
        ),
        (
            # By itself it only tells that replays are slow: where nothing was profiled it is the cause.
            "no-memory-for-replay",
            r"Backing up device memory in system memory",
            _MEMORY_FULL,
            _LESS_MEMORY,
        ),
        (
            "no-match",
            r"No kernels were profiled",
            "no kernel matched: the name filter or the launch count let none through, or none was launched",
            "look at --kernel-name, --launch-skip and --launch-count; with --profile-from-start off, whether the "
            "program starts the profiler",
        ),
    )
)


#: With these, times and grids can still be had, by who needs no counters.
_WITHOUT_COUNTERS = frozenset(("permission", "vgpu", "confidential-computing", "no-profiler-library", "counters-busy"))


def explain(text: str) -> Failure | None:
    """The cause that ncu's output tells; None if it tells none. Kernels that it lists as available are named."""
    for pattern, failure in _FAILURES:
        if re.search(pattern, text):
            why = failure.why
            if failure.id == "no-match" and (names := _available(text)):
                why = f"{why}; launched were: {', '.join(names)}"
            if failure.id != "program-ended" and _RAN_TO_ITS_END in text:
                why = f"{why} (the program itself ran unharmed to its end)"
            return Failure(failure.id, why, failure.todo)
    return None


def _available(text: str) -> list[str]:
    _, found, after = text.partition("Available Kernels:")
    if not found:
        return []
    names = []
    for line in after.splitlines()[1 : 1 + _MOST_KERNELS]:
        if not (match := _LISTED_KERNEL.match(line)):
            break
        names.append(printable(match[1], 100))
    return names
