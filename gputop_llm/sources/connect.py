"""TCP to a host by its name: the lookup and all addresses together within one deadline.

`socket.create_connection`, and with it urllib3, gives each address of a name the whole time anew, and a
lookup takes as long as the name servers make it.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_Addresses = list[tuple[Any, ...]]


class _Lookup:
    """One question to the system's resolver, which nothing can interrupt; asked on a thread that may be left behind."""

    def __init__(self, host: str, port: int) -> None:
        self.place = host, port
        self.wake = threading.Event()
        self.over = False
        self.found: _Addresses = []
        self.error: Exception | None = None
        threading.Thread(target=self._ask, name=f"look up {host}", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.found = socket.getaddrinfo(*self.place, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            self.error = error
        self.over = True
        self.wake.set()


class Dialler:
    """Opens connections, one at a time.

    Args:
        opened: is handed each socket before it is connected, so that another thread can shut it.
        given_up: true once another thread wants no connection any more; it then calls `wake`.
    """

    def __init__(self, opened: Callable[[socket.socket], None], given_up: Callable[[], bool]) -> None:
        self._opened = opened
        self._given_up = given_up
        self._lookup: _Lookup | None = None

    @property
    def looking_up(self) -> bool:
        """True while, or after, a host's addresses are waited for in vain."""
        return self._lookup is not None

    def connect(self, host: str, port: int, deadline: float) -> socket.socket:
        """A connected socket.

        Each address gets an equal share of the time that is left: a silent one leaves time for the next.

        Args:
            deadline: by `time.monotonic()`.

        Raises:
            TimeoutError: there is none by then, or it was given up.
            OSError: the name is not known, or the last address could not be connected to.
            UnicodeError: the name can't be one.
        """
        addresses = self._addresses(host, port, deadline)
        failure: OSError = socket.gaierror(socket.EAI_NONAME, "the name has no address")
        for position, (family, kind, protocol, _, address) in enumerate(addresses):
            left = self._left(deadline) / (len(addresses) - position)
            try:
                return self._connected(socket.socket(family, kind, protocol), address, left)
            except OSError as error:
                failure = error
        raise failure

    def wake(self) -> None:
        """Ends the wait for a lookup; called from another thread."""
        if (lookup := self._lookup) is not None:
            lookup.wake.set()

    def _connected(self, sock: socket.socket, address: Any, timeout_s: float) -> socket.socket:
        try:
            self._opened(sock)
            if self._given_up():
                raise TimeoutError
            sock.settimeout(timeout_s)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect(address)
        except BaseException:
            sock.close()
            raise
        return sock

    def _addresses(self, host: str, port: int, deadline: float) -> _Addresses:
        with suppress(OSError, UnicodeError):
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
            self._lookup = None
            return found
        lookup = self._lookup
        if lookup is None or lookup.place != (host, port):
            lookup = self._lookup = _Lookup(host, port)
        # One that was left behind is waited for again: a resolver that hangs is not asked twice.
        lookup.wake.clear()
        left = self._left(deadline)
        if not lookup.over and not (lookup.wake.wait(left) and lookup.over):
            raise TimeoutError
        self._lookup = None
        if lookup.error is not None:
            raise lookup.error
        return lookup.found

    def _left(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0 or self._given_up():
            raise TimeoutError
        return left
