"""What ends a capture whose own process is gone: done by its watchdog, or by `doctor --leftovers` when that died too.

A step is a JSON object: `do` names it, the rest are its arguments. Steps are bounded in time, safe to do twice, and
never signal, restart or end the target.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]

#: Where each step is done: a module with `undo(step) -> str | None`, a clause that says why it could not be.
_DOERS: dict[str, str] = {
    "stop-profile": "gputop_llm.capture.endpoint_undo",
    "remove-traces": "gputop_llm.capture.traces_undo",
    "nsys-stop": "gputop_llm.capture.nsys.collection",
}
#: Arguments that are handed to the watchdog and written nowhere.
_SECRETS = ("api_key",)


def undo(steps: Sequence[Step]) -> tuple[str, ...]:
    """Does the steps in order, each whatever became of the others; returns clauses of what could not be undone."""
    failed = []
    for step in steps:
        name = str(step.get("do"))
        if name not in _DOERS:
            failed.append(f"this version can't undo {name!r}")
            continue
        try:
            doer: Callable[[Step], str | None] = importlib.import_module(_DOERS[name]).undo
            why = doer(step)
        except Exception as bug:  # noqa: BLE001 - the next step must be done all the same
            why = f"{name}: {type(bug).__name__}: {bug}"
        if why is not None:
            failed.append(why)
    return tuple(failed)


def public(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps as they may be written down."""
    return [{name: value for name, value in step.items() if name not in _SECRETS} for step in steps]


def steps_in(facts: Mapping[str, Any]) -> list[Step]:
    """The steps that a capture's facts name; none where they name nothing usable."""
    steps = facts.get("undo")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []
