"""Real process trees that look like an engine's: right command line and titles, and nothing behind them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

_SERVER = """
import os, signal, socket, subprocess, sys
given = dict(zip(sys.argv, sys.argv[1:]))
place = given.get("--host", "127.0.0.1"), int(given["--port"])
if "PAGE" in os.environ:
    import http.server
    class Page(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(open(os.environ["PAGE"], "rb").read())
        def log_message(self, *args):
            pass
    listener = http.server.ThreadingHTTPServer(place, Page)
else:
    listener = socket.create_server(place)
for core in os.environ["TITLES"].split(";"):
    titles = core.split(",")
    subprocess.Popen([titles[0], os.environ["CHILD"], *titles], executable=sys.executable)
if uid := int(os.environ["BECOME"]):
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
os.write(1, f"{os.getpid()}{os.linesep}".encode())
listener.serve_forever() if "PAGE" in os.environ else signal.pause()
"""
# setproctitle renames a process after its start; argv[0] by exec and the name by /proc/self/comm come to the same.
_CHILD = """
import os, signal, subprocess, sys
title, *below = sys.argv[1:]
with open("/proc/self/comm", "w") as name:
    name.write(title[:15])
for other in below:
    subprocess.Popen([other, sys.argv[0], other], executable="/proc/self/exe")
if uid := int(os.environ["BECOME"]):
    os.setresuid(uid, uid, uid)
os.write(1, f"{os.getpid()}{os.linesep}".encode())
signal.pause()
"""


class Engine:
    """A running tree: `root` is the process that a user would have started; `pids` as the processes know them."""

    def __init__(self, root: subprocess.Popen[bytes], pids: list[int]) -> None:
        self.root = root
        self.pids = pids

    def kill_root(self) -> None:
        """SIGKILL, which gives the server no chance to end its children."""
        self.root.kill()
        self.root.wait()


@contextlib.contextmanager
def running_engine(
    folder: Path,
    *options: str,
    titles: str = "VLLM::EngineCore,VLLM::Worker_TP0,VLLM::Worker_TP1",
    within: Sequence[str] = (),
    page: Path | None = None,
    uid: int = 0,
) -> Iterator[Engine]:
    """A tree of `python -m vllm.entrypoints.openai.api_server`.

    `titles` are the root's children, parted by ";", each followed by its own children, parted by ",".
    `within` is a command that runs another one (unshare …), `page` what the server answers to each request, `uid` the
    user that they become (for root only; 0: the same).
    """
    package = folder / "vllm/entrypoints/openai"
    package.mkdir(parents=True, exist_ok=True)
    for part in (package, package.parent, package.parent.parent):
        (part / "__init__.py").touch()
    (package / "api_server.py").write_text(_SERVER)
    (folder / "child.py").write_text(_CHILD)
    root = subprocess.Popen(
        [*within, sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            **({"PAGE": str(page)} if page else {}),
            "PYTHONPATH": str(folder),
            "TITLES": titles,
            "CHILD": str(folder / "child.py"),
            "BECOME": str(uid),
        },
        start_new_session=True,
    )
    try:
        assert root.stdout is not None
        output = root.stdout.fileno()
        os.set_blocking(output, False)
        wanted = 1 + len(titles.replace(";", ",").split(","))
        pids: list[int] = []

        def all_named() -> bool:
            # Each process writes its PID when it has its name.
            with contextlib.suppress(BlockingIOError):
                pids.extend(int(line) for line in os.read(output, 4096).split())
            return len(pids) == wanted

        until(all_named)
        yield Engine(root, pids)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(root.pid, signal.SIGKILL)
        root.wait()


def until(check: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    """Waits until `check()` is true and returns it; fails after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while not (result := check()):
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.02)
    return result
