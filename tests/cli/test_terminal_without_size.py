"""The full-screen monitor on a terminal that does not know its own size (0 rows, 0 columns)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from tests.support.cli import COMMAND, environment

DEADLINE_S = 30


@pytest.mark.parametrize("rows_and_columns", [(0, 0), (0, 100), (40, 0)])
def test_it_is_drawn_once_and_not_again_and_again_and_a_signal_ends_it(rows_and_columns):
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *rows_and_columns, 0, 0))
    program = subprocess.Popen(
        [*COMMAND, "demo"], stdin=terminal, stdout=terminal, stderr=terminal, env=environment(), start_new_session=True
    )
    os.close(terminal)
    try:
        drawn = read_until(screen, b"TTFT")
        assert b"TTFT" in drawn
        # Two more seconds are two more frames: some kilobytes. Laying it out for ever is a megabyte a second.
        assert len(drawn + read_for(screen, 2.0)) < 200_000
        program.send_signal(signal.SIGTERM)
        read_until(screen, None)
        assert program.wait(timeout=DEADLINE_S) == 128 + signal.SIGTERM
    finally:
        program.kill()
        program.wait()
        os.close(screen)


def read_until(screen: int, wanted: bytes | None) -> bytes:
    """What is written until `wanted` is in it, or (None) until the terminal is let go of."""
    read, until = b"", time.monotonic() + DEADLINE_S
    while time.monotonic() < until and (wanted is None or wanted not in read):
        more = read_for(screen, 0.1)
        if more is None:
            break
        read += more
    return read


def read_for(screen: int, seconds: float) -> bytes | None:
    """What is written within that time; None when nobody has the terminal open any more."""
    read, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([screen], [], [], left)[0]:
            try:
                read += os.read(screen, 65536)
            except OSError:
                return None
    return read
