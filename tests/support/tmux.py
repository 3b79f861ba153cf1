"""A private tmux server: a real terminal whose screen can be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = shutil.which("tmux") is not None


class Tmux:
    """One server with one window; `command` runs in a shell.

    Args:
        command: what to run.
        size: columns and lines.
    """

    def __init__(self, command: str, size: tuple[int, int] = (80, 24), env: dict[str, str] | None = None) -> None:
        # A socket of its own: a name that was just killed can't be used again at once.
        self._label = f"test-{uuid.uuid4().hex[:10]}"
        given = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})}
        given.pop("TMUX", None)
        self._env = given
        self.run(
            "-f", "/dev/null", "new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "-c", str(ROOT), command
        )

    def run(self, *args: str) -> str:
        ended = subprocess.run(
            ["tmux", "-L", self._label, *args], env=self._env, capture_output=True, text=True, check=False, timeout=20
        )
        return ended.stdout

    def screen(self, colours: bool = False) -> str:
        return self.run("capture-pane", "-p", *(["-e"] if colours else []))

    def keys(self, *names: str) -> None:
        self.run("send-keys", *names)

    def resize(self, columns: int, lines: int) -> None:
        self.run("resize-window", "-x", str(columns), "-y", str(lines))

    def wait_for(self, what: str | Callable[[str], bool], seconds: float = 20.0) -> str:
        """The screen once it holds a text, or fulfils a condition."""
        holds = (lambda screen: what in screen) if isinstance(what, str) else what
        end = time.monotonic() + seconds
        while not holds(screen := self.screen()):
            assert time.monotonic() < end, f"did not come: {what}\n{screen}"
            time.sleep(0.05)
        return screen

    def pids(self) -> list[int]:
        """The processes under the window's shell, and the shell."""
        shell = int(self.run("display-message", "-p", "#{pane_pid}"))
        below = subprocess.run(["ps", "-o", "pid=", "--ppid", str(shell)], capture_output=True, text=True, check=False)
        return [shell, *(int(p) for p in below.stdout.split())]

    def kill(self) -> None:
        """Ends the server; its programs lose their terminal."""
        self.run("kill-server")
