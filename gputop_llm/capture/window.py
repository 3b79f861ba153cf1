"""One window in one or several clients at once: greet, start together, collect, stop, put away."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.stream import Stream
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Command, Kinds

#: Room for what a client sends while the disk is slow; what an ordinary user may have.
_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
#: Between telling the clients to begin and the beginning: all must have heard of it.
_LEAD_NS = 50_000_000


class Channel(Protocol):
    """The two pipes of a client (or its socket, twice)."""

    @property
    def commands(self) -> int:
        """A descriptor to write commands to."""
        ...

    @property
    def records(self) -> int:
        """A descriptor to read the record from."""
        ...


@dataclass
class Member:
    """One client of a window; `name` is its record's file. `gone` is true once it sends no more."""

    channel: Channel
    name: str
    stream: Stream
    gone: bool = False

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected, or wanted, from it."""
        stream = self.stream
        return bool(self.gone or stream.end or stream.refusal or stream.broken or stream.disk)


class Window:
    """Drives the clients of all ranks.

    Args:
        channels: by the name of the file that each one's record goes to. The window closes them.
        folder: where to.
        kinds: what to record.
        window_ns: how long.
        max_bytes: the most that each client may send.

    Raises:
        OSError: a file can't be made.
    """

    def __init__(
        self,
        channels: Sequence[tuple[str, Channel]],
        folder: CaptureFolder,
        kinds: Kinds,
        window_ns: int,
        max_bytes: int,
    ) -> None:
        self._folder = folder
        self._kinds = kinds
        self._window_ns = window_ns
        self._max_bytes = max_bytes
        self.starts_ns: int | None = None
        self.stopped = False
        self._away = False
        self.members: list[Member] = []
        self._poll = select.poll()
        self._by_fd: dict[int, Member] = {}
        for name, channel in channels:
            member = Member(channel, name, Stream(folder.open_record(name), max_bytes))
            self.members.append(member)
            os.set_blocking(channel.records, False)
            os.set_blocking(channel.commands, False)
            with suppress(OSError):
                fcntl.fcntl(channel.records, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            self._by_fd[channel.records] = member
            self._poll.register(channel.records, select.POLLIN)

    @property
    def bytes(self) -> int:
        """Received from all of them."""
        return sum(member.stream.bytes for member in self.members)

    @property
    def greeted(self) -> bool:
        """Whether each has said hello, or that it won't."""
        return all(member.stream.hello or member.over for member in self.members)

    @property
    def over(self) -> bool:
        """Whether nothing more is to come."""
        return all(member.over for member in self.members)

    @property
    def share(self) -> float | None:
        """How far the window is, 0 to 1; None before its start."""
        if self.starts_ns is None:
            return None
        return min(1.0, max(0.0, (time.monotonic_ns() - self.starts_ns) / self._window_ns))

    def start(self) -> None:
        """Tells all of them to begin at the same moment."""
        self.starts_ns = time.monotonic_ns() + _LEAD_NS
        self._tell(Command.WINDOW, int(self._kinds), self.starts_ns, self._window_ns, self._max_bytes)

    def stop(self) -> None:
        """Tells all of them to end now; their ends are still to come."""
        if not self.stopped:
            self.stopped = True
            self._tell(Command.STOP, 0, 0, 0, 0)

    def collect(self, wait_s: float) -> None:
        """Takes what has come, waiting for it at most `wait_s` seconds."""
        for fd, _ in self._poll.poll(max(0.0, wait_s * 1000.0)):
            member = self._by_fd[fd]
            # A bounded share each: what one sends without end must not keep the others, or a cancel, waiting.
            for _ in range(8):
                try:
                    data = os.read(fd, _READ_BYTES)
                except BlockingIOError:
                    break
                except OSError:
                    data = b""
                if not data:
                    self._part(member)
                    break
                member.stream.feed(data)
                if member.stream.broken or member.stream.disk:
                    self._part(member)
                    break

    def put_away(self) -> None:
        """Closes everything; whole records get their own names. Clients that go on find their pipes broken and end.

        Safe to call twice.
        """
        # The numbers of what is closed soon stand for something else.
        away, self._away = self._away, True
        if away:
            return
        for member in self.members:
            self._part(member)
            member.stream.close()
            for fd in {member.channel.commands, member.channel.records}:
                with suppress(OSError):
                    os.close(fd)
            if member.stream.end is not None:
                with suppress(OSError):
                    self._folder.whole(member.name)

    def _part(self, member: Member) -> None:
        if not member.gone:
            member.gone = True
            self._poll.unregister(member.channel.records)

    def _tell(self, command: Command, *fields: int) -> None:
        message = form.COMMAND.pack(form.COMMAND_MAGIC, command, *fields)
        for member in self.members:
            if not member.gone:
                # Far smaller than a pipe's least room; a client that is gone says so by its record's end.
                with suppress(OSError):
                    os.write(member.channel.commands, message)
