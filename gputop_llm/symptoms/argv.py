"""Flags that an engine was started with: what speaks for a cause, or against it."""

from __future__ import annotations

from gputop_llm.symptoms.view import EngineView


def has_flag(engine: EngineView, *names: str) -> bool | None:
    """Whether the engine was started with one of these flags; None when its command line isn't known."""
    if engine.target is None or not engine.target.argv:
        return None
    # Both engines' parsers take --a_b for --a-b, and --a=1 for --a 1.
    given = {word.partition("=")[0].replace("_", "-") for word in engine.target.argv if word.startswith("-")}
    return not given.isdisjoint(names)


def flag_number(engine: EngineView, *names: str) -> tuple[str, float] | None:
    """The first of these flags that was given with a number, and the number ("--max-num-seqs 256")."""
    argv = engine.target.argv if engine.target else ()
    for at, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if word.startswith("--") and name.replace("_", "-") in names:
            given = value if equals else argv[at + 1] if at + 1 < len(argv) else ""
            if given.isdecimal():
                return name, float(given)
    return None
