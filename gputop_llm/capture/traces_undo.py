"""Removes traces that a process writes for a worker that is gone."""

from __future__ import annotations

import os
import re
import time

from gputop_llm.capture.endpoint.files import Traces
from gputop_llm.capture.endpoint.kinds import Call, Endpoint
from gputop_llm.capture.undo import Step

DO = "remove-traces"
#: From the order to the trace: two questions may be needed, one every 5 s; then it warms up, and sorts.
_APPEARS_S = 25.0
#: One that has not grown for so long, nor got others beside it, is the last.
_STILL_S = 1.0
_NEVER = re.compile(r"(?!)")
_NAME = r"gputop-llm-[0-9a-f]{16}"
_TICK_S = 0.2


def step(pid: int, place: Endpoint, window_s: float, traces: int = 1) -> Step:
    """What the watchdog is to do.

    Args:
        place: whose traces can be told from others, by their tag or their folder.
        traces: how many there will be.
    """
    where = {"folder": place.folder, "owned": place.owned, "tag": place.tag}
    return {"do": DO, "pid": pid, **where, "window_s": window_s, "traces": traces}


def undo(step: Step) -> str | None:
    """Waits for the traces to appear, and removes them; a clause that says what is left."""
    folder, tag, owned = str(step["folder"]), str(step["tag"]), bool(step.get("owned"))
    if not (re.fullmatch(f"/tmp/{_NAME}", folder) if owned else re.fullmatch(rf"{_NAME}(-r\d{{1,4}}_)?", tag)):
        return f"{folder}/{tag} names no traces of ours"
    none = Call("")
    place = Endpoint("torch", folder, owned, tag, none, none, True, False, None, _NEVER)
    traces = Traces(int(step["pid"]), place, new_only=False)
    until = time.monotonic() + min(60.0, float(step["window_s"])) + _APPEARS_S
    seen, since = traces.found(), time.monotonic()
    while time.monotonic() < until and os.path.exists(f"/proc/{step['pid']}"):
        time.sleep(_TICK_S)
        if (now := traces.found()) != seen:
            seen, since = now, time.monotonic()
        if len(seen) >= int(step.get("traces", 1)) and time.monotonic() - since >= _STILL_S:
            break
    left = traces.remove()
    return f"{', '.join(left)} stayed in {folder} of PID {step['pid']}" if left else None
