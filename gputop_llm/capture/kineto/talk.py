"""The monitor's side of the agent: gets it into a process, and speaks with it by lines of JSON.

A target is not to be trusted: what it says is bounded and checked, and a trace is taken only from a plain file.
"""

from __future__ import annotations

import json
import os
import select
import stat
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gputop_llm.capture import inject as injection
from gputop_llm.capture.kineto import agent_source, runner_bytes
from gputop_llm.errors import GputopError
from gputop_llm.printable import printable

#: runner.c's header: magic, bytes of the source, bytes of the options.
_HEADER = struct.Struct("<8sII")
_MAGIC = b"GPUTOPY1"
#: Of a source that touches no profiler: others may be at work.
_MAGIC_BESIDE = b"GPUTOPB1"
_MOST_LINE, _MOST_LINES = 4096, 64
#: Neither NaN nor infinite, which JSON doesn't have.
_MOST_NUMBER = 1e18


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a window of torch.profiler is to record besides the GPU.

    Args:
        cpu: operators of all threads; `shapes`: of their inputs; `memory`: allocations; `stacks`: Python stacks, which
            cost the most by far.
        range: none of that: only a range (cudaProfilerStart) that an nsys outside waits for.
    """

    cpu: bool = False
    shapes: bool = False
    memory: bool = False
    stacks: bool = False
    range: bool = False


@dataclass
class Agent:
    """An agent in a process. `close` it from any state: it then ends its window, if there is one.

    Attributes:
        said: what it said so far, by its word ("hello", "started", "ended", "saved").
        gone: whether nothing more is to come.
    """

    pid: int
    commands: int
    records: int
    details: Mapping[str, Any]
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: bool = False
    _buffer: bytes = b""
    _lines: int = 0

    def begin(self, start_at_ns: int, window_ns: int) -> None:
        """Orders the window; CLOCK_MONOTONIC."""
        self._write(json.dumps({"start_at": start_at_ns, "window_ns": window_ns}).encode("ascii"))

    def stop(self) -> None:
        """Ends the window now; what was collected is saved."""
        self._write(b"stop")

    def hear(self, wait_s: float) -> None:
        """Takes what has come, waiting for it at most so long."""
        if self.gone or not select.select([self.records], [], [], max(0.0, wait_s))[0]:
            return
        try:
            data = os.read(self.records, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone = True
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._lines += len(lines)
        if len(self._buffer) > _MOST_LINE or self._lines > _MOST_LINES:
            self.gone = True
        for line in lines:
            with suppress(ValueError, RecursionError):
                told = json.loads(line[:_MOST_LINE])
                if isinstance(told, dict) and isinstance(word := told.pop("say", None), str):
                    self.said[word] = told

    def number(self, word: str, name: str) -> float | None:
        """A number that it said; None where it said none."""
        value = self.said.get(word, {}).get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < _MOST_NUMBER:
            return None
        return float(value)

    @property
    def trouble(self) -> str | None:
        """What it says it can't do, as a clause."""
        for word in ("refused", "failed"):
            if word in self.said:
                return printable(str(self.said[word].get("why", "no reason given")), 400)
        return None

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected before its trace is read."""
        return self.gone or self.trouble is not None or "saved" in self.said

    def open_trace(self) -> tuple[int, int]:
        """A descriptor of the saved trace and its bytes; the caller closes it.

        Raises:
            GputopError: what it says is no plain file of that size.
        """
        told = self.said["saved"]
        number, size = told.get("fd"), told.get("bytes")
        if type(number) is not int or type(size) is not int or number < 0:
            raise GputopError("cannot read the trace", "the agent in the target names none")
        try:
            fd = os.open(f"/proc/{self.pid}/fd/{number}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise GputopError("cannot read the trace", error.strerror or str(error)) from error
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_size != size:
            os.close(fd)
            raise GputopError("cannot read the trace", "something in the target has replaced its file")
        return fd, size

    def close(self) -> None:
        """Lets go of it. Safe to call twice."""
        for fd in {self.commands, self.records} - {-1}:
            with suppress(OSError):
                os.close(fd)
        self.commands = self.records = -1
        self.gone = True

    def _write(self, data: bytes) -> None:
        with suppress(OSError):
            os.write(self.commands, data)


def reach(pid: int, start_ticks: int, wanted: Wanted, deadline_s: float) -> Agent:
    """Has the agent run in a process; nothing is profiled yet.

    Raises:
        GputopError: it can't, or should not, be done; the process goes on as before.
    """
    source = agent_source()
    options = json.dumps({name: getattr(wanted, name) for name in Wanted.__slots__}).encode("ascii")
    channel = injection.inject(pid, start_ticks, runner_bytes(), deadline_s)
    details = {
        "took_ms": channel.took_ms,
        "stopped_ms": channel.stopped_ms,
        "reused": channel.reused,
        "thread": channel.thread[0],
        "waited_in": channel.thread[1],
    }
    agent = Agent(pid, channel.commands, channel.records, details)
    try:
        magic = _MAGIC_BESIDE if wanted.range else _MAGIC
        _send(agent.commands, _HEADER.pack(magic, len(source), len(options)) + source + options, deadline_s)
    except BaseException:
        agent.close()
        raise
    return agent


def _send(fd: int, data: bytes, deadline_s: float) -> None:
    """All of it to a pipe whose reader may be slow."""
    until = time.monotonic() + deadline_s
    os.set_blocking(fd, False)
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            if time.monotonic() > until:
                raise GputopError("cannot capture", "the agent's thread in the target takes nothing in") from None
            select.select([], [fd], [], 0.05)
        except OSError:
            # It has ended, and said why before.
            return
