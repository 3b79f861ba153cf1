"""py-spy's trace of samples ("chrometrace") as the compact form that is kept beside a record (`stack_samples`).

py-spy writes a stack when it changed from one sample to the next. So a sample's moment is in the trace when any thread
of the process had moved since the one before; of others only how many there were is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from gputop_llm.capture.stacks.pyspy import shown

SCHEMA = 1
_THREAD = re.compile(r"^thread \((\d+)\): (.*)$", re.DOTALL)
#: Threads are read within this time of one another in one sample; the next sample is never as near.
_APART_US = 200
_MOST_EVENTS = 4_000_000
_MOST_DEPTH = 512
_ROOTS = ("/site-packages/", "/dist-packages/")
_LIBRARY = re.compile(r"/lib/python\d[\d.]*/")


class _Ids:
    """Numbers things in the order in which they come."""

    def __init__(self) -> None:
        self._ids: dict[Any, int] = {}

    def of(self, thing: Any) -> int:
        return self._ids.setdefault(thing, len(self._ids))

    def all(self) -> list[Any]:
        return list(self._ids)


def samples_of(trace: bytes) -> dict[str, Any]:
    """Threads, frames, stacks (frames innermost first), moments (µs since the trace's zero), and changes.

    `changes` are [moment, thread, stack], each a position in its list.

    Raises:
        ValueError: it is no trace, or holds too much.
    """
    events = json.loads(trace)
    if not isinstance(events, list) or len(events) > _MOST_EVENTS:
        raise ValueError("it is no list of events, or too long")
    calls, stacks, threads = _Ids(), _Ids(), _Ids()
    names: dict[int, tuple[int | None, str]] = {}
    changed: list[tuple[int, int, int]] = []
    for at_us, thread_id, frames in _changes(events):
        if not frames:
            continue  # The end of the recording, not a sample.
        if (found := _THREAD.match(frames[0][0])) is not None:
            names[thread_id] = int(found[1]) if len(found[1]) < 12 else None, shown(found[2])
            frames = frames[1:]
        stack = stacks.of(tuple(calls.of(frame) for frame in reversed(frames)))
        changed.append((at_us, threads.of(thread_id), stack))
    changed.sort()
    moments: list[int] = []
    rows: list[tuple[int, int, int]] = []
    last_us = None
    for at_us, thread, stack in changed:
        if last_us is None or at_us - last_us > _APART_US:
            moments.append(at_us)
        last_us = at_us
        rows.append((len(moments) - 1, thread, stack))
    return {
        "schema": SCHEMA,
        "threads": [[one, *names.get(one, (None, ""))] for one in threads.all()],
        "calls": [list(call) for call in calls.all()],
        "stacks": [list(stack) for stack in stacks.all()],
        "moments_us": moments,
        "changes": rows,
    }


def _changes(events: list[Any]) -> Iterator[tuple[int, int, tuple[tuple[str, str, int], ...]]]:
    """Each moment at which a thread's stack had changed, and its frames then, outermost first."""
    open_frames: dict[int, list[tuple[str, str, int]]] = {}
    since: dict[int, int] = {}
    for event in events:
        if not isinstance(event, dict):
            raise ValueError("an event makes no sense")
        kind, thread, at_us = event.get("ph"), event.get("tid"), event.get("ts")
        if kind not in ("B", "E") or type(thread) is not int or type(at_us) is not int:
            raise ValueError("an event makes no sense")
        frames = open_frames.setdefault(thread, [])
        if thread in since and since[thread] != at_us:
            yield since[thread], thread, tuple(frames)
        since[thread] = at_us
        if kind == "E":
            if frames:
                frames.pop()
        elif len(frames) < _MOST_DEPTH:
            frames.append(_frame(event))
    for thread, at_us in since.items():
        yield at_us, thread, tuple(open_frames[thread])


def _frame(event: dict[str, Any]) -> tuple[str, str, int]:
    told = event.get("args")
    args = told if isinstance(told, dict) else {}
    line = args.get("line")
    name = event.get("name")
    # The head of a stack is matched before it is shown.
    text = name[:1000] if isinstance(name, str) else "?"
    return text if text.startswith("thread (") else shown(text), short(args.get("filename")), _line(line)


def _line(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 31 else 0


def short(path: object) -> str:
    """A file's name below its package's root: "vllm/v1/engine/core.py", "threading.py"."""
    if not isinstance(path, str):
        return ""
    for root in _ROOTS:
        if root in path:
            return shown(path.rpartition(root)[2])
    parts = _LIBRARY.split(path)
    if len(parts) > 1:
        return shown(parts[-1])
    return shown("/".join(path.split("/")[-3:]) if path.count("/") > 3 else path)
