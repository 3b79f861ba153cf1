"""What the program knows of one engine: its metrics page and its processes. One module here declares one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gputop_llm.model import EngineReading
from gputop_llm.sources.launch import Launch
from gputop_llm.sources.promtext import Samples


def _no_launch(_argv: Sequence[str]) -> Launch | None:
    return None


def _no_role(_title: str, _argv: Sequence[str]) -> tuple[str, str | None] | None:
    return None


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine; all functions are pure.

    Args:
        name: as it stands in JSON, in advice and in the names of screens.
        prefixes: how the names on its page begin; no other engine's may begin so.
        needed: the sample names that `read` looks at.
        read: a page, parsed for them, and the server's version where known, to a reading whose `problem` is None.
        read_json: the same of a page that is JSON; raises ValueError for one that is another's. None if it has none.
        nothing: what a page means that has its names and not one of the needed ones.
        version_paths: where its server tells {"version": …}, beside /metrics; the next where one isn't there.
        version_field: under which key, if not "version".
        launch: what a command line starts; None if it isn't this engine.
        role: role and rank of one of its processes by title and command line; None if that isn't one.
        packages: its names as a Python distribution.
        nested: a server below another is an engine of its own (a router that starts servers).
    """

    name: str
    prefixes: tuple[str, ...]
    needed: frozenset[str]
    read: Callable[[Samples, str | None], EngineReading]
    read_json: Callable[[object], EngineReading] | None = None
    nothing: str = ""
    version_paths: tuple[str, ...] = ()
    version_field: str = "version"
    launch: Callable[[Sequence[str]], Launch | None] = _no_launch
    role: Callable[[str, Sequence[str]], tuple[str, str | None] | None] = _no_role
    packages: tuple[str, ...] = ()
    nested: bool = False
