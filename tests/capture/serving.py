"""A target for captures: a process that makes tokens, says so on a metrics page, with a client in Python.

Run as `python serving.py SOCKET BEHAVIOUR`; writes its port as a line. The client listens on SOCKET as the real one
does in a process that was started for it. Behaviours: see `BEHAVIOURS`.
With FAKE_CUPTI in the environment that library is loaded, and each token is a step that it can record; with FAKE_RANK
("DEVICE LATE_US") these are steps of a tensor-parallel rank. With FAKE_CUDA all libraries of that folder are loaded.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, Command

BEHAVIOURS = {
    "good": "records as asked",
    "refuse": "says that it can't",
    "mute": "says nothing at all",
    "flood": "never stops sending, whatever it was allowed",
    "endless": "records on after its time, until it is told to stop",
    "deaf": "records on for ever, and hears no stop",
    "dies": "the process ends in the middle of the window",
    "still": "makes no token from the window's start on",
    "garbage": "sends what is no record",
    "big": "has as much to tell as fits",
}
ROW = b"\x01" * 88


class State:
    tokens = 0
    steps = 0
    still = False
    windows = 0


def make_tokens():
    cupti = None
    if library := os.environ.get("FAKE_CUPTI"):
        ctypes.CDLL(str(Path(library).with_name("libcuda.so.1")))
        cupti = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
    rank = [int(word) for word in os.environ.get("FAKE_RANK", "").split()]
    while True:
        time.sleep(0.01)
        if cupti is not None:
            cupti.fake_rank_steps(*rank) if rank else cupti.fake_steps(0, 1)
        if not State.still:
            State.tokens += 32
            State.steps += 1


class Page(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        labels = '{engine="0",model_name="llama-8b"}'
        text = (
            f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} 32\n"
            f"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{labels} {State.tokens}\n"
            f"# TYPE vllm:prompt_tokens_total counter\nvllm:prompt_tokens_total{labels} 0\n"
        ).encode()
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


def chunk(kind, payload):
    return form.CHUNK_HEADER.pack(kind, len(payload)) + payload


def clocks():
    return (time.monotonic_ns(), time.time_ns(), time.monotonic_ns(), 0)


def serve(peer, behaviour):
    """One window, as the protocol has it."""
    if behaviour == "mute":
        peer.recv(1)
        return
    if behaviour == "garbage":
        peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 64)
        return
    peer.sendall(form.MAGIC)
    if behaviour == "refuse":
        peer.sendall(chunk(Chunk.REFUSED, form.REFUSED.pack(3, 0) + b"no CUPTI is loaded in this process"))
        return
    peer.sendall(chunk(Chunk.HELLO, form.HELLO.pack(form.VERSION, os.getpid(), 7, 130000) + b"/usr/lib/libcupti.so.13"))
    order = b""
    while len(order) < form.COMMAND.size:
        more = peer.recv(form.COMMAND.size - len(order))
        if not more:
            return
        order += more
    magic, command, kinds, start_ns, window_ns, most = form.COMMAND.unpack(order)
    assert (magic, command) == (form.COMMAND_MAGIC, Command.WINDOW)
    time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
    State.windows += 1
    State.still = behaviour == "still"
    peer.sendall(chunk(Chunk.STARTED, form.STARTED.pack(*clocks(), kinds, 0, 1000)))
    began = time.monotonic_ns()
    sent, reason = 0, 0
    rows = ROW * (11_000 if behaviour in ("big", "flood") else 100)
    while True:
        over = time.monotonic_ns() - began >= window_ns
        if behaviour == "dies" and time.monotonic_ns() - began >= window_ns // 2:
            os._exit(0)
        if over and behaviour not in ("endless", "deaf", "flood"):
            break
        if behaviour != "deaf" and stopped(peer):
            reason = 1
            break
        if behaviour != "flood" and sent + len(rows) > most:
            reason = 2
            break
        peer.sendall(chunk(Chunk.KERNELS, rows))
        sent += len(rows)
        if behaviour not in ("big", "flood"):
            time.sleep(0.01)
    State.still = False
    peer.sendall(chunk(Chunk.END, form.END.pack(*clocks(), reason, 0, 0, sent // 88, sent, 1000, 1000)))


def stopped(peer):
    peer.setblocking(False)
    try:
        peer.recv(form.COMMAND.size)
    except BlockingIOError:
        return False
    finally:
        peer.setblocking(True)
    return True


def client(listener, behaviour):
    while True:
        peer, _ = listener.accept()
        with peer:
            try:
                serve(peer, behaviour)
            except OSError:
                State.still = False


def main():
    path, behaviour = sys.argv[1:]
    assert behaviour in BEHAVIOURS
    for library in Path(os.environ["FAKE_CUDA"]).glob("*.so*") if "FAKE_CUDA" in os.environ else ():
        ctypes.CDLL(str(library))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path.replace("PID", f"{os.getpid()}-{start_ticks()}"))
    listener.listen()
    page = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    for work in (make_tokens, lambda: client(listener, behaviour)):
        threading.Thread(target=work, daemon=True).start()
    print(page.server_address[1], flush=True)
    page.serve_forever()


def start_ticks():
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])


if __name__ == "__main__":
    main()
