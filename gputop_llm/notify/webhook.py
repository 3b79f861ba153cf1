"""A webhook: each event as JSON, POSTed to one address.

The address is a secret as often as not ("https://hooks.example.com/services/T0/B0/XXXX"), and so are headers: of
both nothing but scheme, host and port is ever shown. Nothing is sent anywhere else: redirects are not followed.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from contextlib import suppress
from urllib.parse import SplitResult, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

from gputop_llm import __version__
from gputop_llm.errors import GputopError, UsageError
from gputop_llm.notify.notice import Notice

DEADLINE_S = 10.0
_HEADER = re.compile(r"([A-Za-z0-9!#$%&'*+.^_`|~-]+):[ \t]*([\x20-\x7e]*)")
_FORM = "the first line is the URL, each further one a header (Authorization: Bearer …)"


class Webhook:
    """Posts to one address.

    Args:
        text: the URL on the first line, headers on the others; lines that begin with # don't count.
        origin: where the text came from, for messages.
        ca_file: authorities to trust besides the system's, in PEM.
        deadline_s: for the whole of one POST.

    Raises:
        UsageError: the text can't be used; the message does not show it.
    """

    def __init__(self, text: str, origin: str, ca_file: str | None = None, deadline_s: float = DEADLINE_S) -> None:
        lines = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("#")]
        self._parts = _address(lines[0] if lines else "", origin)
        self._headers = {"User-Agent": f"gputop-llm/{__version__}", "Content-Type": "application/json"}
        for line in lines[1:]:
            header = _HEADER.fullmatch(line)
            if header is None:
                raise UsageError(f"{origin}: the webhook has a line that is no header", todo=_FORM)
            self._headers[header[1]] = header[2]
        self._tls = _tls(ca_file) if self._parts.scheme == "https" else None
        self._deadline_s = deadline_s
        self._connection: HTTPConnection | None = None
        self._over = threading.Event()
        host = self._parts.hostname or ""
        self.name = f"the webhook at {self._parts.scheme}://{f'[{host}]' if ':' in host else host}" + (
            f":{self._parts.port}" if self._parts.port else ""
        )

    def deliver(self, notice: Notice) -> None:
        """Posts the notice.

        Raises:
            GputopError: it was not taken.
        """
        if self._over.is_set():
            return
        late = threading.Event()
        # Timeouts of a socket are per read: a server that drips a byte a second never meets them.
        watchdog = threading.Timer(self._deadline_s, self._give_up, [late])
        watchdog.daemon = True
        watchdog.start()
        try:
            status = self._post(notice.body, late)
        except (OSError, ValueError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
            if self._over.is_set():
                return
            raise GputopError(self._failed(), self._too_late() if late.is_set() else self._reason(error)) from None
        finally:
            watchdog.cancel()
        if late.is_set():
            # The headers were cut off, which nobody minded.
            raise GputopError(self._failed(), self._too_late())
        if 300 <= status < 400:
            raise GputopError(
                self._failed(), f"it redirects (status {status})", "give the address that it redirects to"
            )
        if not 200 <= status < 300:
            raise GputopError(self._failed(), f"it answered with status {status}")

    def abort(self) -> None:
        """Ends the POST that is under way; there is no other one."""
        self._over.set()
        self._give_up(threading.Event())

    def _post(self, body: bytes, late: threading.Event) -> int:
        parts = self._parts
        host = parts.hostname or ""
        if self._tls is None:
            connection = HTTPConnection(host, parts.port, timeout=self._deadline_s)
        else:
            connection = HTTPSConnection(host, parts.port, timeout=self._deadline_s, ssl_context=self._tls)
        self._connection = connection
        try:
            connection.connect()
            # While it connected there was nothing that the watchdog could have shut.
            if late.is_set():
                raise TimeoutError
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("POST", target, body=body, headers=self._headers, preload_content=False)
            # The answer's body is nobody's business.
            return connection.getresponse().status
        finally:
            self._connection = None
            connection.close()

    def _give_up(self, late: threading.Event) -> None:
        late.set()
        sock = getattr(self._connection, "sock", None)
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _failed(self) -> str:
        return f"{self.name} did not take an event"

    def _too_late(self) -> str:
        return f"no answer within {self._deadline_s:g} s"

    def _reason(self, error: Exception) -> str:
        """Why, without the words of libraries, which repeat the address."""
        inner = error
        while isinstance(inner.__cause__, Exception):
            inner = inner.__cause__
        if isinstance(inner, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({inner.verify_message})"
        if isinstance(inner, ssl.SSLError):
            return f"TLS failed ({inner.reason})"
        if isinstance(inner, socket.gaierror):
            return "its host name can't be resolved"
        if isinstance(inner, TimeoutError):
            return self._too_late()
        if isinstance(inner, OSError) and inner.strerror:
            return inner.strerror.lower()
        return f"it gave no proper answer ({type(inner).__name__})"


def _address(url: str, origin: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not (url.isascii() and url.isprintable()) or " " in url:
        raise UsageError(f"{origin}: the webhook's URL can't be used", todo=_FORM)
    if "@" in parts.netloc:
        raise UsageError(f"{origin}: the webhook's URL holds a user or password", todo="give an Authorization header")
    return parts


def _tls(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca_file is not None:
        try:
            context.load_verify_locations(ca_file)
        except (OSError, ssl.SSLError):
            raise UsageError(f"cannot use the CA file {ca_file}", "it holds no certificate") from None
    return context
