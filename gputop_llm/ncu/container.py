"""The frame of a .ncu-rep file: whether it is whole, and the options that ncu was started with.

"NVR\\0", then a length and a header, then blocks: a length, a header of that length, and a payload whose length stands
in the header's field 5. Headers are Protocol Buffers; only top-level fields are read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.timeline.unpack import shown

MAGIC = b"NVR\0"
_PAYLOAD_BYTES = 5
_SESSION = 3
_VARINT, _LENGTH = 0, 2
#: Of the command line only these are taken: what else stands in it may be a secret.
_OPTION = re.compile(rb"--(cache-control|clock-control|replay-mode|set)[= ]([a-z-]{1,24})")
_VERSION = re.compile(rb"nsight-compute/(\d{4}\.\d+\.\d+)/")


def options_of(path: Path) -> Mapping[str, str]:
    """Checks that the file is whole; the options of ncu that it tells ("cache-control": "none"), and "version".

    Raises:
        GputopError: it ends too early, or its blocks make no sense.
    """
    data = path.read_bytes()
    options: dict[str, str] = {}
    for header in _headers(path, data):
        for text in _fields(header, _SESSION):
            if isinstance(text, bytes) and b"ncu" in text:
                options |= {match[1].decode(): match[2].decode() for match in _OPTION.finditer(text)}
                if match := _VERSION.search(text):
                    options["version"] = match[1].decode()
    return options


def _headers(path: Path, data: bytes) -> Iterator[bytes]:
    at = len(MAGIC)
    at += 4 + _length(path, data, at)
    if at > len(data):
        raise _cut(path)
    while at < len(data):
        size = _length(path, data, at)
        header = data[at + 4 : at + 4 + size]
        if len(header) < size:
            raise _cut(path)
        payload = next((v for v in _fields(header, _PAYLOAD_BYTES) if isinstance(v, int)), 0)
        at += 4 + size + payload
        if at > len(data):
            raise _cut(path)
        yield header


def _length(path: Path, data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise _cut(path)
    return int.from_bytes(data[at : at + 4], "little")


def _cut(path: Path) -> GputopError:
    return GputopError(f"cannot read {shown(path)}", "the report is damaged or ends too early", "copy it again, whole")


def _fields(header: bytes, wanted: int) -> Iterator[int | bytes]:
    """The values of one top-level field, as far as the header can be followed."""
    at = 0
    while at < len(header):
        key, at = _varint(header, at)
        value: int | bytes
        if key & 7 == _VARINT:
            value, at = _varint(header, at)
        elif key & 7 == _LENGTH:
            size, at = _varint(header, at)
            value, at = header[at : at + size], at + size
        else:
            return
        if key >> 3 == wanted:
            yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at
