"""One injection into a process at a time, whoever makes it, and from whatever container.

The claim is a lock (flock) on a descriptor of the process itself (pidfd): it needs no file that both sides see, no
common network or PID namespace, and no right. The kernel takes it back when its holder ends. From Linux 6.9 on it is
for that one process; before, all such descriptors are one file, and injections on a node wait for one another.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gputop_llm.capture.inject.refused import InjectionRefused

_PIDFD_OPEN = 434
_AGAIN_S = 0.005
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def claim(pid: int, end: float) -> Iterator[None]:
    """Holds a process for ourselves; where the kernel has no such descriptors (before 5.3), does without.

    Args:
        pid: the process.
        end: `time.monotonic` until which to wait for others.

    Raises:
        InjectionRefused: another injection has it, and goes on.
    """
    # By number: not every Python has os.pidfd_open, which depends on what it was built on.
    handle = int(_libc.syscall(_PIDFD_OPEN, pid, 0))
    if handle < 0:
        yield
        return
    try:
        _lock(handle, end)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, end: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise InjectionRefused(
                    f"another injection is under way in it{_holder(handle)}", "try again when that has ended"
                ) from None
        time.sleep(_AGAIN_S)


def _holder(handle: int) -> str:
    """Which process has the lock, as far as it is seen from here."""
    inode = f":{os.fstat(handle).st_ino}"
    with open("/proc/locks", encoding="ascii", errors="replace") as file:
        lines = [line.split() for line in file]
    # 1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END
    pids = [line[4] for line in lines if line[1:2] == ["FLOCK"] and line[5].endswith(inode)]
    return f", by process {pids[0]}" if pids and int(pids[0]) > 0 else ""
