"""Streams the events of a Chrome trace from a hostile or damaged file, in bounded memory."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from gputop_llm.errors import ExitCode, GputopError
from gputop_llm.timeline.json_events import Event, decode_events, mend

# Decompressed size beyond which a file is no capture window but a mistake or a bomb.
MAX_BYTES = 8 * 2**30
#: Traces shrink 10 to 30 times; beyond this it is a bomb. Small files are let off: they do no harm.
_MAX_RATIO = 250
_RATIO_FROM_BYTES = 64 << 20
CHUNK = 1 << 20
HEAD = 1 << 20
TAIL = 1 << 16
_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class TraceError(GputopError):
    """A capture file can't be read."""

    exit_code = ExitCode.FAILED


class Cancelled(TraceError):
    """The user gave up waiting."""


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What the header says of one device."""

    name: str | None
    sm_count: int | None
    mem_total_bytes: int | None
    compute_capability: str | None


@dataclass(slots=True)
class Header:
    """What stands around the events."""

    base_ns: int = 0
    schema: str | None = None
    rank: int | None = None
    runtime: str | None = None
    devices: dict[int, DeviceProperties] = field(default_factory=dict)


class TraceFile:
    """One trace file.

    Args:
        path: .json, .json.gz or .json.xz, told by content and not by name.
        progress: told the share read.
        cancelled: asked once per chunk.

    `warnings` are complete, and `cut` is known, after `events()` has ended.
    """

    def __init__(
        self, path: Path, progress: Callable[[float], None] | None, cancelled: Callable[[], bool] | None
    ) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.cut = False
        self._progress = progress
        self._cancelled = cancelled
        self._size = 0
        self._bare_array = False

    def header(self) -> Header:
        """What the file says of itself before and after the events.

        Raises:
            TraceError: the file can't be read or is no JSON.
        """
        with self._open() as stream:
            head, tail = _ends(stream, self._error)
        start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
        if start not in (b"{", b"["):
            raise self._error("it is not JSON" if start else "it is empty")
        self._bare_array = start == b"["
        if not self._bare_array and b'"traceEvents"' not in head and b'"traceEvents"' not in tail:
            raise self._error("it has no traceEvents: it is not a Kineto or Chrome trace")
        return _parse_header(head.decode("utf-8", "replace"), tail.decode("utf-8", "replace"))

    def events(self) -> Iterator[Event]:
        """All events, one at a time. Damage is mended where it is known, else the event is left out and counted.

        Raises:
            TraceError: no event could be read although there is text, or the reading was cancelled.
        """
        count = 0
        with self._open() as stream:
            chunks = _Chunks(stream, self._bare_array, lambda: self._pulse(stream))
            for events in chunks:
                for event in events:
                    count += 1
                    yield event
        if not count and chunks.lost:
            raise self._error("none of its events is valid JSON")
        if chunks.mended:
            self.warnings.append(f"{self.path.name} is not valid JSON; it was mended while reading ({chunks.mended})")
        if chunks.lost:
            self.warnings.append(f"{chunks.lost} damaged pieces of {self.path.name} were left out")
        self.cut = chunks.cut
        if chunks.cut:
            self.warnings.append(f"{self.path.name} is cut off after {count} events: what came later is lost")

    def _pulse(self, stream: _Counted) -> None:
        if self._cancelled is not None and self._cancelled():
            raise Cancelled(f"reading {self.path.name} was cancelled")
        if self._progress is not None and self._size:
            self._progress(min(1.0, stream.raw_position() / self._size))

    def _open(self) -> _Counted:
        try:
            self._size = self.path.stat().st_size
            raw: BinaryIO = self.path.open("rb")
            magic = raw.read(6)
            raw.seek(0)
        except OSError as error:
            raise self._error(error.strerror or str(error)) from None
        if magic[:2] == b"\x1f\x8b":
            return _Counted(gzip.GzipFile(fileobj=raw), raw, self._error)
        if magic == b"\xfd7zXZ\x00":
            return _Counted(lzma.LZMAFile(raw), raw, self._error)
        return _Counted(raw, raw, self._error)

    def _error(self, why: str) -> TraceError:
        return TraceError(f"cannot read {self.path}", why)


class _Counted:
    """A stream that refuses to grow beyond MAX_BYTES."""

    def __init__(self, stream: Any, raw: BinaryIO, error: Callable[[str], TraceError]) -> None:
        self._stream, self._raw, self._error = stream, raw, error
        self._count = 0
        self._failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        data = self._unpacked(CHUNK if size is None or size < 0 else size)
        self._count += len(data)
        if self._count > MAX_BYTES:
            raise self._error(f"it is larger than {MAX_BYTES >> 30} GiB when unpacked")
        if self._count > max(_RATIO_FROM_BYTES, _MAX_RATIO * self._raw.tell()):
            raise self._error(f"it unpacks to more than {_MAX_RATIO} times its size, which no trace does")
        return data

    def _unpacked(self, size: int) -> bytes:
        """Up to `size` bytes; what lies before damage in the compression is given first."""
        data = b""
        try:
            while self._failure is None and len(data) < size and (piece := self._stream.read1(size - len(data))):
                data += piece
        except _DAMAGED as failure:
            self._failure = failure
        if self._failure is not None and not data:
            raise self._failure
        return data

    def raw_position(self) -> int:
        return self._raw.tell()

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stream.close()
        self._raw.close()


def _ends(stream: _Counted, error: Callable[[str], TraceError]) -> tuple[bytes, bytes]:
    """The first and last bytes of the text; the end of a file with a broken compression is what could be unpacked."""
    head, tail = b"", b""
    try:
        while len(head) < HEAD:
            chunk = stream.read(HEAD - len(head))
            if not chunk:
                return head, head[-TAIL:]
            head += chunk
        tail = head[-TAIL:]
        while chunk := stream.read(CHUNK):
            tail = (tail + chunk)[-TAIL:]
    except _DAMAGED as failure:
        if not head:
            raise error(f"its compression is damaged ({_short(failure)})") from None
    return head, tail


_BASE = re.compile(r'"baseTimeNanoseconds"\s*:\s*(-?\d{1,19})\b')
_SCHEMA = re.compile(r'"schemaVersion"\s*:\s*"?(\d+)')
_RUNTIME = re.compile(r'"(cuda|hip)_runtime_version"\s*:\s*(\d+)')
_RANK = re.compile(r'"distributedInfo"\s*:\s*\{[^{}]*?"rank"\s*:\s*(\d{1,9})\b')


def _parse_header(head: str, tail: str) -> Header:
    found = Header()
    before = head.split('"traceEvents"', 1)[0]
    # After the events: only what follows the last event's end.
    after = tail[tail.rfind("]") :] if "]" in tail else tail
    for text in (before, after):
        if match := _BASE.search(text):
            found.base_ns = int(match.group(1))
        if match := _SCHEMA.search(text):
            found.schema = match.group(1)
        if match := _RANK.search(text):
            found.rank = int(match.group(1))
        if match := _RUNTIME.search(text):
            found.runtime = f"{match.group(1).upper()} {match.group(2)}"
        position = text.find('"deviceProperties"')
        if position >= 0:
            found.devices = _devices(text[text.find("[", position) :])
    return found


def _devices(text: str) -> dict[int, DeviceProperties]:
    try:
        listed, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        return {}
    devices = {}
    for one in listed if isinstance(listed, list) else ():
        if isinstance(one, dict) and isinstance(one.get("id"), int):
            major, minor = _whole(one.get("computeMajor")), _whole(one.get("computeMinor"))
            name = one.get("name")
            devices[one["id"]] = DeviceProperties(
                name=name if isinstance(name, str) and name else None,
                sm_count=_whole(one.get("numSms")),
                mem_total_bytes=_whole(one.get("totalGlobalMem")),
                compute_capability=None if major is None or minor is None else f"{major}.{minor}",
            )
    return devices


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__


_FIRST_EVENT = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb"\}\s*,\s*\{")
# Longer than any event: what follows it (a file that was made large before it was written) is not searched for more.
_LONGEST = 64 << 20
# Boundaries inside an event's own lists of objects look the same: so many are tried before a chunk is called damaged.
_TRIES = 8


class _Chunks:
    """Cuts the array of events into pieces of about a megabyte between two events, and decodes each."""

    def __init__(self, stream: _Counted, bare_array: bool, pulse: Callable[[], None]) -> None:
        self._stream = stream
        self._pulse = pulse
        self._bare_array = bare_array
        self._ended = False
        self.mended = ""
        self.lost = 0
        self.cut = False

    def __iter__(self) -> Iterator[list[Event]]:
        buffer = self._start()
        if buffer is None:
            return
        while True:
            while not self._ended and len(buffer) < CHUNK:
                buffer += self._read()
            if self._ended:
                yield from self._last(buffer)
                return
            boundaries = [match.start() + 1 for match in _BOUNDARY.finditer(buffer, max(0, len(buffer) - CHUNK // 4))]
            if not boundaries:
                if len(buffer) > _LONGEST:
                    self.cut = True
                    yield self._repaired(buffer[: buffer.rfind(b"}") + 1])
                    return
                buffer += self._read()
                continue
            for position in reversed(boundaries[-_TRIES:]):
                events = decode_events(buffer[:position])
                if events is not None:
                    break
            else:
                position = boundaries[-1]
                events = self._repaired(buffer[:position])
            yield events
            buffer = buffer[position:].lstrip(b" \t\r\n").removeprefix(b",")

    def _start(self) -> bytes | None:
        """The text from the first event on; None where there is no list of events."""
        buffer = b""
        while not self._ended:
            buffer += self._read()
            if self._bare_array:
                return buffer.lstrip(b"\xef\xbb\xbf \t\r\n").removeprefix(b"[")
            match = _FIRST_EVENT.search(buffer)
            if match:
                return buffer[match.end() :]
            # The end may hold the beginning of it; the rest of what stands before the events is of no use.
            buffer = buffer[-TAIL:]
        return None

    def _last(self, buffer: bytes) -> Iterator[list[Event]]:
        """What is left: the last events, the end of the array, and what stands behind it."""
        end = len(buffer)
        for _ in range(64):
            end = buffer.rfind(b"]", 0, end)
            if end < 0:
                break
            events = decode_events(buffer[:end])
            if events is not None:
                yield events
                return
        # Cut off, or damaged: everything up to the last place where an event can have ended.
        closing = re.search(rb"\}\s*\]\s*(?:,\s*\"[^{}]*)?\}?\s*$", buffer)
        text = buffer[: closing.start() + 1] if closing else buffer
        self.cut = closing is None
        yield self._repaired(text)

    def _repaired(self, text: bytes) -> list[Event]:
        mended, what = mend(text)
        events = decode_events(mended)
        if events is not None:
            self.mended = self.mended or what
            return events
        found: list[Event] = []
        pieces = _BOUNDARY.split(mended)
        for position, piece in enumerate(pieces):
            whole = (b"{" if position else b"") + piece + (b"}" if position < len(pieces) - 1 else b"")
            events = decode_events(whole)
            if events is None:
                self.lost += not (self.cut and position == len(pieces) - 1)
            else:
                found.extend(events)
        return found

    def _read(self) -> bytes:
        # Also where no event is found: such a file takes longest.
        self._pulse()
        try:
            data = self._stream.read(CHUNK)
        except _DAMAGED:
            self._ended = self.cut = True
            return b""
        self._ended = not data
        return data
