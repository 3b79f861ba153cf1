"""Removes traces that a process writes for a worker that is gone."""

from __future__ import annotations

import re
import time

from gputop_llm.capture.endpoint.files import Traces
from gputop_llm.capture.endpoint.kinds import Call, Endpoint
from gputop_llm.capture.undo import Step

DO = "remove-traces"
#: From the order to the trace: two questions may be needed, one every 5 s; then it warms up, and sorts.
_APPEARS_S = 25.0
_NEVER = re.compile(r"(?!)")
_TICK_S = 0.2


def step(pid: int, place: Endpoint, window_s: float) -> Step:
    """What the watchdog is to do."""
    return {"do": DO, "pid": pid, "folder": place.folder, "tag": place.tag, "window_s": window_s}


def undo(step: Step) -> str | None:
    """Waits for the trace to appear, and removes it; a clause that says what is left."""
    tag = str(step["tag"])
    if not re.fullmatch(r"gputop-llm-[0-9a-f]{16}-r\d{1,4}_", tag):
        return f"{tag!r} names no traces of ours"
    none = Call("")
    place = Endpoint("torch", str(step["folder"]), False, tag, none, none, True, False, None, _NEVER)
    traces = Traces(int(step["pid"]), place, new_only=False)
    until = time.monotonic() + min(60.0, float(step["window_s"])) + _APPEARS_S
    while not traces.found() and time.monotonic() < until:
        time.sleep(_TICK_S)
    left = traces.remove()
    return f"{', '.join(left)} stayed in {place.folder} of PID {step['pid']}" if left else None
