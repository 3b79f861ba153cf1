"""One capture per node at a time.

The lock is the name of an abstract Unix socket: the kernel gives it to one process and takes it back when that process
ends, however it ends. There is no file that a user could plant, replace by a link or leave behind. Who asks while it is
held is told by whom: PID and user as the kernel knows them (SO_PEERCRED), the rest as the holder says it.

Abstract names belong to a network namespace: a capture from within a container with a network of its own isn't seen.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.sources.owner import user_name
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.units import uptime

NAME = "gputop-llm/capture"
_PEER = struct.Struct("iII")
_MOST_BYTES = 2048
_ASK_WITHIN_S = 1.0
_ANSWER_WITHIN_S = 0.2
_MOST_UNIX_BYTES = 16 << 20
_MOST_KILLED = 8


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the lock: `pid` is None where it can't be seen from here; what they say of themselves may be absent."""

    pid: int | None
    user: str
    since_s: float | None = None
    target: str | None = None

    def words(self, now_s: float) -> str:
        """As a clause: "a capture of vllm llama-8b (pid 4711) by alice (pid 99) runs since 3 s"."""
        what = f" of {self.target}" if self.target else ""
        who = f"{self.user} (pid {self.pid})" if self.pid is not None else f"{self.user} (in another container)"
        age = f" for {uptime(max(0.0, now_s - self.since_s))}" if self.since_s is not None else ""
        return f"a capture{what} by {who} has been running{age}" if age else f"a capture{what} by {who} is running"


class LockTaken(GputopError):
    """Somebody else captures on this node."""


class Lock:
    """Holds the node's lock until `release`, or until the process ends.

    Args:
        target: what is captured, for whoever is refused.
        name: of the lock, for tests.

    Raises:
        LockTaken: it is held.
    """

    def __init__(self, target: str, name: str = NAME) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.bind(f"\0{name}")
        except OSError as error:
            self._socket.close()
            if error.errno != errno.EADDRINUSE:
                raise GputopError("cannot take the node's capture lock", error.strerror or str(error)) from error
            holder = held_by(name)
            raise LockTaken(
                "cannot capture now",
                holder.words(time.time()) if holder else "another capture has the node's lock",
                f"try again when it has ended{_or_end(name)}",
            ) from None
        # What SO_PEERCRED tells of us is from this moment.
        self._socket.listen(16)
        self._says = json.dumps({"since_s": time.time(), "target": printable(target, 200)}).encode("ascii")
        self._answering = threading.Thread(target=self._answer, name="lock", daemon=True)
        self._answering.start()

    def release(self) -> None:
        """Lets go of it. Safe to call twice."""
        # Closing alone would not wake the thread that waits in accept.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        # As long as it is still within accept, the name is taken.
        self._answering.join(2 * _ANSWER_WITHIN_S)

    def _answer(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:
                return
            # The other side may not read, or not leave.
            with suppress(OSError), asker:
                asker.settimeout(_ANSWER_WITHIN_S)
                asker.sendall(self._says)


def held_by(name: str = NAME) -> Holder | None:
    """Who holds the lock; None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(_ASK_WITHIN_S)
        try:
            asking.connect(f"\0{name}")
            pid, uid, _ = _PEER.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        except OSError as error:
            # Bound and not listening yet, or too many that ask: held all the same.
            return None if error.errno == errno.ECONNREFUSED else Holder(None, "another user")
        said = b""
        until = time.monotonic() + _ASK_WITHIN_S
        with suppress(OSError):
            while time.monotonic() < until and len(said) < _MOST_BYTES and (more := asking.recv(_MOST_BYTES)):
                said += more
    return _holder(pid, uid, said)


def _or_end(name: str) -> str:
    """What to do about somebody who only keeps the name: nothing that they say can be trusted, whose socket it is can.

    Names processes of others than this user only, as far as they can be seen.
    """
    proc = ProcFs()
    try:
        lines = proc.read("net/unix", _MOST_UNIX_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    sockets = {f"socket:[{row[6]}]" for line in lines if (row := line.split(None, 7))[7:] == [f"@{name}"]}
    found = []
    for pid in proc.pids():
        with suppress(OSError, ValueError, KeyError):
            theirs = int(proc.status(pid)["Uid"].split()[1]) != os.geteuid()
            if theirs and not sockets.isdisjoint(proc.open_files(pid)):
                found.append(str(pid))
    return f"; if it is no capture: kill {' '.join(sorted(found, key=int)[:_MOST_KILLED])}" if found else ""


def _holder(pid: int, uid: int, said: bytes) -> Holder:
    since_s = target = None
    # Anybody may have bound the name: what is said is only shown.
    with suppress(ValueError, RecursionError):
        words = json.loads(said)
        if isinstance(words, dict):
            told_s, told = words.get("since_s"), words.get("target")
            since_s = float(told_s) if isinstance(told_s, (int, float)) and 0 < told_s < 1e11 else None
            target = printable(told, 200) if isinstance(told, str) else None
    return Holder(pid or None, user_name(uid) if uid != os.getuid() else "you", since_s, target)
