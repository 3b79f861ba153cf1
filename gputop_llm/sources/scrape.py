"""GET over HTTP(S), kept alive, bounded in time and size, every failure one clear sentence.

One connection of the standard library is driven directly, over a socket of our own: no pool and no retries,
because a poll has one deadline for everything, and no proxies from the environment, because an engine is near (and
urllib3, which has all of that, takes 15 ms and 2.3 MB of a monitor's start). Credentials go to the address that was
asked for and nowhere else.
"""

from __future__ import annotations

import http.client
import select
import socket
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, quote, urljoin, urlsplit, urlunsplit

from gputop_llm import __version__
from gputop_llm.errors import SourceError, UsageError
from gputop_llm.printable import printable
from gputop_llm.redact import public_url
from gputop_llm.sources.connect import Dialler

if TYPE_CHECKING:
    import ssl

MAX_BODY_BYTES = 4 * 1024 * 1024
"""The largest page that is read, unpacked. vLLM's has 50 KB, and ten times that with eight ranks."""

_MAX_HOPS = 3
_CHUNK = 65_536
_ENCODINGS = {"gzip", "x-gzip", "deflate"}
_REDIRECTS = {301, 302, 303, 307, 308}
_KEPT_IN_PATHS = "/?%:@!$&'()*+,;=~[]"
# vLLM's several API servers keep their metrics in files (vllm-project/vllm issue 49983).
_SEE_LOG_500 = "see the server's own log; is its PROMETHEUS_MULTIPROC_DIR, if it has one, on a local disk?"
_GIVE_KEY = "give its API key in GPUTOP_LLM_API_KEY or in a file named by --api-key-file"


class _Compressed(Exception):
    """The body is compressed in a way that was not asked for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A 2xx answer; `url` is where it was found after redirects."""

    body: bytes
    content_type: str
    url: str


