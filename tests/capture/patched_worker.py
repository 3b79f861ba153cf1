"""The capture's worker for tests: its lock is the test's own, and it reaches the client of `serving.py`.

The node's lock is one for all; tests run at the same time.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture import clients, endpoint_taker, guards, kineto_daemon_taker, native, recording, worker
from gputop_llm.capture.clients import Reached
from gputop_llm.capture.guardian import Guardian
from gputop_llm.capture.kineto import daemon
from gputop_llm.capture.lock import Lock
from gputop_llm.capture.nsys import collection, gated_way


@dataclass
class Socket:
    commands: int
    records: int


def reach(rank):
    path = f"{os.environ['GPUTOP_TEST_SOCKETS']}/{rank.pid}-{rank.start_ticks}.sock"
    if not os.path.exists(path):
        return None
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    fd = peer.detach()
    return Reached(Socket(fd, fd), "run")


def main():
    if wait_for := os.environ.get("GPUTOP_TEST_NOT_BEFORE"):
        while not os.path.exists(wait_for):
            time.sleep(0.01)
    clients.reach_prepared = reach
    worker.Lock = lambda target: Lock(target, os.environ["GPUTOP_TEST_LOCK"])
    worker._BEFORE_S = float(os.environ.get("GPUTOP_TEST_BEFORE_S", "0"))
    worker.RECOVERY_S = worker._LEAST_AFTER_S = float(os.environ.get("GPUTOP_TEST_AFTER_S", "0"))
    # Disks of test machines are small and full.
    guards.FREE_PCT = 0.0
    guards.FREE_BYTES = 1 << 20
    if bound := os.environ.get("GPUTOP_TEST_FSIZE"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(bound), int(bound)))
    if within := os.environ.get("GPUTOP_TEST_DEADLINE_S"):
        said = Guardian.deadline
        Guardian.deadline = lambda self, _: said(self, float(within))
    if late := os.environ.get("GPUTOP_TEST_LATE_S"):
        guards.LATE_S = recording.END_WITHIN_S = recording.HELLO_WITHIN_S = float(late)
    endpoint_taker._FILES_S = float(os.environ.get("GPUTOP_TEST_FILES_S", endpoint_taker._FILES_S))
    endpoint_taker._START_S = float(os.environ.get("GPUTOP_TEST_START_S", endpoint_taker._START_S))
    if name := os.environ.get("GPUTOP_TEST_DAEMON"):
        daemon.NAME = name
        kineto_daemon_taker.ASKED_S = float(os.environ.get("GPUTOP_TEST_ASKED_S", "3"))
        kineto_daemon_taker.LEAD_S = 2.0
    gated_way.RANGE = os.environ.get("GPUTOP_TEST_RANGE", gated_way.RANGE)
    collection._WRITTEN_WITHIN_S = float(os.environ.get("GPUTOP_TEST_WRITTEN_S", collection._WRITTEN_WITHIN_S))
    if library := os.environ.get("GPUTOP_TEST_LIBRARY"):
        native.library_path = lambda: Path(library)
    if os.environ.get("GPUTOP_TEST_LONG_VERDICT"):
        judge_until_cancelled()
    if stage := os.environ.get("GPUTOP_TEST_BUG"):
        break_at(stage)
    if stage := os.environ.get("GPUTOP_TEST_STALL"):
        stall_at(stage)
    worker.main()


def stall_at(stage):
    """The worker tells that it has come to a stage, and goes no further."""
    told = worker.Worker._tell

    def tell(self, now, *what):
        told(self, now, *what)
        if now == stage:
            while True:
                time.sleep(60)

    worker.Worker._tell = tell


def judge_until_cancelled():
    """The verdict takes as long as it is let."""
    from gputop_llm.capture import bundling

    read = bundling.read_capture

    def reading(records, cancelled):
        until = time.monotonic() + 20.0
        while not cancelled():
            assert time.monotonic() < until
            time.sleep(0.01)
        return read(records, cancelled=cancelled)

    bundling.read_capture = reading


def break_at(stage):
    """The worker has a bug at a stage."""
    told = worker.Worker._tell

    def tell(self, now, text, details=None):
        told(self, now, text, details)
        if now == stage:
            raise RuntimeError("a bug")

    worker.Worker._tell = tell


if __name__ == "__main__":
    main()
