"""Targets that were started under an nsys."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.nsys.tool import Tool
from tests.capture.support import SERVING, Serving
from tests.support.real_processes import until

READY = ("Launched", "StartRange")


@dataclass
class Launched(Serving):
    """A server under nsys: `process` is that of nsys, the server is below it."""

    server: int = 0
    tool: Tool | None = None

    @property
    def pid(self) -> int:
        return self.server

    def session(self):
        """The session that it runs in, as nsys lists it."""
        name = next(arg for arg in self.process.args if arg.startswith("--session-new=")).partition("=")[2]
        return next((one for one in self.tool.sessions() if one.name == name), None)


@contextlib.contextmanager
def launched(
    nsys: Path, sockets: Path, trace: str = "nvtx,osrt", command: str = "launch", more: tuple[str, ...] = (), **environ
) -> Iterator[Launched]:
    """A server as a user's own `nsys launch` (or `profile`) starts it; ended with its session.

    Args:
        more: options; a session is to come to its first state of rest or waiting by itself.
        environ: more of the environment.
    """
    tool = Tool(nsys)
    # Several nsys that start or end at the same moment trip over each other (sem_open: no such file).
    for _ in range(3):
        name = f"t{uuid.uuid4().hex[:12]}"
        process = subprocess.Popen(
            [str(nsys), command, f"--session-new={name}", f"--trace={trace}", *more,
             sys.executable, str(SERVING), str(sockets / "PID.sock"), "good"],
            env={**os.environ, **environ}, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        port = process.stdout.readline()
        if port:
            break
        process.wait()
        process.stdout.close()
    try:
        started = Launched(process, f"http://127.0.0.1:{int(port)}", tool=tool)
        assert until(lambda: started.session() is not None and started.session().state in READY, 20.0)
        started.server = server_below(process.pid)
        yield started
    finally:
        tool.run(["shutdown", "--kill=sigkill", f"--session={name}"], 20.0)
        with contextlib.suppress(ProcessLookupError):
            if process.poll() is None:
                process.kill()
        process.wait()
        process.stdout.close()


def server_below(pid: int) -> int:
    """The process of the server itself below that of nsys."""
    for line in subprocess.run(
        ["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True
    ).stdout.splitlines()[1:]:
        child, parent, args = line.split(None, 2)
        if str(SERVING) in args and "--session-new" not in args and parent_of(int(parent)) == pid:
            return int(child)
    raise AssertionError("no server")


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
