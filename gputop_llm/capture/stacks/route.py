"""Python stacks as a way into a process, for `doctor`: whether they can be read is found out by reading them once."""

from __future__ import annotations

from gputop_llm.capture.stacks import looking
from gputop_llm.capture.way import Route, Seen
from gputop_llm.errors import GputopError

_KEY, _TITLE = "py-spy", "Python stacks by py-spy (gputop-llm stacks, capture --stacks)"


def look(seen: Seen) -> Route:
    """The route into a process; it is not stopped for it."""
    try:
        report = looking.report("", [looking.Seen(seen.pid, "", "process")], looks=1)
    except GputopError as missing:
        return Route(_KEY, _TITLE, "closed", missing.why, missing.todo)
    refused = report.processes[0].unreadable
    if refused is not None:
        return Route(_KEY, _TITLE, "closed", refused.why, refused.todo)
    return Route(_KEY, _TITLE, "open")
