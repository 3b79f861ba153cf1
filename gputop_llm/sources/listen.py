"""TCP ports that a process listens on, and the connections of its network, from /proc alone."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator

from gputop_llm.sources.procfs import ProcFs

_SOCKET = re.compile(r"socket:\[(\d+)\]$")
_ESTABLISHED, _LISTEN = b"01", b"0A"
# A busy server has tens of thousands of connections; its listening sockets stand at the head of the table.
_TABLE_MAX_BYTES = 2 << 20


def listening(proc: ProcFs, pid: int) -> list[tuple[str, int]]:
    """(address, port) of every TCP socket that the process listens on, wildcard addresses first.

    Raises:
        PermissionError: the process is another user's.
        OSError: the process is gone.
    """
    inodes = {found[1].encode() for name in proc.open_files(pid) if (found := _SOCKET.match(name))}
    places = {
        read_address(fields[1].decode("ascii"))
        for fields in _rows(proc, pid)
        if fields[3] == _LISTEN and fields[9] in inodes
    }
    return sorted(places, key=lambda place: (place[0] not in ("0.0.0.0", "::"), place[1]))


def connected(proc: ProcFs, pid: int, place: tuple[str, int], peer: tuple[str, int]) -> bool:
    """Whether the network of the process has a connection between an address of its own and a peer.

    Raises:
        OSError: the process is gone.
    """
    return any(
        fields[3] == _ESTABLISHED
        and read_address(fields[2].decode("ascii")) == peer
        and read_address(fields[1].decode("ascii")) == place
        for fields in _rows(proc, pid)
    )


def _rows(proc: ProcFs, pid: int) -> Iterator[list[bytes]]:
    for table in ("net/tcp", "net/tcp6"):
        try:
            rows = proc.read(f"{pid}/{table}", _TABLE_MAX_BYTES).splitlines()[1:]
        except FileNotFoundError:
            continue
        for row in rows:
            fields = row.split(None, 10)
            if len(fields) > 9:
                yield fields


def read_address(text: str) -> tuple[str, int]:
    """ "0100007F:1F90" of a /proc/net/tcp line as ("127.0.0.1", 8000); words are in the machine's byte order."""
    words, _, port = text.partition(":")
    packed = b"".join(struct.pack("=I", int(words[at : at + 8], 16)) for at in range(0, len(words), 8))
    address = socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
    return address.removeprefix("::ffff:"), int(port, 16)
