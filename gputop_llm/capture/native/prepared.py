"""The socket of a client that CUDA loaded itself (`gputop-llm run`)."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.sources.rootfs import RootFs

_PEER = struct.Struct("3i")
_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class PreparedChannel:
    """A connection to a prepared process; both descriptors are the caller's to close.

    `commands` and `records` are two descriptors of one socket.
    """

    commands: int
    records: int


def connect_prepared(pid: int, start_ticks: int) -> PreparedChannel | None:
    """Connects to the client in a process that was started by `gputop-llm run`; None where there is none.

    The socket is looked for in the places where the client makes it (client.c), below the process's own root, and must
    be served by that very process.

    Args:
        pid: the process, as this one sees it.
        start_ticks: its start time (field 22 of /proc/PID/stat).

    Raises:
        GputopError: there is a socket and it can't be used, or it can't be told whether there is one.
    """
    found = _find(pid, start_ticks)
    if found is None:
        return None
    path, pointer = found
    try:
        return _connect(pid, start_ticks, path, pointer)
    finally:
        os.close(pointer)


def is_prepared(pid: int, start_ticks: int) -> bool:
    """Whether a process has made the socket that `connect_prepared` connects to. Nothing is done to the process.

    Raises:
        GputopError: it can't be told.
    """
    found = _find(pid, start_ticks)
    if found is None:
        return False
    os.close(found[1])
    return True


def _find(pid: int, start_ticks: int) -> tuple[str, int] | None:
    """The socket's path as the process has it, and a descriptor that refers to it (O_PATH)."""
    denied: PermissionError | None = None
    try:
        with RootFs(f"/proc/{pid}/root") as root:
            for path in _places(pid, start_ticks):
                try:
                    return path, root.point_at(path)
                except PermissionError as error:
                    denied = error
                except OSError:
                    continue
    except PermissionError as error:
        denied = error
    except OSError:
        return None  # the process is gone
    if denied is not None:
        raise GputopError(
            f"can't look for a client in process {pid}",
            "its files can't be read (permission denied)",
            "use the user of that process, or root",
        ) from denied
    return None


def _places(pid: int, start_ticks: int) -> Iterator[str]:
    proc = ProcFs()
    status = proc.status(pid)
    # As the process sees itself: the innermost PID namespace, its own user namespace aside.
    name = f"{status.get('NSpid', str(pid)).split()[-1]}-{start_ticks}.sock"
    runtime = ""
    with suppress(OSError):
        runtime = proc.environ(pid).get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        yield f"{runtime}/gputop-llm/{name}"
    yield f"/tmp/gputop-llm-{_uid_within(proc, pid, int(status['Uid'].split()[1]))}/{name}"


def _uid_within(proc: ProcFs, pid: int, uid: int) -> int:
    """A user ID as the process's user namespace has it."""
    for line in proc.read(f"{pid}/uid_map").splitlines():
        within, outside, count = map(int, line.split())
        if outside <= uid < outside + count:
            return within + uid - outside
    return uid


def _connect(pid: int, start_ticks: int, path: str, pointer: int) -> PreparedChannel:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        try:
            # By the descriptor: what the path leads to can't be exchanged any more.
            connection.connect(f"/proc/self/fd/{pointer}")
            peer, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            start = ProcFs().stat(pid).start_ticks
        except OSError as error:
            raise GputopError(
                f"can't speak to the client in process {pid}",
                f"{path}: {(error.strerror or str(error)).lower()}",
                "use the user of that process, or root",
            ) from error
        if peer != pid or start != start_ticks:
            raise GputopError(
                f"can't speak to the client in process {pid}",
                f"{path} is served by another process ({peer})",
                "remove that file",
            )
        connection.settimeout(None)
        return PreparedChannel(os.dup(connection.fileno()), os.dup(connection.fileno()))
