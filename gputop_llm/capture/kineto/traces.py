"""Traces as they come from a target: copied under a bound, compressed, and proven to be whole by their own bytes."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

from gputop_llm.errors import GputopError
from gputop_llm.units import size

_PIECE = 1 << 20
_TAIL = 64


def copy_trace(source: int, target: int | None, most_bytes: int, cancelled: Callable[[], bool] = lambda: False) -> int:
    """Copies a trace, compressed (gzip) where it is not already; returns the bytes it has unpacked.

    Args:
        source, target: descriptors; neither is closed. No target: it is only looked at.
        most_bytes: of the source, as it is.

    Raises:
        GputopError: it is larger, is no whole trace, `cancelled` said yes, or it can't be written.
    """
    check = _Whole()
    packer = zlib.compressobj(1, wbits=31)
    taken = 0
    packed: bool | None = None
    try:
        while data := os.read(source, _PIECE):
            taken += len(data)
            if taken > most_bytes:
                raise GputopError("cannot keep the trace", f"it has more than {size(most_bytes)}", "take fewer steps")
            if cancelled():
                raise GputopError("copying the trace was cancelled")
            if packed is None:
                packed = data.startswith(b"\x1f\x8b")
                check.packed = packed
            check.feed(data)
            if target is not None:
                _write(target, data if packed else packer.compress(data))
        check.end()
        if not packed:
            _write(target, packer.flush())
    except OSError as error:
        raise GputopError("cannot keep the trace", error.strerror or str(error)) from error
    return check.bytes


class _Whole:
    """Whether a trace begins and ends as one does, and holds events; JSON itself is left to the reader."""

    def __init__(self) -> None:
        self.packed = False
        self.bytes = 0
        self._unpacker = zlib.decompressobj(wbits=31)
        self._head = self._tail = b""
        self._has_events = False

    def feed(self, data: bytes) -> None:
        if not self.packed:
            self._take(data)
            return
        try:
            while data and not self._unpacker.eof:
                self._take(self._unpacker.decompress(data, _PIECE))
                data = self._unpacker.unconsumed_tail
        except zlib.error as error:
            raise GputopError("cannot keep the trace", f"its compression is damaged ({error})") from None

    def end(self) -> None:
        if self.packed and not self._unpacker.eof:
            raise GputopError("cannot keep the trace", "its file ends too early")
        if not self.bytes:
            raise GputopError("cannot keep the trace", "its file is empty")
        whole = self._head.lstrip()[:1] == b"{" and self._tail.rstrip().endswith(b"}")
        if not (whole and self._has_events):
            raise GputopError("cannot keep the trace", "its file is no whole trace of torch.profiler")

    def _take(self, data: bytes) -> None:
        if len(self._head) < _TAIL:
            self._head += data[:_TAIL]
        # The word may lie across two pieces.
        self._has_events = self._has_events or b'"traceEvents"' in self._tail + data
        self._tail = (self._tail + data)[-_TAIL:]
        self.bytes += len(data)


def _write(fd: int | None, data: bytes) -> None:
    rest = memoryview(data)
    while rest and fd is not None:
        rest = rest[os.write(fd, rest) :]
