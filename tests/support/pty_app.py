"""The TUI in a pseudo-terminal of its own, driven and watched from outside."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
DRIVER = (sys.executable, "-m", "tests.support.tui_driver")


class PtyApp:
    """A process whose terminal is ours.

    Args:
        args: arguments of the driver.
        size: columns and lines.
        controlling: whether the terminal is its controlling one, so that a hang-up sends SIGHUP.
        ignore_hup: start it as `nohup` would.
    """

    def __init__(
        self,
        args: tuple[str, ...],
        size: tuple[int, int],
        *,
        controlling: bool = True,
        ignore_hup: bool = False,
        env: dict[str, str] | None = None,
    ) -> None:
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

        def prepare() -> None:
            if controlling:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            if ignore_hup:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        self.process = subprocess.Popen(
            [*DRIVER, *args],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=ROOT,
            env={**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})},
            start_new_session=True,
            preexec_fn=prepare,
        )
        os.close(slave)
        self.output = b""

    def read_until(self, text: str, seconds: float = 20.0) -> None:
        """Reads what it draws until `text` has come."""
        end = time.monotonic() + seconds
        wanted = text.encode()
        while wanted not in self.output:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come: {self.output[-2000:]!r}"
            if select.select([self.master], [], [], left)[0]:
                self.output += os.read(self.master, 65536)

    def type(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """The connection is lost."""
        os.close(self.master)
        self.master = -1

    def cpu_s(self) -> float:
        """User and system time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def wait(self, seconds: float) -> tuple[int, float]:
        """Its exit code, and all the CPU time that it used; it must end within `seconds`."""
        end = time.monotonic() + seconds
        while True:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                return self.process.returncode, usage.ru_utime + usage.ru_stime
            assert time.monotonic() < end, "it is still running"
            time.sleep(0.01)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master >= 0:
            os.close(self.master)


@contextmanager
def pty_app(*args: str, size: tuple[int, int] = (80, 24), **how) -> Iterator[PtyApp]:
    """The driver running in a pseudo-terminal; gone afterwards in any case."""
    app = PtyApp(args, size, **how)
    try:
        yield app
    finally:
        app.close()
