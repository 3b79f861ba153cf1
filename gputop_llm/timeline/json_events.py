"""One event of a Chrome trace, decoded typed so that nothing else of it is built; and the mending of known damage."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec

NO_TEXT = msgspec.Raw(b"")


class Args(
    msgspec.Struct,
    rename={
        "external_id": "External id",
        "input_dims": "Input Dims",
        "input_dims_old": "Input dims",
        "input_types": "Input type",
        "input_strides": "Input Strides",
        "concrete_inputs": "Concrete Inputs",
        "graph_id": "graph id",
        "graph_node_id": "graph node id",
    },
    gc=False,
):
    """The arguments that are used. Their types are checked where they are used: a trace is not to be trusted."""

    name: Any = None
    device: Any = None
    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    grid: Any = None
    block: Any = None
    external_id: Any = None
    input_dims: msgspec.Raw = NO_TEXT
    input_dims_old: msgspec.Raw = NO_TEXT
    input_types: msgspec.Raw = NO_TEXT
    input_strides: msgspec.Raw = NO_TEXT
    concrete_inputs: msgspec.Raw = NO_TEXT
    graph_id: Any = None
    graph_node_id: Any = None


class Event(msgspec.Struct, gc=False):
    """One event; times in microseconds as written, with all their digits."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: Args | None = None


NO_ARGS = Args()
_DECODER = msgspec.json.Decoder(list[Event | None])


def decode_events(text: bytes) -> list[Event] | None:
    """The events of "{…}, {…}"; None when it is not valid JSON, or an event has another form."""
    try:
        return [event for event in _DECODER.decode(b"[" + text + b"]") if event is not None]
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None


_ESCAPE = re.compile(rb'\\(?:(["\\/bfnrt])|u([0-9a-fA-F]{4}))?')
_BARE_WORD = re.compile(rb"(?<=[:\[,\s])-?(?:NaN|nan|Infinity|inf)(?=\s*[,\]}])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def mend(text: bytes) -> tuple[bytes, str]:
    """The text with damage mended that real traces have, and what that was.

    Backslashes that are no escapes (Windows paths) are doubled, NaN and Infinity become null, control characters
    blanks, and bytes that are not UTF-8 the replacement character.
    """
    found = []
    mended = text.decode("utf-8", "replace").encode()
    if mended != text:
        found.append("bytes that are not UTF-8")
    for pattern, replacement, what in (
        (_CONTROL, b" ", "control characters"),
        (_ESCAPE, _escape, "backslashes that are no escapes"),
        (_BARE_WORD, b"null", "NaN or Infinity"),
    ):
        before = mended
        mended = pattern.sub(replacement, mended)
        if mended != before:
            found.append(what)
    return mended, ", ".join(found)


def _escape(match: re.Match[bytes]) -> bytes:
    if match.group(1) is not None or match.group(2) is not None:
        return match.group(0)
    return b"\\\\"
