"""Ends an engine's profiler for a worker that is gone."""

from __future__ import annotations

from gputop_llm.capture.endpoint.ask import Address
from gputop_llm.capture.undo import Step
from gputop_llm.errors import GputopError

DO = "stop-profile"
_WITHIN_S = 20.0
_NOT_LET_IN = (401, 403)


def step(address: Address, path: str) -> Step:
    """What the watchdog is to do."""
    return {"do": DO, "base": address.base, "path": path, "api_key": address.api_key, "ca_file": address.ca_file}


def undo(step: Step) -> str | None:
    """Asks the engine to end its profiler; a clause that says why that failed."""
    address = Address(str(step["base"]), step.get("api_key"), step.get("ca_file"))
    try:
        reply = address.ask("POST", str(step["path"]), None, _WITHIN_S)
    except GputopError as failure:
        return f"the engine's profiler could not be ended: {failure.sentence()}"
    # Nothing else that it answers says anything: an engine whose profiler has ended may call the request wrong.
    if reply.status in _NOT_LET_IN:
        return (
            f"the engine's profiler could not be ended: it wants its API key for POST {step['path']} ({reply.status})"
        )
    return None
