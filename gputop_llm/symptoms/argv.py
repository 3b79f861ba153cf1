"""Flags that an engine was started with: what speaks for a cause, or against it."""

from __future__ import annotations

from gputop_llm.symptoms.view import EngineView


def has_flag(engine: EngineView, *names: str) -> bool | None:
    """Whether the engine was started with one of these flags; None when its command line isn't known."""
    if engine.target is None or not engine.target.argv:
        return None
    # Both engines' parsers take --a_b for --a-b, and --a=1 for --a 1.
    given = {word.partition("=")[0].replace("_", "-") for word in engine.target.argv if word.startswith("--")}
    return not given.isdisjoint(names)
