"""How to reach a server that has a network of its own: a container's or pod's address that leads there from here.

The node reaches the addresses of its own containers, but the same address may mean another machine here. So
a connection is made, and must be seen to arrive in the network of that very process.
"""

from __future__ import annotations

import re
import socket
import time
from ipaddress import ip_address

from gputop_llm.sources.listen import connected, listening
from gputop_llm.sources.procfs import ProcFs, printable

CONNECT_S = 0.3
ARRIVES_WITHIN_S = 0.05

_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_GLOBAL = "00"


def reachable(proc: ProcFs, pid: int) -> list[tuple[str, int]]:
    """(address, port) at which the process listens, under addresses of its network that may lead there from here.

    Raises:
        PermissionError: the process is another user's.
        OSError: the process is gone.
    """
    own: list[str] | None = None
    places: list[tuple[str, int]] = []
    for host, port in listening(proc, pid):
        address = ip_address(host)
        if address.is_unspecified:
            own = addresses(proc, pid) if own is None else own
            # One socket for all addresses takes both kinds, unless it was made for the old kind alone.
            places += [(one, port) for one in own if address.version == 6 or ":" not in one]
        elif not address.is_loopback:
            places.append((host, port))
    return list(dict.fromkeys(places))


def addresses(proc: ProcFs, pid: int) -> list[str]:
    """The addresses of a process's network but those that only it can use, the old kind first."""
    routes = printable(proc.read(f"{pid}/net/fib_trie"))
    found = [address for address in _LOCAL.findall(routes) if not ip_address(address).is_loopback]
    try:
        rows = [line.split() for line in printable(proc.read(f"{pid}/net/if_inet6")).splitlines()]
    except FileNotFoundError:
        rows = []
    found += [str(ip_address(bytes.fromhex(row[0]))) for row in rows if len(row) > 3 and row[3] == _GLOBAL]
    return list(dict.fromkeys(found))


def leads_to(proc: ProcFs, pid: int, place: tuple[str, int]) -> bool:
    """Whether a connection from here to that address arrives in the network of the process; takes up to 0.4 s."""
    try:
        with socket.create_connection(place, timeout=CONNECT_S) as sock:
            ours = sock.getsockname()[:2]
            until = time.monotonic() + ARRIVES_WITHIN_S
            while not (arrived := connected(proc, pid, place, ours)) and time.monotonic() < until:
                time.sleep(ARRIVES_WITHIN_S / 10)
            return arrived
    except OSError:
        return False
