"""One question to an engine's own address: bounded in time and size, asked once, no redirects, no proxy."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from gputop_llm import __version__
from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.redact import public_url

_MOST_BYTES = 64 << 10
_PAGES = ("/prometheus/metrics", "/metrics")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back: the status, and the beginning of what it says without control characters."""

    status: int
    text: str

    @property
    def good(self) -> bool:
        """Whether it says that all went well. That alone proves nothing."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class Address:
    """An engine's address.

    Args:
        base: URL that paths are put behind.
        api_key: sent as a Bearer token; None: none may be sent.
        ca_file: PEM file with the only authorities to trust.
    """

    base: str
    api_key: str | None = None
    ca_file: str | None = None

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> Address | None:
        """The one that a worker's order names by its metrics page; None where it names none."""
        url = order.get("url")
        return None if not url else cls(base_of(url), order.get("api_key"), order.get("ca_file"))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None, deadline_s: float) -> Reply:
        """Asks it.

        Raises:
            GputopError: there is no answer within `deadline_s` seconds, or none that is HTTP.
        """
        parts = urlsplit(self.base + path)
        what = f"cannot reach {public_url(self.base + path)}"
        late = threading.Event()
        try:
            connection = self._connection(parts.scheme, parts.hostname or "", parts.port, deadline_s)
        except (OSError, ValueError) as error:
            raise GputopError(what, str(error)) from error

        def give_up() -> None:
            late.set()
            # A timeout counts between two bytes: a server that drips them never meets it.
            with suppress(OSError, AttributeError):
                socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

        watchdog = threading.Timer(deadline_s, give_up)
        watchdog.daemon = True
        watchdog.start()
        try:
            data = None if body is None else json.dumps(body).encode("ascii")
            target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
            connection.request(method, target, body=data, headers=self._headers(data))
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException, ValueError) as error:
            if late.is_set() or isinstance(error, TimeoutError):
                raise GputopError(what, f"no answer within {deadline_s:g} s") from error
            raise GputopError(what, _reason(error), "is the engine up?") from error
        finally:
            watchdog.cancel()
            connection.close()
        if self.api_key:
            text = text.replace(self.api_key, "…")
        return Reply(answer.status, printable(text, 300).strip())

    def _connection(self, scheme: str, host: str, port: int | None, deadline_s: float) -> http.client.HTTPConnection:
        if scheme == "https":
            tls = ssl.create_default_context(cafile=self.ca_file)
            return http.client.HTTPSConnection(host, port, timeout=deadline_s, context=tls)
        return http.client.HTTPConnection(host, port, timeout=deadline_s)

    def _headers(self, data: bytes | None) -> dict[str, str]:
        headers = {"User-Agent": f"gputop-llm/{__version__}", "Accept": "*/*"}
        if data is not None:
            headers["Content-Type"] = "application/json"
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return headers


def base_of(url: str) -> str:
    """An engine's base URL by that of its metrics page."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    path = next((path.removesuffix(page) for page in _PAGES if path.endswith(page)), path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], path, "", ""))


def _reason(error: BaseException) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there (connection refused)"
    if isinstance(error, http.client.RemoteDisconnected):
        return "the server closed the connection without an answer"
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    return "the answer is not HTTP"
