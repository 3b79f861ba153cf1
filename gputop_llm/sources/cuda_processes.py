"""Processes on the GPUs that belong to no known engine, seen from here or not."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from gputop_llm.model import Target, TargetProcess
from gputop_llm.redact_argv import redact_argv
from gputop_llm.sources.container import container_of
from gputop_llm.sources.gpu_map import GpuUse
from gputop_llm.sources.namespaces import Visibility, container_pid
from gputop_llm.sources.owner import user_of
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.procfs import ProcFs

HOST_PID = "host PID, not visible in this container"
HIDDEN_USER = "another user (hidden)"

_HOST_PID_NOTE = (
    "NVML names PIDs of the host, which can't be seen in this container; "
    "share the host's PIDs to see them (docker run --pid=host, hostPID: true in Kubernetes)"
)
_HIDEPID_NOTE = (
    "/proc is mounted with hidepid={mode}: other users' processes are hidden, with their command lines, CPU and "
    "memory, and engines among them can't be found; "
    "run as root, or in the group that the mount option gid= names"
)
_DENIED_NOTE = "some processes on the GPUs may not be read by this user; run as root to see what they are"


def cuda_targets(
    proc: ProcFs,
    uses: Mapping[int, GpuUse],
    processes: Mapping[int, Process],
    denied: Collection[int],
    inside: Collection[int],
    seen: Visibility,
    remark: Callable[[Process], str | None],
) -> tuple[list[Target], tuple[str, ...]]:
    """A target for each process that NVML lists and no engine owns, and what the doctor says of them.

    `remark` says what is known of a process that is seen, None if nothing is.
    A PID that should be visible and isn't has ended: NVML's list is a little older than ours.
    """
    targets = []
    hidden_note = _HIDEPID_NOTE.format(mode=seen.hidepid) if seen.hidepid else None
    # Whoever doesn't see PID 1 doesn't see other users' engines either, whether or not NVML tells of them.
    notes = {hidden_note} if hidden_note and 1 not in processes else set()
    for pid, use in sorted(uses.items()):
        if pid in inside:
            continue
        if pid in processes:
            targets.append(_seen(proc, processes[pid], use, remark(processes[pid])))
        elif pid in denied or (seen.initial_pids and seen.hidepid):
            targets.append(_unseen(pid, use, HIDDEN_USER, "other-user"))
            notes.add(hidden_note or _DENIED_NOTE)
        elif not seen.initial_pids:
            targets.append(_unseen(pid, use, HOST_PID, "pid-namespace"))
            notes.add(_HOST_PID_NOTE)
    return targets, tuple(sorted(notes))


def zombie_note(process: Process, use: GpuUse | None) -> str:
    """Why a zombie can't be watched."""
    text = f"zombie: it has ended, but its parent {process.ppid} has not collected it"
    return text + "; its GPU memory is still held" if use and use.mem_bytes else text


def _seen(proc: ProcFs, process: Process, use: GpuUse, remark: str | None) -> Target:
    zombie = zombie_note(process, use) if process.zombie else None
    argv = redact_argv(process.argv)
    return Target(
        key=f"cuda:{process.pid}:{process.start_ticks}",
        engine="cuda",
        root_pid=process.pid,
        argv=argv,
        container=container_of(proc, process.pid),
        user=user_of(proc, process.pid),
        started_s=proc.start_s(process.start_ticks),
        attachable=zombie,
        notes=(remark,) if remark else (),
        processes=(
            TargetProcess(
                pid=process.pid,
                ppid=process.ppid,
                role="other",
                title=" ".join(argv) or process.comm,
                gpus=use.gpus,
                gpus_from=use.source,
                mig_instance=use.mig_instance,
                mem_bytes=use.mem_bytes,
                nvml_pid=process.pid,
                state=process.state,
                start_s=proc.start_s(process.start_ticks),
                note=zombie,
                container_pid=container_pid(proc, process.pid),
            ),
        ),
    )


def _unseen(nvml_pid: int, use: GpuUse, why: str, unseen: str) -> Target:
    return Target(
        key=f"cuda:nvml-{nvml_pid}:0",
        engine="cuda",
        attachable=why,
        processes=(
            TargetProcess(
                pid=None,
                ppid=None,
                role="other",
                title=why,
                gpus=use.gpus,
                gpus_from=use.source,
                mig_instance=use.mig_instance,
                mem_bytes=use.mem_bytes,
                nvml_pid=nvml_pid,
                note=why,
                unseen=unseen,
            ),
        ),
    )
