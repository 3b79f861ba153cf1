"""Stands in for the daemon that torch's profiler asks for orders where KINETO_USE_DAEMON is set.

Such a process asks an abstract datagram socket named "dynolog", every 5 s, whether there is something to record. Each
datagram is a header (bytes of the payload, and its type, NUL-padded to 32) and the payload. Who asks is told by the
kernel (SCM_CREDENTIALS), not by what it says.

Answered is the first question of each process that is to record, and nothing else: a process that has tried to ask for
10 s in vain (there was no daemon) counts its last attempt as failed even where it came through, and reads the answer
when it has asked the next time. One answer more, and it would be one answer behind for ever. The name must be held
until then.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

NAME = "dynolog"
#: Between two questions of a process, seconds.
ASKS_EVERY_S = 5.0
#: Of torch, before a start that is given: its buffers are made.
WARM_UP_S = 1
_HEADER = struct.Struct("<Q32s")
_REQUEST = struct.Struct("<iiq")
_CREDENTIALS = struct.Struct("3i")
_QUESTION = b"req"
_ACTIVITIES = 2
_MOST_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Order:
    """What a process is told to record.

    Args:
        path: of the trace in its own file system, ending in ".json"; its PID goes in before that.
        start_s: wall time at which it begins.
        window_s: how long.
        cpu, shapes, memory, stacks: what besides the GPU.
    """

    path: str
    start_s: float
    window_s: float
    cpu: bool = True
    shapes: bool = False
    memory: bool = False
    stacks: bool = False

    def text(self) -> str:
        """As torch's profiler reads it."""
        kinds = "" if self.cpu else "ACTIVITY_TYPES=kernel,gpu_memcpy,gpu_memset,cuda_runtime,cuda_driver\n"
        return (
            f"ACTIVITIES_LOG_FILE={self.path}\n"
            f"ACTIVITIES_DURATION_MSECS={max(1, round(self.window_s * 1000))}\n"
            f"ACTIVITIES_WARMUP_PERIOD_SECS={WARM_UP_S}\n"
            f"PROFILE_START_TIME={int(self.start_s * 1000)}\n"
            f"{kinds}"
            f"PROFILE_REPORT_INPUT_SHAPES={_word(self.shapes)}\n"
            f"PROFILE_PROFILE_MEMORY={_word(self.memory)}\n"
            f"PROFILE_WITH_STACK={_word(self.stacks)}\n"
            "PROFILE_WITH_FLOPS=false\n"
            "PROFILE_WITH_MODULES=false\n"
        )


class Daemon:
    """Answers processes until it is closed.

    Args:
        orders: by PID, each given once. `given` are the PIDs that have got theirs.

    Raises:
        GputopError: another daemon has the name.
    """

    def __init__(self, orders: Mapping[int, Order]) -> None:
        self._orders = dict(orders)
        self.given: set[int] = set()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            # The name ends with a NUL of its own.
            self._socket.bind(f"\0{NAME}\0".encode("ascii"))
        except OSError as error:
            self._socket.close()
            if error.errno == errno.EADDRINUSE:
                raise GputopError("cannot capture", "a dynolog daemon serves on this node", "use its `dyno`") from None
            raise GputopError("cannot capture", error.strerror or str(error)) from error

    def answer(self, wait_s: float) -> None:
        """Answers who has asked, waiting for that at most so long."""
        if not select.select([self._socket], [], [], max(0.0, wait_s))[0]:
            return
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            try:
                data, ancillary, _, sender = self._socket.recvmsg(_MOST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return
            self._one(data, _pid(ancillary), sender)

    def close(self) -> None:
        """Gives the name back."""
        self._socket.close()

    def _one(self, data: bytes, pid: int | None, sender: bytes) -> None:
        if len(data) < _HEADER.size or not sender:
            return
        kind = _HEADER.unpack_from(data)[1].partition(b"\0")[0]
        payload = data[_HEADER.size :]
        if kind != _QUESTION or len(payload) < _REQUEST.size or pid is None or pid in self.given:
            return
        order = self._orders.get(pid)
        wants = _REQUEST.unpack_from(payload)[0]
        if order is not None and wants & _ACTIVITIES and self._send(kind, order.text().encode("utf-8"), sender):
            self.given.add(pid)

    def _send(self, kind: bytes, payload: bytes, to: bytes) -> bool:
        with suppress(OSError):
            self._socket.sendto(_HEADER.pack(len(payload), kind) + payload, to)
            return True
        return False


def served(proc: ProcFs) -> bool:
    """Whether some daemon has the name already, in this network namespace."""
    with suppress(OSError):
        lines = proc.read("net/unix", 16 << 20).splitlines()
        return any(line.rstrip(b"@").endswith(f" @{NAME}".encode("ascii")) for line in lines)
    return False


def same_network(pid: int, proc: ProcFs) -> bool:
    """Whether a process sees the sockets that are made here.

    Raises:
        OSError: it can't be told.
    """
    return proc.link(f"{pid}/ns/net") == proc.link(f"{os.getpid()}/ns/net")


def _pid(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
            return int(_CREDENTIALS.unpack_from(data)[0]) or None
    return None


def _word(value: bool) -> str:
    return "true" if value else "false"
