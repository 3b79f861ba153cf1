"""What captures that crashed have left, found and removed; and what stays on purpose.

Only what is this user's own is touched, nothing through a link, and nothing of a capture that still goes on.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gputop_llm.capture.folder import partial_folders
from gputop_llm.capture.inject import mapped_clients
from gputop_llm.capture.inject.remote_script import remove_left as remove_left_scripts
from gputop_llm.capture.kineto.left import remove_left as remove_left_traces
from gputop_llm.capture.undo import steps_in, undo
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store.bundle_write import PARTIAL_BUNDLE

#: A bundle takes its time to be written.
_BUNDLE_S = 900.0
#: Whoever wrote a script that is younger may still be at work.
_YOUNG_SCRIPT_S = 60.0
#: A trace grows while it is written.
_YOUNG_TRACE_S = 120.0
_SOCKET = re.compile(r"\d+-\d+\.sock")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CRASHED = "the capture's own process and its watchdog are gone"

Kind = Literal["capture", "bundle", "socket", "folder", "script", "trace"]


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something a crash has left.

    Args:
        path: where it was found.
        done: "removed", "kept as NAME", or why it is still there.
    """

    kind: Kind
    path: str
    done: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """A process that has the client mapped, as it will until it ends."""

    pid: int
    name: str
    libraries: tuple[str, ...]


def clean_up(folders: Sequence[Path], run_folders: Sequence[Path]) -> tuple[Leftover, ...]:
    """Removes what is left, and keeps what is recorded; returns what was found.

    Args:
        folders: where captures go.
        run_folders: where sockets of prepared servers are.
    """
    found: list[Leftover] = []
    for folder in folders:
        found += _captures(folder)
        found += _bundles(folder)
    for folder in run_folders:
        found += _sockets(folder)
    now_s = time.time()
    found += [
        Leftover("script", path, "removed: whoever wrote it is gone")
        for path in remove_left_scripts(_YOUNG_SCRIPT_S, now_s)
    ]
    found += [
        Leftover("trace", path, "removed: its process was ended while it was written")
        for path in remove_left_traces(_YOUNG_TRACE_S, now_s)
    ]
    return tuple(found)


def run_folders() -> tuple[Path, ...]:
    """Where prepared servers of this user have their sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    inside = (Path(runtime) / "gputop-llm",) if runtime.startswith("/") else ()
    return (*inside, Path(f"/tmp/gputop-llm-{os.geteuid()}"))


def mapped(proc: ProcFs | None = None) -> tuple[Mapped, ...]:
    """All processes that have the client mapped, as far as they can be read."""
    proc = proc or ProcFs()
    found = []
    for pid in sorted(proc.pids()):
        with suppress(OSError, ValueError):
            if libraries := mapped_clients(pid):
                found.append(Mapped(pid, proc.stat(pid).comm, libraries))
    return tuple(found)


def _captures(folder: Path) -> Iterator[Leftover]:
    for partial in partial_folders(folder):
        path = str(partial.path)
        try:
            partial.open()
            if partial.being_made or (claimed := partial.claim()) is False:
                continue
            if claimed is None:
                raise OSError("nobody can tell whether it still goes on, as its file system has no locks")
            failed = undo(steps_in(partial.facts()))
            kept = partial.settle("; ".join((_CRASHED, *failed)))
        except OSError as error:
            yield Leftover("capture", path, f"can't be settled: {(error.strerror or str(error)).lower()}")
            continue
        finally:
            partial.close()
        yield Leftover("capture", path, f"kept as {kept.name}" if kept is not None else "removed: nothing was recorded")


def _bundles(folder: Path) -> Iterator[Leftover]:
    """Half-written bundles: their records are still in the capture's own folder."""
    for path in sorted(folder.glob(f".*{PARTIAL_BUNDLE}")):
        try:
            fd = os.open(path, _DIRECTORY)
        except OSError:
            continue
        try:
            about = os.fstat(fd)
            if about.st_uid != os.geteuid() or time.time() - about.st_mtime < _BUNDLE_S:
                continue
            for name in os.listdir(fd):
                os.unlink(name, dir_fd=fd)
            path.rmdir()
            yield Leftover("bundle", str(path), "removed: its records are in the capture's own folder")
        except OSError as error:
            yield Leftover("bundle", str(path), f"can't be removed: {(error.strerror or str(error)).lower()}")
        finally:
            os.close(fd)


def _sockets(folder: Path) -> Iterator[Leftover]:
    try:
        fd = os.open(folder, _DIRECTORY)
    except OSError:
        return
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return
        names = os.listdir(fd)
        for name in sorted(names):
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if _SOCKET.fullmatch(name) and stat.S_ISSOCK(mode) and not _served(fd, name):
                os.unlink(name, dir_fd=fd)
                names.remove(name)
                yield Leftover("socket", str(folder / name), "removed: nobody listens there")
        if not names:
            folder.rmdir()
            yield Leftover("folder", str(folder), "removed: it was empty")
    except OSError as error:
        yield Leftover("folder", str(folder), f"can't be cleaned: {(error.strerror or str(error)).lower()}")
    finally:
        os.close(fd)


def _served(fd: int, name: str) -> bool:
    """Whether anybody listens. The process that a name tells of may be in another PID namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(f"/proc/self/fd/{fd}/{name}")
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
