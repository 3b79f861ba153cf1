"""What an engine's profiler writes, found in the engine's own file system, waited for, copied out and removed.

The folder may be anybody's: nothing is followed out of the engine's own tree, only plain files are taken, and only
files that this window has named are removed. A folder of the window's own must be the engine's user's, and no link.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.capture.endpoint.kinds import Endpoint
from gputop_llm.sources.rootfs import RootFs

_MOST_NAMES = 10_000
_TRACE = re.compile(r"\.trace\.json(\.gz)?$|\.json\.gz$|_\d+\.json$")
#: What engines write beside traces: memory snapshots.
_WRITTEN = re.compile(_TRACE.pattern + r"|-memory\.pickle$|\.txt$")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Found:
    """A trace: its file's name, bytes, and the rank in its name (None: none)."""

    name: str
    bytes: int
    rank: int | None


class Traces:
    """The traces of one window.

    Args:
        pid: a process of the engine.
        endpoint: of the window.
        new_only: leave out what is there already.
    """

    def __init__(self, pid: int, endpoint: Endpoint, new_only: bool = True) -> None:
        self._pid = pid
        self._endpoint = endpoint
        self._before = frozenset(self._names() if new_only else ())

    def found(self) -> tuple[Found, ...]:
        """The ranks' traces so far, by rank and name; they may still grow."""
        endpoint, found = self._endpoint, []
        folder = self._open()
        if folder is None:
            return ()
        try:
            for name in self._ours(os.listdir(folder)):
                if not _TRACE.search(name) or (endpoint.not_a_rank and endpoint.not_a_rank.search(name)):
                    continue
                with suppress(OSError):
                    about = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(about.st_mode):
                        rank = endpoint.rank.search(name)
                        found.append(Found(name, about.st_size, int(rank[1]) if rank and len(rank[1]) < 6 else None))
        finally:
            os.close(folder)
        return tuple(sorted(found, key=lambda one: (one.rank is None, one.rank or 0, one.name)))

    def open(self, name: str) -> int:
        """A descriptor to read one of them.

        Raises:
            OSError: it is gone, or no plain file any more.
        """
        folder = self._open()
        if folder is None:
            raise FileNotFoundError(name)
        try:
            fd = os.open(name, _READ, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(f"{name} is no plain file")
        return fd

    def remove(self) -> tuple[str, ...]:
        """Removes this window's files where they can be told from all others; names what is left of them."""
        endpoint, folder = self._endpoint, self._open()
        if folder is None:
            return ()
        left = []
        try:
            for name in self._ours(os.listdir(folder)):
                try:
                    if not (endpoint.tag or (endpoint.owned and _WRITTEN.search(name))):
                        raise PermissionError
                    os.unlink(name, dir_fd=folder)
                except OSError:
                    left.append(name)
        finally:
            os.close(folder)
        if endpoint.owned and not left:
            self._remove_folder()
        return tuple(sorted(left))

    def _ours(self, names: list[str]) -> list[str]:
        tag = self._endpoint.tag
        return [name for name in names if name.startswith(tag) and name not in self._before]

    def _names(self) -> list[str]:
        try:
            with RootFs(f"/proc/{self._pid}/root") as root:
                return root.names(self._endpoint.folder, _MOST_NAMES)
        except OSError:
            return []

    def _open(self) -> int | None:
        """The folder, opened below the engine's root; None where it isn't there, or not what it should be."""
        try:
            if not self._endpoint.owned:
                return self._below_root(self._endpoint.folder)
            above, name = os.path.split(self._endpoint.folder)
            parent = self._below_root(above)
            try:
                # Its name is the window's own; whoever puts a link there wants something of ours elsewhere.
                folder = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            finally:
                os.close(parent)
            if os.fstat(folder).st_uid != os.stat(f"/proc/{self._pid}").st_uid:
                os.close(folder)
                return None
        except OSError:
            return None
        return folder

    def _below_root(self, path: str) -> int:
        with RootFs(f"/proc/{self._pid}/root") as root:
            pointer = root.point_at(path)
        try:
            return os.open(f"/proc/self/fd/{pointer}", _DIRECTORY)
        finally:
            os.close(pointer)

    def _remove_folder(self) -> None:
        above, name = os.path.split(self._endpoint.folder)
        with suppress(OSError):
            parent = self._below_root(above)
            try:
                os.rmdir(name, dir_fd=parent)
            finally:
                os.close(parent)
