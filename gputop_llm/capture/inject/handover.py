"""The descriptors of our thread in a target, opened from outside: two pipes, and the file that the library goes into.

A target may have put anything under their numbers meanwhile. So each is first only referred to (O_PATH), and looked at;
nothing but a pipe, or a file that lies in no file system, is opened.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable

from gputop_llm.capture.inject.refused import InjectionRefused

# Python before 3.13 has no names for all of these (include/uapi/linux/fcntl.h).
_ADD_SEALS, _GET_SEALS = 1033, 1034
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_WRITE = 1, 2, 4, 8


def open_pipe(pid: int, number: int, flag: int) -> int:
    """Opens one end (os.O_RDONLY or os.O_WRONLY) of a pipe of a process; reads and writes do not block.

    Raises:
        InjectionRefused: there is no pipe.
    """
    return _open(pid, number, flag, lambda found: stat.S_ISFIFO(found.st_mode), "pipe")


def tell(commands: int, word: bytes) -> None:
    """Writes a word to our thread.

    Raises:
        InjectionRefused: the pipe is full, which our thread never makes it, or broken.
    """
    try:
        os.write(commands, word)
    except OSError as error:
        raise InjectionRefused(
            f"the client's pipe in the target takes nothing ({error.strerror})", "try again"
        ) from error


def write_library(pid: int, number: int, library: bytes) -> None:
    """Fills the empty memfd of our thread, which nobody can change afterwards.

    Raises:
        InjectionRefused: there is no such file.
    """
    handle = _open(pid, number, os.O_RDWR, _is_in_memory, "file")
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


def _open(pid: int, number: int, flag: int, is_ours: Callable[[os.stat_result], bool], what: str) -> int:
    try:
        pointer = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        try:
            if not is_ours(os.fstat(pointer)):
                raise InjectionRefused(f"something in the target has replaced the client's {what}", "try again")
            return os.open(f"/proc/self/fd/{pointer}", flag | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(pointer)
    except OSError as error:
        raise InjectionRefused(
            f"a descriptor of the target can't be opened ({error.strerror})", "run it as root"
        ) from error


def _is_in_memory(found: os.stat_result) -> bool:
    """Whether it is on the kernel's own mount of files without a name, as a memfd is."""
    own = os.memfd_create("gputop-llm", os.MFD_CLOEXEC)
    try:
        return stat.S_ISREG(found.st_mode) and found.st_dev == os.fstat(own).st_dev
    finally:
        os.close(own)


def _seals(handle: int) -> int | None:
    """The seals of a memfd; None where the file can have none. One on a tmpfs has F_SEAL_SEAL."""
    try:
        return fcntl.fcntl(handle, _GET_SEALS)
    except OSError:
        return None
