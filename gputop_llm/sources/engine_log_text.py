"""Bytes of a log to lines, whatever its writer and the container's runtime made of them."""

from __future__ import annotations

import json
import re

LONGEST = 4096
_CARRIED = 2 * LONGEST
# containerd and CRI-O: when, which stream, whether the line is whole (F) or goes on (P), the line.
_CRI = re.compile(rb"(\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)) (std(?:out|err)) ([FP]) ")
_DOCKER = b'{"log":"'
_STREAMS = (b"stdout", b"stderr")
_DOCKER_END = b'","stream":"'
# A quote within a value is escaped, so that these are keys whatever the values hold.
_SAID = re.compile(r'"(?:message|exc_info)": ?"((?:[^"\\]|\\.)*)')


class Lines:
    """Cuts what is read piece by piece into whole lines, each at most `LONGEST` bytes of its beginning."""

    def __init__(self) -> None:
        self._rest = b""
        self._cut = False

    def skip(self) -> None:
        """The next piece does not follow the last one: up to its first end of line it is the end of something."""
        self._rest, self._cut = b"", True

    def restart(self) -> None:
        """The next piece begins a file."""
        self._rest, self._cut = b"", False

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in this piece."""
        whole, end, rest = data.rpartition(b"\n")
        if not end:
            self._carry(rest)
            return []
        lines = whole.split(b"\n")
        lines[0] = b"" if self._cut and not self._rest else (self._rest + lines[0])
        self._rest, self._cut = b"", False
        self._carry(rest)
        return [_clean(line) if len(line) > LONGEST or b"\r" in line or b"\0" in line else line for line in lines]

    def _carry(self, rest: bytes) -> None:
        if self._cut and not self._rest:
            return
        self._rest += rest[: _CARRIED - len(self._rest)]
        self._cut = self._cut or len(self._rest) == _CARRIED


def _clean(line: bytes) -> bytes:
    # A progress bar draws over itself; vLLM ends the lines of a traceback with both characters.
    shown = line.rstrip(b"\r").rpartition(b"\r")[2]
    # A log that is cut while it is written has a hole at its beginning.
    return shown.replace(b"\0", b"")[:LONGEST]


def unwrapped(line: bytes) -> tuple[bytes, str]:
    """A line without what a container's runtime put around it, and the time that this says it was written, if any."""
    if (found := _CRI.match(line)) is not None:
        return line[found.end() :], found[1].decode()
    if not line.startswith(_DOCKER):
        return line, ""
    try:
        entry = json.loads(line)
        return str(entry["log"]).rstrip("\r\n").encode("utf-8", "backslashreplace"), str(entry["time"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return line, ""


def messages_in(line: str) -> list[str]:
    """What a line of JSON says, as TGI's --json-output and Python's JSON formatters write it; empty for any other.

    The last one may be cut, as its line was.
    """
    if not line.startswith("{"):
        return []
    try:
        return [str(json.loads(f'"{said}"', strict=False)) for said in _SAID.findall(line)]
    except ValueError:
        return []


class Joints:
    """Tells which lines go on with one that a container's runtime cut, as it does at 16 KiB: they begin anywhere."""

    def __init__(self) -> None:
        self._cut: set[bytes] = set()

    def skip(self) -> None:
        """The next line does not follow the last one: it may go on with one that was not read."""
        self._cut = set(_STREAMS)

    def goes_on(self, line: bytes) -> bool:
        """Whether this line, the next one as the runtime wrote it, goes on with an earlier one of its stream."""
        if (found := _CRI.match(line)) is not None:
            streams, cut = {found[2]}, found[3] == b"P"
        elif line.startswith(_DOCKER):
            text, end, rest = line.rpartition(_DOCKER_END)
            # Of one that is too long to be kept nothing is known.
            streams = {rest[: len(b"stdout")]} if end else set(_STREAMS)
            cut = not text.endswith(b"\\n")
        else:
            return False
        before = not streams.isdisjoint(self._cut)
        self._cut = self._cut | streams if cut else self._cut - streams
        return before
