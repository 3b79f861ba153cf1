"""Reads of /proc, as cheap as Python allows, below a root that tests can choose.

Everything here raises the plain `OSError` subclasses: `FileNotFoundError` or
`ProcessLookupError` when the process is gone, `PermissionError` when it is
somebody else's. What they mean is for the caller to say.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
GONE = (FileNotFoundError, ProcessLookupError)
# PROC_PID_INIT_INO and PROC_UTS_INIT_INO in the kernel's include/linux/proc_ns.h
INITIAL_PID_NAMESPACE = "pid:[4026531836]"
INITIAL_UTS_NAMESPACE = "uts:[4026531838]"

_CHUNK_BYTES = 4096
_CMDLINE_MAX_BYTES = 64 * 1024


class Stat(NamedTuple):
    """/proc/PID/stat: times in clock ticks, RSS in pages."""

    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    cpu_ticks: int
    threads: int
    start_ticks: int
    rss_pages: int


class ProcFs:
    """A /proc file system.

    Args:
        root: where it is mounted.
    """

    def __init__(self, root: str = "/proc") -> None:
        self.root = root
        self._boot_s: float | None = None

    def pids(self) -> list[int]:
        """All process IDs that are visible, in no order."""
        return [int(name) for name in os.listdir(self.root) if name.isdigit()]

    def read(self, name: str, limit_bytes: int = 1 << 20) -> bytes:
        """The content of `<root>/<name>`, cut at `limit_bytes`."""
        handle = os.open(f"{self.root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = os.read(handle, min(_CHUNK_BYTES, limit_bytes))
            # /proc hands out as many whole lines as fit: only an empty read is the end.
            while len(data) < limit_bytes and (more := os.read(handle, min(1 << 16, limit_bytes - len(data)))):
                data += more
            return data
        finally:
            os.close(handle)

    def link(self, name: str) -> str:
        """Where the symbolic link `<root>/<name>` leads."""
        return os.readlink(f"{self.root}/{name}")

    def names(self, name: str) -> list[str]:
        """The entries of the directory `<root>/<name>`."""
        return os.listdir(f"{self.root}/{name}")

    def stat(self, pid: int) -> Stat:
        """What /proc/PID/stat says."""
        return parse_stat(self.read(f"{pid}/stat"))

    def thread(self, pid: int, tid: int) -> tuple[str, int, int]:
        """Name, CPU time and wait for block I/O of one thread, in clock ticks, from /proc/PID/task/TID/stat."""
        before, _, after = self.read(f"{pid}/task/{tid}/stat").rpartition(b")")
        fields = after.split(None, 40)
        return printable(before.partition(b"(")[2]), int(fields[11]) + int(fields[12]), int(fields[39])

    def argv(self, pid: int) -> tuple[str, ...]:
        """The command line; empty for zombies and kernel threads.

        A program that sets its own title (setproctitle) overwrites the command
        line and pads it; the padding is dropped.
        """
        return split_argv(self.read(f"{pid}/cmdline", _CMDLINE_MAX_BYTES))

    def environ(self, pid: int) -> dict[str, str]:
        """The environment that the process was started with.

        Empty or garbage after setproctitle, which writes its title over it.
        """
        pairs = (printable(item).partition("=") for item in self.read(f"{pid}/environ").split(b"\0"))
        return {key: value for key, separator, value in pairs if separator}

    def status(self, pid: int) -> dict[str, str]:
        """The fields of /proc/PID/status; those of one thread (switches) are the main thread's."""
        pairs = (line.partition(":") for line in printable(self.read(f"{pid}/status")).splitlines())
        return {key: value.strip() for key, _, value in pairs}

    def open_files(self, pid: int) -> list[str]:
        """Targets of all open file descriptors, e.g. "socket:[1234]" or "/dev/nvidia0"."""
        links = []
        for name in self.names(f"{pid}/fd"):
            try:
                links.append(self.link(f"{pid}/fd/{name}"))
            except GONE:
                continue
        return links

    def boot_s(self) -> float:
        """Wall time of the boot in seconds (btime of /proc/stat), read once."""
        if self._boot_s is None:
            found = re.search(rb"^btime (\d+)", self.read("stat"), re.MULTILINE)
            self._boot_s = float(found.group(1)) if found else 0.0
        return self._boot_s

    def start_s(self, start_ticks: int) -> float:
        """Wall time at which a process with this start time began, in seconds."""
        return self.boot_s() + start_ticks / TICKS_PER_S


def parse_stat(data: bytes) -> Stat:
    """The fields of a stat line; the name may hold blanks and brackets of its own.

    Raises:
        ValueError: the text is not a stat line.
    """
    before, bracket, after = data.rpartition(b")")
    fields = after.split()
    if not bracket or len(fields) < 22:
        raise ValueError(f"not a stat line: {data[:80]!r}")
    return Stat(
        comm=printable(before.partition(b"(")[2]),
        state=fields[0].decode("ascii", "replace"),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        rss_pages=int(fields[21]),
    )


def split_argv(data: bytes) -> tuple[str, ...]:
    """The arguments in a /proc/PID/cmdline."""
    text = data.rstrip(b"\0 ")
    return tuple(printable(item) for item in text.split(b"\0")) if text else ()


def printable(data: bytes) -> str:
    """Bytes that should be UTF-8 as text that can always be written out again."""
    return data.decode("utf-8", "backslashreplace")
