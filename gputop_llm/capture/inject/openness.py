"""Whether something may be injected into a process, looked at from outside: nothing is stopped, nothing attached."""

from __future__ import annotations

import os
import platform
import struct
import time
from contextlib import suppress

from gputop_llm.capture.inject.memory import Maps, Memory
from gputop_llm.capture.inject.refused import InjectionRefused, NotBorrowed, unread_filter
from gputop_llm.capture.inject.runtime import closed_by_libc
from gputop_llm.capture.inject.scratch import is_any_there
from gputop_llm.capture.inject.stub import LOADING_NAME
from gputop_llm.capture.inject.waits import LONGEST_LIMIT_S, thread_ids, waiting_threads, what_they_do
from gputop_llm.sources.procfs import ProcFs

_CAP_SYS_PTRACE, _CAP_SYS_ADMIN = 19, 21
_X86_64 = 62
_LOOKS, _BETWEEN_LOOKS_S = 20, 0.01
_AS_ROOT = "run gputop-llm as root (sudo)"
_SHADOW_STACK = "start it with GLIBC_TUNABLES=glibc.cpu.hwcaps=-SHSTK"
_ENDED = ("Z", "X")
_STATES = {
    "Z": ("it has ended and only waits to be reaped", "choose a process that runs"),
    "X": ("it has ended", "choose a process that runs"),
    "T": ("it is stopped", "let it go on first: kill -CONT {pid}"),
    "t": ("a debugger holds it", "let it go on first"),
}


def openness(pid: int) -> InjectionRefused | None:
    """Why nothing can be injected into a process, with the one thing that lifts it; None when it can.

    As `inject` decides it, without touching the process: a thread that only looks safe can still be refused then.
    """
    try:
        with Memory(pid) as memory:
            if (closed := closed_by_process(pid) or _closed_by_filter(pid)) is not None:
                return closed
            maps = Maps.of(pid)
            if (closed := closed_by_libc(maps) or closed_by_loading(pid, maps)) is not None:
                return closed
            for _ in range(_LOOKS):
                if next(waiting_threads(pid, memory), None) is not None:
                    return None
                time.sleep(_BETWEEN_LOOKS_S)
            return no_safe_thread(pid, memory)
    except OSError as error:
        return closed_by_process(pid) or closed_by_rights(pid, error)


def running_since(pid: int) -> int | None:
    """When the process started (field 22 of /proc/PID/stat); None when there is none, or it has ended."""
    with suppress(OSError, ValueError):
        stat = ProcFs().stat(pid)
        return None if stat.state in _ENDED else stat.start_ticks
    return None


def seccomp_mode(tid: int) -> str:
    """The number of a thread's status: "0" none, "1" strict, "2" filters; empty when it can't be told."""
    with suppress(OSError):
        return ProcFs().status(tid).get("Seccomp", "")
    return ""


def no_safe_thread(pid: int, memory: Memory, tried: str = "") -> NotBorrowed:
    """The refusal of a process that has no thread to borrow, saying what its threads do."""
    return NotBorrowed(
        "no thread of it waits in poll, epoll, select or nanosleep "
        f"for at most {LONGEST_LIMIT_S:g} s or without a limit; "
        f"a longer wait, borrowed, would end too late ({tried or what_they_do(pid, memory)})",
        "try again, or start the server by `gputop-llm run -- COMMAND`",
    )


def closed_by_process(pid: int) -> InjectionRefused | None:
    """What of the process itself keeps its threads from being borrowed, as far as its public files say."""
    return _closed_to_borrowing(pid) or closed_by_state(pid)


def closed_by_state(pid: int) -> InjectionRefused | None:
    """What of the process itself is in the way of any injection, as far as its public files say."""
    proc = ProcFs()
    try:
        stat, status = proc.stat(pid), proc.status(pid)
    except (OSError, ValueError):
        return InjectionRefused(f"there is no process {pid}", "choose a process that runs")
    if platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return InjectionRefused(
            f"this is {platform.machine()}, and injection is for x86-64", "start it by `gputop-llm run`"
        )
    if stat.state in _STATES:
        why, todo = _STATES[stat.state]
        return InjectionRefused(why, todo.format(pid=pid))
    if status.get("Seccomp") == "1":
        return InjectionRefused("it has given up all system calls but read and write (seccomp)", "")
    return _closed_by_program(pid)


