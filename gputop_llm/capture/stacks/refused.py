"""Why py-spy could not read a process, as cause and way out: from what it said and what the node says."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.model.stacks import Unreadable
from gputop_llm.printable import printable
from gputop_llm.sources.procfs import ProcFs

_CAP_SYS_PTRACE = 19
_ALIVE = "choose one that runs"
_AS_ROOT = "run gputop-llm as root (sudo)"
_MOST_SAID = 200


@dataclass(frozen=True, slots=True)
class Situation:
    """What decides whether a process may be read.

    Args:
        uid: our own; `target_uid` that of the process, None where it is not known.
        ptrace_scope: kernel.yama.ptrace_scope, 0 where there is none.
        capable: whether we have CAP_SYS_PTRACE.
        container: whether we run in a container.
        alive: whether the process is there; `stopped` whether it stands still by a signal or a debugger.
    """

    uid: int
    target_uid: int | None
    ptrace_scope: int
    capable: bool
    container: bool
    alive: bool = True
    stopped: bool = False


def unreadable(said: str, in_time: bool, at: Situation) -> Unreadable:
    """Why, given what py-spy wrote to standard error and whether it ended in time."""
    low = said.lower()
    if not in_time:
        return Unreadable(
            f"nothing was read within the time limit, and the look was given up; {_goes_on(at)}",
            "try again when the node is less busy",
        )
    if not at.alive or "no such process" in low:
        return Unreadable("the process has ended", _ALIVE)
    if "permission denied" in low or "operation not permitted" in low:
        return _by_rights(at)
    if "failed to find python version" in low or "failed to find a python" in low or "not a python" in low:
        return Unreadable(
            "it is no Python process, or its Python can't be told from its memory",
            "choose a process that runs Python",
        )
    if "no such file or directory" in low or "failed to open" in low:
        return Unreadable(
            "the files of its Python interpreter can't be seen from here (deleted, or in the target's own container)",
            "run gputop-llm inside that container",
        )
    first = next((line for line in said.splitlines() if line.strip()), "it said nothing")
    return Unreadable(f"py-spy could not: {printable(first.strip(), _MOST_SAID)}", "try again")


def _goes_on(at: Situation) -> str:
    if not at.alive:
        return "the process has ended meanwhile"
    return "the process is stopped, not by this look" if at.stopped else "the process runs on (looked at afterwards)"


def _by_rights(at: Situation) -> Unreadable:
    if at.uid == 0 and not at.capable:
        if at.container:
            return Unreadable(
                "this is root without the capability SYS_PTRACE, as in a container",
                "start the container with --cap-add=SYS_PTRACE",
            )
        return Unreadable("this is root without the capability SYS_PTRACE", "run gputop-llm with all rights of root")
    if at.target_uid is not None and at.target_uid != at.uid and not at.capable:
        return Unreadable("it belongs to another user", _AS_ROOT)
    if at.ptrace_scope == 3:
        return Unreadable("the kernel forbids it until the next boot (kernel.yama.ptrace_scope is 3)")
    if at.ptrace_scope > 0 and not at.capable:
        return Unreadable(
            f"the kernel lets only root read other processes (kernel.yama.ptrace_scope is {at.ptrace_scope})",
            f"{_AS_ROOT}, or: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if not at.capable:
        return Unreadable("it has rights that this user has not, or may not be dumped", _AS_ROOT)
    return Unreadable(
        "the kernel does not allow it: a security module, or a seccomp filter around gputop-llm",
        "run gputop-llm outside of the container, or start that with --security-opt seccomp=unconfined",
    )


def zombie(pid: int, proc: ProcFs | None = None) -> Unreadable | None:
    """Why there is nothing to read of a process that has ended and is still listed; None of any other."""
    try:
        stat = (proc or ProcFs()).stat(pid)
    except (OSError, ValueError):
        return None
    if stat.state not in ("Z", "X"):
        return None
    return Unreadable(f"the process has ended, a zombie that its parent {stat.ppid} has not collected", _ALIVE)


def situation(pid: int, proc: ProcFs | None = None) -> Situation:
    """How things stand between us and a process."""
    proc = proc or ProcFs()
    target_uid, alive, stopped = None, True, False
    try:
        fields = proc.status(pid).get("Uid", "").split()
        target_uid = int(fields[1]) if len(fields) > 1 else None
        state = proc.stat(pid).state
        alive, stopped = state not in ("Z", "X"), state in ("T", "t")
    except (OSError, ValueError):
        alive = False
    scope, capable = 0, False
    with suppress(OSError, ValueError):
        scope = int(proc.read("sys/kernel/yama/ptrace_scope"))
    with suppress(OSError, ValueError, KeyError):
        capable = bool(int(proc.status(os.getpid())["CapEff"], 16) >> _CAP_SYS_PTRACE & 1)
    return Situation(os.geteuid(), target_uid, scope, capable, _in_container(), alive, stopped)


def _in_container() -> bool:
    return os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv")
