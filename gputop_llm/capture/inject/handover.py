"""The descriptors of our thread in a target, opened from outside: two pipes, and the file that the library goes into.

A target may have put anything under their numbers meanwhile: what is opened is looked at before a byte goes into it.
"""

from __future__ import annotations

import fcntl
import os
import stat

from gputop_llm.capture.inject.refused import InjectionRefused

# Python before 3.13 has no names for all of these (include/uapi/linux/fcntl.h).
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8


def open_pipe(pid: int, number: int, flag: int) -> int:
    """Opens one end (os.O_RDONLY or os.O_WRONLY) of a pipe of a process; reads and writes may block.

    Raises:
        InjectionRefused: there is no pipe.
    """
    handle = _open(pid, number, flag)
    if not stat.S_ISFIFO(os.fstat(handle).st_mode):
        os.close(handle)
        raise InjectionRefused("something in the target has replaced the client's pipe", "try again")
    os.set_blocking(handle, True)
    return handle


def write_library(pid: int, number: int, library: bytes) -> None:
    """Fills the empty memfd of our thread, which nobody can change afterwards.

    Raises:
        InjectionRefused: there is no such file.
    """
    handle = _open(pid, number, os.O_RDWR)
    try:
        seals = _seals(handle)
        if seals is None or seals & (_SEAL_SEAL | _SEAL_WRITE) or os.fstat(handle).st_size:
            raise InjectionRefused("something in the target has replaced the client's file", "try again")
        rest = memoryview(library)
        while rest:
            rest = rest[os.write(handle, rest) :]
        fcntl.fcntl(handle, _ADD_SEALS, _SEAL_SEAL | _SEAL_SHRINK | _SEAL_GROW | _SEAL_WRITE)
    except OSError as error:
        raise InjectionRefused(
            f"the library can't be written into the target's memory ({error.strerror})", ""
        ) from error
    finally:
        os.close(handle)


def _open(pid: int, number: int, flag: int) -> int:
    try:
        return os.open(f"/proc/{pid}/fd/{number}", flag | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise InjectionRefused(
            f"a descriptor of the target can't be opened ({error.strerror})", "run it as root"
        ) from error


def _seals(handle: int) -> int | None:
    """The seals of a memfd; None where the file can have none. One on a tmpfs has F_SEAL_SEAL."""
    try:
        return fcntl.fcntl(handle, _GET_SEALS)
    except OSError:
        return None
