"""The simulator's own process: `python -m gputop_llm.demo.server --scenario healthy --seed 7 --gpus 1 --engines 1`.

It serves each engine's `/metrics`, `/version` and `/health` on a port of its own and the node's
`/node` on one more, all on 127.0.0.1, and says the ports in one JSON line on stdout. It ends
when its stdin does, so that it never outlives the monitor that started it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from gputop_llm import without_tls
from gputop_llm.demo.identity import ENGINE_VERSION
from gputop_llm.demo.node import PageAnswer, SimulatedNode
from gputop_llm.demo.scenarios import scenario
from gputop_llm.demo.wire import encode
from gputop_llm.errors import UsageError

without_tls.load("http.client")
from http.server import BaseHTTPRequestHandler  # noqa: E402

_CATCH_UP_S = 1.0
"""Simulated time is run at least this often, so that no request has much to catch up with."""

METRICS_TYPE = "text/plain; version=1.0.0; charset=utf-8"
JSON_TYPE = "application/json"


class _Page(NamedTuple):
    kind: str
    make: Callable[[], PageAnswer]


_NOT_FOUND = _Page(JSON_TYPE, lambda: PageAnswer(404, '{"detail":"Not Found"}'))


class _Running:
    """The node in real time, one caller at a time. Simulated time passes `rate` times as fast."""

    def __init__(self, node: SimulatedNode, rate: float) -> None:
        self._node = node
        self._rate = rate
        self._lock = threading.Lock()
        self._started_s: float | None = None
        self.ports: list[int] = []

    def catch_up(self) -> None:
        """Runs the node up to now; the first call sets scenario time 0."""
        with self._lock:
            self._advance()

    def metrics(self, number: int) -> PageAnswer:
        with self._lock:
            self._advance()
            return self._node.page(number)

    def reading(self) -> PageAnswer:
        with self._lock:
            self._advance()
            return PageAnswer(200, encode(self._node.reading(self.ports)).decode())

    def _advance(self) -> None:
        if self._started_s is None:
            self._node.advance(0.0)
            self._started_s = time.monotonic()
        self._node.advance((time.monotonic() - self._started_s) * self._rate)


class _Server(socketserver.ThreadingTCPServer):
    """One port with its pages. Not http.server's class: that looks its own name up in DNS."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, pages: dict[str, _Page]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = pages

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, name=f"port-{self.port}", daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "uvicorn"
    sys_version = ""
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path, _NOT_FOUND)
        answer = page.make()
        if not answer.status:
            # What a server that is not up yet looks like, as near as an open port can.
            self.close_connection = True
            return
        time.sleep(answer.delay_s)
        body = answer.text.encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", page.kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stderr may be the terminal of a TUI."""


def main() -> None:
    """Serves until stdin ends."""
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--scenario", required=True)
    flags.add_argument("--seed", type=int, default=7)
    flags.add_argument("--gpus", type=int, default=1)
    flags.add_argument("--engines", type=int, default=1)
    flags.add_argument("--rate", type=float, default=1.0, help="simulated seconds per real second")
    asked = flags.parse_args()
    # Ctrl-C in the terminal is meant for the monitor; this process ends with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        node = SimulatedNode(scenario(asked.scenario), asked.seed, asked.gpus, asked.engines, time.time())
    except UsageError as error:
        flags.error(error.sentence())
    running = _Running(node, asked.rate)
    servers = [_engine_server(running, number) for number in range(node.engines)]
    running.ports = [server.port for server in servers]
    of_node = _Server({"/node": _Page(JSON_TYPE, running.reading)})
    for server in (*servers, of_node):
        server.start()
    # Said before the warm-up is simulated: a request that comes meanwhile just waits for it.
    sys.stdout.write(json.dumps({"node": of_node.port, "engines": running.ports}) + "\n")
    sys.stdout.flush()
    running.catch_up()
    while not _stdin_ended_within(_CATCH_UP_S):
        running.catch_up()


def _engine_server(running: _Running, number: int) -> _Server:
    version = json.dumps({"version": ENGINE_VERSION})
    return _Server(
        {
            "/metrics": _Page(METRICS_TYPE, lambda: running.metrics(number)),
            "/version": _Page(JSON_TYPE, lambda: PageAnswer(200, version)),
            "/health": _Page(JSON_TYPE, lambda: PageAnswer(200)),
        }
    )


def _stdin_ended_within(seconds: float) -> bool:
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready) and not os.read(sys.stdin.fileno(), 4096)


if __name__ == "__main__":
    main()
