"""How the scenarios of symptoms are written: one call each, on the same timetable unless it says otherwise."""

from __future__ import annotations

from typing import Any

from gputop_llm.demo.cause import Cause
from gputop_llm.demo.script import Scenario
from gputop_llm.demo.traffic import CHAT, Stream

FROM_S, TO_S, EVERY_S = 20.0, 65.0, 150.0
"""When the cause of a symptom begins and ends, and when all begins again."""


def raising(symptom: str, about: str, variant: str = "", **script: Any) -> Scenario:
    """A scenario that raises the symptom; `script` is as for `Scenario` and `Cause`."""
    name = f"{symptom}-{variant}" if variant else symptom
    return _scenario(name, about, raises=symptom, **script)


def near_miss(symptom: str, about: str, variant: str = "", **script: Any) -> Scenario:
    """A scenario that does everything but raise the symptom."""
    name = f"{symptom}-{variant}" if variant else symptom
    return _scenario(f"{name}-near-miss", about, nearly=symptom, **script)


def in_between(stream: Stream, rate: float, otherwise: float = 0.0) -> Stream:
    """The stream at `rate` requests per second while the cause holds, and at another one the rest of the time."""
    return stream.at((0.0, otherwise), (FROM_S, rate), (TO_S, otherwise), every_s=EVERY_S)


_OF_CAUSE = ("pace", "page", "readings", "counters", "restart", "restart_after")


def _scenario(
    name: str,
    about: str,
    when: tuple[float, float] = (FROM_S, TO_S),
    every_s: float = EVERY_S,
    lasts: tuple[float, float] | None = None,
    **script: Any,
) -> Scenario:
    """`lasts` is when the cause holds, where that is not `when` the symptom has one."""
    of_cause = {field: script.pop(field) for field in _OF_CAUSE if field in script}
    usual = script.pop("usual", None)
    if usual is not None:
        script["pace"] = usual
    cause = Cause(*(lasts or when), every_s, **of_cause) if of_cause else None
    return Scenario(name=name, about=about, cause=cause, when=when, **{"streams": (CHAT,), **script})