class HttpReader:
    """Reads pages of one server over one kept-alive connection; not for several threads, `abort` aside.

    Args:
        api_key: sent as a Bearer token.
        ca_file: PEM file with the only authorities to trust; the system's by default.

    Raises:
        UsageError: the key or the CA file can't be used.
    """

    def __init__(self, *, api_key: str | None = None, ca_file: str | None = None) -> None:
        if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key.strip()):
            raise UsageError("cannot use the API key", "it has characters that no header may hold")
        self._api_key = api_key
        self._tls = None if ca_file is None else _tls_context(ca_file)
        self._connection: HTTPConnection | None = None
        self._origin: tuple[str, str, int] | None = None
        # Held apart from the connection, which forgets its socket when the server wants to close.
        self._socket: socket.socket | None = None
        self._dialler = Dialler(self._opened, lambda: self._given_up)
        self._given_up = False
        self._awaited = ""

    def get(self, url: str, deadline_s: float) -> Answer:
        """The page at `url`, all of it within `deadline_s` seconds, redirects included.

        Raises:
            SourceError: there is none, or not in time.
        """
        self._given_up = False
        self._awaited = "connection"
        began = time.monotonic()
        # Timeouts of a socket are per read: a server that drips a byte a second never meets them.
        watchdog = threading.Timer(deadline_s, self.abort)
        watchdog.daemon = True
        watchdog.start()
        try:
            return self._follow(url, began + deadline_s)
        except (OSError, http.client.HTTPException, _Compressed, ValueError, zlib.error) as error:
            late = self._given_up or time.monotonic() - began >= deadline_s
            failure = self._failure(url, *(self._late(deadline_s) if late else _reason(error, self._awaited)))
            self.close()
            raise failure from error
        except SourceError:
            self.close()
            raise
        finally:
            watchdog.cancel()

    def abort(self) -> None:
        """Ends a `get` that is under way in another thread."""
        self._given_up = True
        self._dialler.wake()
        _shut(self._socket)

    def close(self) -> None:
        """Closes the connection; the next `get` opens another."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._socket = self._origin = None

    def _follow(self, start: str, deadline: float) -> Answer:
        target = start
        for _ in range(_MAX_HOPS + 1):
            response, body = self._ask(target, deadline, self._carries_key(start, target))
            if response.status not in _REDIRECTS:
                return Answer(body, response.headers.get("Content-Type", ""), target)
            target = self._next_hop(start, target, response.headers.get("Location"))
        raise self._failure(start, f"it redirects more than {_MAX_HOPS} times")

    def _next_hop(self, start: str, here: str, location: str | None) -> str:
        if not location:
            raise self._failure(start, "it redirects to nowhere")
        try:
            target = urljoin(here, location)
            parts = split_http(target)
        except ValueError:
            raise self._failure(start, "it redirects to an address that is not HTTP") from None
        if self._api_key is not None and not self._carries_key(start, target):
            raise self._failure(
                start,
                f"it redirects to another server ({self.clean(parts.netloc.rpartition('@')[2])}), "
                "which is not given the API key",
                "give the engine's own address",
            )
        return urlunsplit(parts._replace(fragment=""))

    def _carries_key(self, start: str, target: str) -> bool:
        """True where the key may go: the same origin, or the same host with TLS instead of without."""
        if self._api_key is None:
            return False
        asked, given = _origin(urlsplit(start)), _origin(urlsplit(target))
        return asked == given or (asked[0] == "http" and given[0] == "https" and asked[1] == given[1])

    def _ask(self, url: str, deadline: float, with_key: bool) -> tuple[HTTPResponse, bytes]:
        parts = urlsplit(url)
        connection, reused = self._connect(parts, deadline)
        try:
            return self._exchange(connection, url, parts, deadline, with_key)
        except (ConnectionError, http.client.RemoteDisconnected):
            # Servers close idle connections whenever they like; a GET may be asked again.
            if not reused or self._given_up:
                raise
        self.close()
        connection, _ = self._connect(parts, deadline)
        return self._exchange(connection, url, parts, deadline, with_key)

    def _connect(self, parts: SplitResult, deadline: float) -> tuple[HTTPConnection, bool]:
        scheme, host, port = origin = _origin(parts)
        connection = self._connection
        if connection is not None and origin == self._origin and _idle(connection.sock):
            connection.sock.settimeout(_remaining(deadline))
            return connection, True
        self.close()
        self._awaited, self._origin = "connection", origin
        sock = self._dialler.connect(host, port, deadline)
        if scheme == "https":
            sock = self._with_tls(sock, host, deadline)
        connection = HTTPConnection(host, port, timeout=_remaining(deadline))
        connection.sock = sock
        # It must never connect by itself: that would be another deadline, and without our TLS.
        connection.auto_open = 0
        self._connection = connection
        return connection, False

    def _opened(self, sock: socket.socket) -> None:
        self._socket = sock

    def _with_tls(self, sock: socket.socket, host: str, deadline: float) -> socket.socket:
        try:
            if self._tls is None:
                self._tls = _tls_context(None)
            # A scope is no part of an address that a certificate can name, nor is a root's dot of a name.
            name = host.partition("%")[0].rstrip(".")
            secured = self._tls.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        except BaseException:
            sock.close()
            raise
        self._socket = secured
        try:
            if self._given_up:
                raise TimeoutError
            secured.settimeout(_remaining(deadline))
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _exchange(
        self, connection: HTTPConnection, url: str, parts: SplitResult, deadline: float, with_key: bool
    ) -> tuple[HTTPResponse, bytes]:
        headers = {
            "User-Agent": f"gputop-llm/{__version__}",
            "Accept": "text/plain, */*;q=0.5",
            # Compressing costs time on the engine's event loop; what comes compressed anyhow is unpacked.
            "Accept-Encoding": "identity",
        }
        self._awaited = "answer"
        if with_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        path = quote(urlunsplit(("", "", parts.path or "/", parts.query, "")), safe=_KEPT_IN_PATHS)
        connection.request("GET", path, headers=headers)
        connection.sock.settimeout(_remaining(deadline))
        response = connection.getresponse()
        if response.status not in _REDIRECTS and not 200 <= response.status < 300:
            raise self._failure(url, *self._refusal(response.status))
        self._awaited = "complete answer"
        body = bytearray()
        for chunk in _unpacked(response):
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise self._failure(
                    url, f"the page is larger than {MAX_BODY_BYTES // 2**20} MiB and is not read further"
                )
        if self._given_up:
            # A socket that was shut reads like one that ended.
            raise TimeoutError
        return response, bytes(body)

    def _refusal(self, status: int) -> tuple[str, str]:
        if status == HTTPStatus.UNAUTHORIZED:
            if self._api_key is None:
                return "it needs authorisation (401)", _GIVE_KEY
            return "it does not accept the API key (401)", "check the key"
        if status == HTTPStatus.FORBIDDEN:
            return "it refuses to answer (403)", _GIVE_KEY if self._api_key is None else "check the key's rights"
        if status == HTTPStatus.NOT_FOUND:
            return "there is no such page (404)", "check the address, and the server's --root-path"
        if status == HTTPStatus.BAD_REQUEST:
            return "it answers (400 Bad Request)", "a router of llama.cpp needs a model: …/metrics?model=NAME"
        if status == HTTPStatus.NOT_IMPLEMENTED:
            return "its metrics are switched off (501)", "llama-server needs --metrics"
        if status == HTTPStatus.INTERNAL_SERVER_ERROR:
            return "the server failed (500 Internal Server Error)", _SEE_LOG_500
        try:
            phrase = HTTPStatus(status).phrase
        except ValueError:
            phrase = "unknown status"
        kind = "the server failed" if status >= 500 else "it answers"
        return f"{kind} ({status} {phrase})", "see the server's own log" if status >= 500 else ""

    def _late(self, deadline_s: float) -> tuple[str, str]:
        why = f"no {self._awaited} within {deadline_s:g} s"
        if self._awaited == "connection":
            if self._dialler.looking_up:
                return f"its name was not looked up within {deadline_s:g} s", "does the name server answer?"
            tls = self._origin is not None and self._origin[0] == "https"
            return why, f"is the host up, and does {'the port speak TLS' if tls else 'a firewall let this pass'}?"
        return why, "the server may be overloaded or hung"

    def _failure(self, url: str, why: str, todo: str = "") -> SourceError:
        return SourceError(f"cannot read {self.clean(public_url(url))}", why, todo)

    def clean(self, text: str) -> str:
        """Text from outside without control characters, and without the key, should it be sent back."""
        if self._api_key:
            text = text.replace(self._api_key, "…")
        return printable(text)


def split_http(url: str) -> SplitResult:
    """The parts of an http(s) URL.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError("not an HTTP URL")
    return parts


