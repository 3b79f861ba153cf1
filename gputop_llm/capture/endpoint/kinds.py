"""What all engines' profiler endpoints have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gputop_llm.errors import GputopError

DEFAULT_STEPS = 8
MOST_STEPS = 200


class Closed(GputopError):
    """An engine's own profiler can't be used: why not, and what opens it."""

    def __init__(self, why: str, opens: str = "") -> None:
        super().__init__("cannot use the engine's own profiler", why, opens)


@dataclass(frozen=True, slots=True)
class Setup:
    """How an engine was started, as far as it can be seen; `version` is None where it isn't known."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    version: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What a window is to be.

    Args:
        tag: letters, digits and "-" that its files are named by where that is possible.
        steps: how many engine steps, at least 1.
        cpu, shapes, memory, stacks: what to record besides the GPU.
        stage: "prefill" or "decode" where only that is wanted.
    """

    tag: str
    steps: int
    cpu: bool = True
    shapes: bool = False
    memory: bool = False
    stacks: bool = False
    stage: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A request that changes something: POST, with this body (None: none)."""

    path: str
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How one window is taken by an engine's own profiler.

    Args:
        folder: where the engine writes, in its own file system.
        owned: whether that folder is this window's alone.
        tag: what the names of this window's files begin with; "": they can't be told from others but by being new.
        start, stop: the requests.
        ends_itself: whether the engine ends it after the steps; otherwise `stop` does.
        stop_after: whether `stop` is needed even so.
        probe: a path whose GET does nothing and tells whether the endpoint is there (405), None where there is none.
        rank: where in a file's name the rank stands; group 1.
        not_a_rank: what names of files have that are no rank's.
    """

    engine: str
    folder: str
    owned: bool
    tag: str
    start: Call
    stop: Call
    ends_itself: bool
    stop_after: bool
    probe: str | None
    rank: re.Pattern[str]
    not_a_rank: re.Pattern[str] | None = None


def version_of(text: str | None) -> tuple[int, ...] | None:
    """The numbers that a version begins with: (0, 24, 0) of "0.24.0+cu130"."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


def option_of(argv: tuple[str, ...], name: str) -> str | None:
    """The value of `--name value` or `--name=value`; the last one counts."""
    found = None
    for at, word in enumerate(argv):
        if word == name and at + 1 < len(argv):
            found = argv[at + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    return found
