"""Python programs that are asked to run a script, with sys.remote_exec or with a stand-in for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.inject import Channel
from gputop_llm.capture.inject.memory import Maps
from gputop_llm.capture.inject.openness import running_since
from tests.capture.inject.support import HERE, serve, until

ROOT = HERE.parents[2]
PYTHON314 = os.environ.get("GPUTOP_TEST_PYTHON314") or shutil.which("python3.14")
STAND_IN, REAL = "stand-in", "sys.remote_exec"


@dataclass
class PythonTarget:
    """A running remote_target.py, and how it is asked."""

    process: subprocess.Popen[bytes]
    python: str
    fifo: str
    counters: Path
    errors: Path
    place: Path

    @property
    def pid(self):
        return self.process.pid

    def rounds(self):
        return struct.unpack("<QQ", self.counters.read_bytes())[0]

    def longest_ms(self):
        return struct.unpack("<QQ", self.counters.read_bytes())[1] / 1e6

    def assert_as_before(self):
        """It goes on, and nothing was said in its log."""
        before = self.rounds()
        until(lambda: self.rounds() > before + 5, "progress")
        assert self.process.poll() is None
        assert self.errors.read_text() == ""

    def state(self):
        links = {
            name: os.readlink(f"/proc/{self.pid}/fd/{name}")
            for name in os.listdir(f"/proc/{self.pid}/fd")
            if os.path.lexists(f"/proc/{self.pid}/fd/{name}")
        }
        return links, set(os.listdir(f"/proc/{self.pid}/task")), len(Maps.of(self.pid).between(0x677075000000, 1 << 46))

    def blocked_signals(self):
        return next(line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "SigBlk" in line)

    def monitor(self, what, library, deadline_s, last, before=(), **popen):
        command = (
            *before, self.python, "-m", "tests.capture.inject.remote_monitor", what, self.pid,
            running_since(self.pid), library, deadline_s, self.fifo, last,
        )  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPUTOP_TEST_PLACE": str(self.place)}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, **popen,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def inject(self, library, deadline_s=20.0, before=()):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            told = self.monitor("inject", library, deadline_s, theirs.fileno(), before, pass_fds=[theirs.fileno()])
            if "refused" in told:
                return told
            _, (commands, records), _, _ = socket.recv_fds(ours, 1, 2)
        return Channel(commands, records, **told)


@contextlib.contextmanager
def running(folder, way, mode, libraries, popen):
    """Starts one; its files are in a folder that everybody may read."""
    name = f"remote-{os.getpid()}-{time.monotonic_ns()}"
    counters, fifo, errors, place = (folder / f"{name}.{suffix}" for suffix in ("counters", "fifo", "errors", "place"))
    place.mkdir()
    place.chmod(0o777)
    counters.write_bytes(bytes(16))
    os.mkfifo(fifo)
    for path in (counters, fifo):
        path.chmod(0o666)
    python, asked_by = (sys.executable, str(fifo)) if way == STAND_IN else (PYTHON314, "-")
    command = [python, HERE / "remote_target.py", counters, asked_by, mode, *libraries]
    with open(errors, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, **popen)
    try:
        assert process.stdout.readline() == b"ready\n", errors.read_text()
        yield PythonTarget(process, python, asked_by, counters, errors, place)
    finally:
        process.kill()
        process.communicate()


def served(target, library):
    channel = target.inject(library)
    assert isinstance(channel, Channel), channel
    serve(channel)
    return channel
