"""A real HTTP server on loopback whose behaviour each test scripts.

    with HttpServer({"/metrics": page("vllm:num_requests_running 3\\n")}) as server:
        MetricsSource(server.url).poll()

A behaviour is a function of one `Exchange`; it writes bytes and may do so as badly as it likes.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import ssl
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

TLS_DIR = Path(__file__).parent / "tls"
CA_FILE = str(TLS_DIR / "ca.pem")
CLASSIC = "text/plain; version=0.0.4; charset=utf-8"


def tls_context() -> ssl.SSLContext:
    """For a server named localhost or 127.0.0.1, whose only authority is `CA_FILE`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS_DIR / "server.pem")
    return context


@dataclass
class Exchange:
    """One request, and the way to answer it. `keep` says whether the connection lives on."""

    path: str
    headers: dict[str, str]
    connection: socket.socket
    over: threading.Event
    keep: bool = True
    sent: int = field(default=0)

    def send(self, data: bytes) -> None:
        self.connection.sendall(data)
        self.sent += len(data)

    def reply(self, body: bytes | str = b"", status: int = 200, headers: dict[str, str] | None = None) -> None:
        """A whole, well-formed answer."""
        raw = body.encode() if isinstance(body, str) else body
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(raw)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)

    def wait(self, seconds: float) -> bool:
        """Waits, but not beyond the end of the test; True when the test is over."""
        return self.over.wait(seconds)


Behaviour = Callable[[Exchange], None]


def page(text: str | bytes, status: int = 200, content_type: str = CLASSIC, **headers: str) -> Behaviour:
    """Answers with this text."""
    return lambda exchange: exchange.reply(text, status, {"Content-Type": content_type, **headers})


def compressed(text: str, encoding: str) -> Behaviour:
    """Answers compressed ("gzip" or "deflate"), whether or not that was asked for."""
    body = gzip.compress(text.encode()) if encoding == "gzip" else zlib.compress(text.encode())
    return lambda exchange: exchange.reply(body, 200, {"Content-Type": CLASSIC, "Content-Encoding": encoding})


def as_json(value: object) -> Behaviour:
    return page(json.dumps(value), content_type="application/json")


def redirect(location: str, status: int = 307) -> Behaviour:
    return lambda exchange: exchange.reply(b"", status, {"Location": location})


def hang(exchange: Exchange) -> None:
    """Takes the request and never answers."""
    exchange.wait(60)
    exchange.keep = False


def drip(head: bytes, slow: bytes, every_s: float = 0.05) -> Behaviour:
    """Sends `head` at once, then `slow` byte by byte."""

    def behave(exchange: Exchange) -> None:
        exchange.keep = False
        exchange.send(head)
        for byte in slow:
            if exchange.wait(every_s):
                return
            exchange.send(bytes([byte]))

    return behave


def raw(data: bytes) -> Behaviour:
    """Sends these bytes and hangs up."""

    def behave(exchange: Exchange) -> None:
        exchange.keep = False
        exchange.send(data)

    return behave


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One behaviour per request; the last one stays."""
    left = list(behaviours)

    def behave(exchange: Exchange) -> None:
        (left.pop(0) if len(left) > 1 else left[0])(exchange)

    return behave


class HttpServer:
    """Listens on a port of its own from construction to the end of the `with` block.

    Args:
        behaviours: by path without query; other paths answer 404.
        tls: serve https with this context.

    `requests` lists what was asked, in order; `connections` counts accepted connections.
    """

    def __init__(
        self, behaviours: dict[str, Behaviour], *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.behaviours = behaviours
        self.requests: list[Exchange] = []
        self.connections = 0
        self._tls = tls
        self._over = threading.Event()
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self.url = f"{'https' if tls else 'http'}://{self.host}:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> HttpServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops listening and cuts every connection, as a killed server does."""
        self._over.set()
        # A shut listener wakes its accept(); closing alone would leave it waiting.
        _cut(self._listener)
        self.drop_connections()
        self._thread.join(5)

    def drop_connections(self) -> None:
        """Cuts every open connection and listens on."""
        with self._lock:
            connections, self._open = self._open, []
        for connection in connections:
            _cut(connection)

    def asked(self, path: str) -> list[Exchange]:
        """The requests for one path."""
        return [exchange for exchange in self.requests if exchange.path == path]

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # A client that hangs up, or that does not trust the certificate, is no failure of the server.
        with contextlib.suppress(OSError):
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            with self._lock:
                self._open.append(connection)
            with connection, connection.makefile("rb") as stream:
                while not self._over.is_set() and self._answer(connection, stream):
                    pass

    def _answer(self, connection: socket.socket, stream) -> bool:
        request = stream.readline().split()
        if len(request) < 2:
            return False
        headers = {}
        while line := stream.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        target = request[1].decode("latin-1")
        exchange = Exchange(target, headers, connection, self._over)
        self.requests.append(exchange)
        self.behaviours.get(target.partition("?")[0], page("not found", 404))(exchange)
        return exchange.keep


def _cut(sock: socket.socket) -> None:
    for end in (lambda: sock.shutdown(socket.SHUT_RDWR), sock.close):
        with contextlib.suppress(OSError):
            end()