def _origin(parts: SplitResult) -> tuple[str, str, int]:
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _unpacked(response: HTTPResponse) -> Iterator[bytes]:
    """The body in pieces of at most `_CHUNK` bytes, whatever it was compressed to: a kilobyte may hold gigabytes."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    # This also tells gzip and zlib apart.
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS + 32) if encoding in _ENCODINGS else None
    if unpacker is None and encoding not in ("", "identity"):
        raise _Compressed(encoding)
    while chunk := response.read(_CHUNK):
        if unpacker is None:
            yield chunk
            continue
        while chunk and not unpacker.eof:
            yield unpacker.decompress(chunk, _CHUNK)
            chunk = unpacker.unconsumed_tail
    # What ends before its announced length is no error to the library.
    if response.length or (unpacker is not None and not unpacker.eof):
        raise http.client.IncompleteRead(b"")


def _remaining(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def _idle(sock: socket.socket | None) -> bool:
    """Whether a kept connection is still there: what can be read from it unasked is its end."""
    if sock is None:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def _shut(sock: socket.socket | None) -> None:
    if sock is None:
        return
    # It may be closed already. SSLSocket's own method would take the TLS state from under the reading thread.
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _tls_context(ca_file: str | None) -> ssl.SSLContext:
    # Loads OpenSSL: 5 MB that only https is worth.
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else str(error.strerror)
        raise UsageError(f"cannot use the CA file {ca_file}", why) from error


def _tls_reason(chain: Sequence[BaseException]) -> tuple[str, str] | None:
    """As `_reason`; None when TLS isn't the reason."""
    if "ssl" not in sys.modules:
        return None
    import ssl

    for one in chain:
        if isinstance(one, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({one.verify_message})", "name its authority with --ca-file"
    for one in chain:
        if isinstance(one, ssl.SSLError):
            if one.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return "the port does not speak TLS", "try http://"
            return f"TLS failed ({(one.reason or 'protocol error').replace('_', ' ').lower()})", ""
    return None


def _reason(error: BaseException, awaited: str) -> tuple[str, str]:
    """Why there is no answer, and what to do about it; `awaited` is what should have come next."""
    chain = [error]
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(inner)

    def among(*kinds: type[BaseException]) -> BaseException | None:
        return next((one for one in chain if isinstance(one, kinds)), None)

    if (why := _tls_reason(chain)) is not None:
        return why
    if among(socket.gaierror, UnicodeError, http.client.InvalidURL):
        return "the host's name is not known", "check the address"
    if among(ConnectionRefusedError):
        return "nothing listens there (connection refused)", "is the engine up, and is this its port?"
    if among(http.client.RemoteDisconnected) or (awaited == "answer" and among(ConnectionError)):
        return "the server closed the connection without an answer", "is the engine up, and is this http or https?"
    if among(_Compressed):
        return "the answer is compressed in a way that was not asked for", ""
    if among(zlib.error):
        return "the answer's compression is broken", ""
    if among(http.client.IncompleteRead, ConnectionError):
        return "the answer broke off", "is the engine still up?"
    if among(http.client.HTTPException, ValueError):
        return "the answer is not HTTP", "is this an engine's port, and is it http or https?"
    reason = next((one.strerror for one in chain if isinstance(one, OSError) and one.strerror), None)
    return (reason or type(error).__name__).lower(), ""
