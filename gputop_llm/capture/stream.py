"""What one client sends, checked chunk by chunk as it comes and stored as it is.

A target is not to be trusted: lengths are bounded before they are believed, and a stream that breaks a rule is read no
further. What came whole before that is kept.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from gputop_llm.printable import printable
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk

#: A window may go beyond its bound by what was in flight when it was reached.
SLACK_BYTES = 2 * form.MAX_PAYLOAD_BYTES
#: These are looked into; of all others only the frame is.
_READ = (Chunk.HELLO, Chunk.REFUSED, Chunk.STARTED, Chunk.END)
_LONGEST_READ = 4096


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers: PID as the target sees it, CUPTI's version, the library."""

    version: int
    pid: int
    cupti_version: int
    library: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the client records nothing: its reason's number, CUPTI's result code, a sentence."""

    reason: int
    cupti_result: int
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """How a window ended, as the client says."""

    reason: int
    dropped: int
    records: int
    bytes: int
    took_ns: int


class Stream:
    """The record of one rank.

    Args:
        file: a descriptor to store it in; the stream closes it.
        max_bytes: what the client was told to send at most.

    `broken` is a clause once a rule was broken; `disk` once it can't be stored any more.
    """

    def __init__(self, file: int, max_bytes: int) -> None:
        self._file = file
        self._most = max_bytes + SLACK_BYTES
        self._head = b""
        self._has_magic = False
        self._kind: int | None = None
        self._payload = b""
        self._left = 0
        self.bytes = 0
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.started_ns: int | None = None
        self.enabling_ns: int | None = None
        self.end: End | None = None
        self.broken: str | None = None
        self.disk: str | None = None

    def feed(self, data: bytes) -> None:
        """Takes what came next."""
        if self.broken is not None or self.disk is not None or self.end is not None:
            return
        whole = self._check(data)
        self._store(data[:whole])

    def close(self) -> None:
        """Closes the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _store(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                written = os.write(self._file, rest)
                self.bytes += written
                rest = rest[written:]
        except OSError as error:
            self.disk = (error.strerror or str(error)).lower()

    def _check(self, data: bytes) -> int:
        """How many of these bytes keep to the rules."""
        at = 0
        while at < len(data):
            if self.bytes + at > self._most:
                self.broken = f"it sends more than the {self._most} bytes that it was allowed"
                return at
            if self._kind is None:
                wanted = form.CHUNK_HEADER.size if self._has_magic else len(form.MAGIC)
                taken = data[at : at + wanted - len(self._head)]
                self._head += taken
                at += len(taken)
                if len(self._head) == wanted and not self._begin():
                    return at
                continue
            taken = data[at : at + self._left]
            if self._kind in _READ and len(self._payload) < _LONGEST_READ:
                self._payload += taken[: _LONGEST_READ - len(self._payload)]
            at += len(taken)
            self._left -= len(taken)
            if self._left == 0:
                self._chunk()
                if self.end is not None or self.broken is not None:
                    return at
        return at

    def _begin(self) -> bool:
        head, self._head = self._head, b""
        if not self._has_magic:
            self._has_magic = True
            if head != form.MAGIC:
                self.broken = "what it sends is no record"
            return self.broken is None
        kind, length = form.CHUNK_HEADER.unpack(head)
        if length > form.MAX_PAYLOAD_BYTES:
            self.broken = f"it announces a chunk of {length} bytes"
            return False
        self._kind, self._left, self._payload = kind, length, b""
        if length == 0:
            self._chunk()
        return True

    def _chunk(self) -> None:
        """A chunk is whole."""
        kind, payload = self._kind, self._payload
        self._kind = None
        try:
            if kind == Chunk.HELLO:
                version, pid, _, cupti = form.HELLO.unpack_from(payload)
                self.hello = Hello(version, pid, cupti, _text(payload, form.HELLO.size))
            elif kind == Chunk.REFUSED:
                reason, result = form.REFUSED.unpack_from(payload)
                self.refusal = Refusal(reason, result, _text(payload, form.REFUSED.size))
            elif kind == Chunk.STARTED:
                _, _, self.started_ns, _, _, _, self.enabling_ns = form.STARTED.unpack_from(payload)
            elif kind == Chunk.END:
                _, _, _, _, why, _, dropped, records, sent, off_ns, flush_ns = form.END.unpack_from(payload)
                self.end = End(why, dropped, records, sent, off_ns + flush_ns)
        except struct.error:
            self.broken = "a chunk is shorter than its form"


def _text(payload: bytes, offset: int) -> str:
    return printable(payload[offset:].split(b"\0")[0].decode("utf-8", "backslashreplace"), 500)
