"""Reads files as another process sees them, also inside its container, and never a file outside of it.

What lies there belongs to somebody else: a symbolic link may lead anywhere, a file may be a
pipe without a writer, a device, or endless. Paths are resolved below the process's root by the
kernel (openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS), or step by step where that is missing.
A file is first only pointed at (O_PATH, which does nothing to a pipe or a device) and opened if it is a regular one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import deque
from functools import cache
from itertools import islice
from typing import Any

_SYS_OPENAT2 = 437  # the same on every architecture but Alpha
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_IN_ROOT = 0x10
# Old container runtimes answer EPERM to system calls that they don't know.
_NO_OPENAT2 = (errno.ENOSYS, errno.EPERM)
_AGAIN_TIMES = 8
_MAX_LINKS = 40
_MAX_STEPS = 4096
_POINT_AT = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class RootFs:
    """The file tree of a process. Close it after use, or use it as a context.

    Args:
        path: its root: /proc/PID/root, or any directory.
        kernel: resolve paths by openat2 where the kernel has it.

    Raises:
        OSError: the root can't be reached: the process is gone, or somebody else's.
    """

    def __init__(self, path: str, kernel: bool = True) -> None:
        self._kernel = kernel
        self._root = os.open(path, _POINT_AT | os.O_DIRECTORY)

    def __enter__(self) -> RootFs:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the root."""
        os.close(self._root)

    def read(self, path: str, limit_bytes: int) -> bytes:
        """The content of a regular file.

        Raises:
            OSError: there is none, it is no regular file (EINVAL), or larger than the limit (EFBIG).
        """
        pointer = self.point_at(path)
        try:
            found = os.fstat(pointer)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            if found.st_size > limit_bytes:
                raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", path)
            if found.st_size == 0:
                # So say the files of procfs and tracefs; to read some of those takes from them, or waits.
                return b""
            handle = os.open(f"/proc/self/fd/{pointer}", _READ)
        finally:
            os.close(pointer)
        try:
            parts = []
            left = limit_bytes + 1
            while left > 0 and (part := os.read(handle, min(left, 1 << 16))):
                parts.append(part)
                left -= len(part)
        finally:
            os.close(handle)
        if left <= 0:
            raise OSError(errno.EFBIG, f"larger than {limit_bytes} bytes", path)
        return b"".join(parts)

    def names(self, path: str, limit: int) -> list[str]:
        """The names in a directory, at most `limit` of them, in no order.

        Raises:
            OSError: there is no such directory.
        """
        pointer = self.point_at(path)
        try:
            if not stat.S_ISDIR(os.fstat(pointer).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            handle = os.open(f"/proc/self/fd/{pointer}", _READ | os.O_DIRECTORY)
        finally:
            os.close(pointer)
        try:
            with os.scandir(handle) as entries:
                return [entry.name for entry in islice(entries, limit)]
        finally:
            os.close(handle)

    def point_at(self, path: str) -> int:
        """A descriptor (O_PATH) of what lies there, of whatever type; the caller closes it.

        Raises:
            OSError: there is nothing.
        """
        if self._kernel:
            try:
                return _openat2(self._root, path)
            except OSError as error:
                if error.errno not in _NO_OPENAT2:
                    raise
                self._kernel = False
        return _walk(self._root, path)


@cache
def _syscall() -> Any:
    return ctypes.CDLL(None, use_errno=True).syscall


def _openat2(root: int, path: str) -> int:
    how = _OpenHow(_POINT_AT, 0, _RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    for _ in range(_AGAIN_TIMES):
        handle = _syscall()(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if handle >= 0:
            return int(handle)
        # EAGAIN: something on the way was moved in the meantime.
        if ctypes.get_errno() != errno.EAGAIN:
            break
    failure = ctypes.get_errno()
    raise OSError(failure, os.strerror(failure), path)


def _walk(root: int, path: str) -> int:
    """Points at a file below `root`, with every step and symbolic link taken here; ".." at the root stays there."""
    steps = deque(path.split("/"))
    above = [os.dup(root)]
    links = taken = 0
    try:
        while steps:
            step = steps.popleft()
            taken += 1
            if taken > _MAX_STEPS:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
            if step in ("", "."):
                continue
            if step == "..":
                if len(above) > 1:
                    os.close(above.pop())
                continue
            handle = os.open(step, _POINT_AT | os.O_NOFOLLOW, dir_fd=above[-1])
            if not stat.S_ISLNK(os.fstat(handle).st_mode):
                above.append(handle)
                continue
            try:
                target = os.readlink("", dir_fd=handle)
            finally:
                os.close(handle)
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            steps.extendleft(reversed(target.split("/")))
            if target.startswith("/"):
                while len(above) > 1:
                    os.close(above.pop())
        return above.pop()
    finally:
        for handle in above:
            os.close(handle)
