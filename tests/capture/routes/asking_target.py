"""A process that asks for orders as torch's profiler does with KINETO_USE_DAEMON, and writes the trace it is told to.

Run as `python asking_target.py NAME LIBRARY BEHAVIOUR`; writes a line when it is ready, then each order as a line of
JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import socket
import struct
import sys
import threading
import time

BEHAVIOURS = {
    "good": "writes its trace",
    "deaf": "never asks",
    "idle": "is told, and writes nothing",
    "short": "writes half of its trace",
    "late": "reads the answer to its first question when it has asked a second one",
}
NAME, LIBRARY, BEHAVIOUR = sys.argv[1:]
HEADER = struct.Struct("<Q32s")


def ask(peer, kind, payload):
    """One question and its answer; None where nobody listens."""
    try:
        peer.sendto(HEADER.pack(len(payload), kind) + payload, f"\0{NAME}\0".encode())
        data = peer.recv(8192)
    except OSError:
        return None
    size, answered = HEADER.unpack_from(data)
    assert answered.rstrip(b"\0") == kind
    assert size == len(data) - HEADER.size
    return data[HEADER.size :]


def write(told):
    time.sleep(max(0.0, int(told["PROFILE_START_TIME"]) / 1000 - time.time()))
    time.sleep(int(told["ACTIVITIES_DURATION_MSECS"]) / 1000)
    if BEHAVIOUR == "idle":
        return
    path = told["ACTIVITIES_LOG_FILE"].replace(".json", f"_{os.getpid()}.json")
    event = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1, "dur": 5, "args": {}}
    text = json.dumps({"schemaVersion": 1, "traceName": path, "traceEvents": [event] * 300})
    with open(path + ".tmp", "w") as file:
        file.write(text if BEHAVIOUR != "short" else text[: len(text) // 2])
    os.rename(path + ".tmp", path)


def main():
    assert BEHAVIOUR in BEHAVIOURS
    ctypes.CDLL(LIBRARY)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    peer.bind(f"\0gputop-test-client-{os.getpid()}\0".encode())
    peer.settimeout(0.5)
    print("ready", flush=True)
    busy = asked = False
    while True:
        time.sleep(0.1)
        if BEHAVIOUR == "deaf":
            continue
        pids = (os.getpid(), os.getppid())
        if BEHAVIOUR == "late" and not asked:
            # Its last attempt comes through, and counts as failed.
            payload = struct.pack("<iiq2i", 3, len(pids), 0, *pids)
            with contextlib.suppress(OSError):
                peer.sendto(HEADER.pack(len(payload), b"req") + payload, f"\0{NAME}\0".encode())
                asked = True
            continue
        config = ask(peer, b"req", struct.pack("<iiq2i", 1 if busy else 3, len(pids), 0, *pids))
        if config:
            told = dict(line.split("=", 1) for line in config.decode().splitlines())
            print(json.dumps(told), flush=True)
            busy = True
            threading.Thread(target=write, args=(told,), daemon=True).start()


if __name__ == "__main__":
    main()