def closed_by_loading(pid: int, maps: Maps) -> InjectionRefused | None:
    """Whether an earlier injection hangs in the loader: its library is mapped, and not to be called yet."""
    if is_any_there(maps) and any(_thread_name(pid, tid) == LOADING_NAME for tid in thread_ids(pid)):
        return InjectionRefused("an earlier injection is still loading its library there", "wait until it is through")
    return None


def closed_by_rights(pid: int, error: OSError) -> InjectionRefused:
    """Why the kernel does not let us read and write the memory of a process."""
    proc = ProcFs()
    try:
        uids = set(proc.status(pid).get("Uid", "").split())
    except OSError:
        return InjectionRefused(f"there is no process {pid}", "choose a process that runs")
    me = os.geteuid()
    capable = _capable(proc)
    namespace = _user_namespace(pid)
    if namespace and namespace != _user_namespace("self") and not capable:
        return InjectionRefused("it runs in another user namespace", f"{_AS_ROOT} on the host")
    if me == 0 and not capable:
        return InjectionRefused(
            "this is root without CAP_SYS_PTRACE, as in a container", "start the container with --cap-add=SYS_PTRACE"
        )
    if uids != {str(me)} and not capable:
        return InjectionRefused("it belongs to another user", _AS_ROOT)
    scope = _yama()
    if scope == 3:
        return InjectionRefused("the kernel forbids it until the next boot (kernel.yama.ptrace_scope is 3)", "")
    if scope > 0 and not capable:
        return InjectionRefused(
            f"the kernel lets only root do it (kernel.yama.ptrace_scope is {scope})",
            f"{_AS_ROOT}, or: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    if not capable:
        return InjectionRefused(
            "it has rights that this user has not, or may not be dumped (prctl PR_SET_DUMPABLE)", _AS_ROOT
        )
    return NotBorrowed(
        f"the kernel does not allow it ({error.strerror}): a security module or a seccomp filter around gputop-llm",
        "run gputop-llm outside of the container, or start that with --security-opt seccomp=unconfined",
    )


def _closed_to_borrowing(pid: int) -> NotBorrowed | None:
    try:
        status = ProcFs().status(pid)
    except OSError:
        return None  # closed_by_state says why
    if (tracer := status.get("TracerPid", "0")) != "0":
        return NotBorrowed(f"it is being traced already by process {tracer}{_named(tracer)}", f"end process {tracer}")
    if "shstk" in status.get("x86_Thread_features", ""):
        return NotBorrowed("it runs with shadow stacks, which do not let a frame be prepared", _SHADOW_STACK)
    return None


def _closed_by_filter(pid: int) -> InjectionRefused | None:
    """Whether it has a seccomp filter that the kernel won't show us."""
    if seccomp_mode(pid) == "2" and (seccomp_mode(os.getpid()) != "0" or not _capable(ProcFs(), _CAP_SYS_ADMIN)):
        return unread_filter()
    return None


def _closed_by_program(pid: int) -> InjectionRefused | None:
    try:
        with open(f"/proc/{pid}/exe", "rb") as file:
            header = file.read(20)
    except PermissionError:
        return None  # closed_by_rights says why
    except OSError:
        return InjectionRefused("it is a thread of the kernel, or is just ending", "choose a process that runs")
    if header[:4] != b"\x7fELF" or header[4] != 2 or int.from_bytes(header[18:20], "little") != _X86_64:
        return InjectionRefused("it is not a 64-bit x86 program", "run the server's 64-bit build")
    return None


def _named(tracer: str) -> str:
    with suppress(OSError, ValueError):
        return f" ({ProcFs().stat(int(tracer)).comm})"
    return ""


def _thread_name(pid: int, tid: int) -> bytes:
    try:
        return ProcFs().read(f"{pid}/task/{tid}/comm").strip()
    except OSError:
        return b""


def _capable(proc: ProcFs, capability: int = _CAP_SYS_PTRACE) -> bool:
    return bool(int(proc.status(os.getpid())["CapEff"], 16) >> capability & 1)


def _user_namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/user")
    except OSError:
        return ""


def _yama() -> int:
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
