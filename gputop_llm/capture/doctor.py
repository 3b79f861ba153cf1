"""What can be captured from here, and what is in the way: per process, and for the node."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.guards import disk_at, disk_full
from gputop_llm.capture.leftovers import Mapped, mapped
from gputop_llm.capture.lock import Holder, held_by
from gputop_llm.capture.routes import routes_of
from gputop_llm.capture.way import Route
from gputop_llm.errors import NothingFound
from gputop_llm.follow import describe
from gputop_llm.model import Target
from gputop_llm.sources.owner import user_of
from gputop_llm.sources.procfs import ProcFs


@dataclass(frozen=True, slots=True)
class Process:
    """One process and the ways into it."""

    pid: int
    title: str
    user: str | None
    routes: tuple[Route, ...]


@dataclass(frozen=True, slots=True)
class Examined:
    """What can be captured.

    Args:
        target: in words; None where only the node was looked at.
        root: whether this user may do anything.
        holder: of the node's capture lock.
        folder: where captures go; `room` is why there is too little, None where there is enough.
        mapped: processes that have the client mapped; it stays until they end.
    """

    target: str | None
    processes: tuple[Process, ...]
    root: bool
    holder: Holder | None
    folder: str | None
    room: str | None
    mapped: tuple[Mapped, ...]


def examine(target: Target | None, pid: int | None, folder: Path | None, proc: ProcFs | None = None) -> Examined:
    """Looks at a target, or else at one process; and at the node. Nothing is done to either.

    Args:
        target: whose processes that use a GPU are looked at.
        pid: looked at where there is no target.
        folder: where captures go.

    Raises:
        NothingFound: there is no such process.
    """
    proc = proc or ProcFs()
    if target is not None:
        using = [p for p in target.processes if p.pid is not None and p.gpus] or [
            p for p in target.processes if p.pid is not None
        ]
        named = [(p.pid, p.title) for p in using if p.pid is not None]
    else:
        named = [] if pid is None else [(pid, "")]
    return Examined(
        target=describe(target) if target is not None else None,
        processes=tuple(_process(number, title, proc, target) for number, title in named),
        root=os.geteuid() == 0,
        holder=held_by(),
        folder=None if folder is None else str(folder),
        room=_room(folder),
        mapped=mapped(proc),
    )


def _process(pid: int, title: str, proc: ProcFs, target: Target | None) -> Process:
    try:
        stat = proc.stat(pid)
    except (OSError, ValueError):
        raise NothingFound(f"there is no process {pid}", "it has ended, or is hidden from this user") from None
    return Process(pid, title or stat.comm, user_of(proc, pid), routes_of(pid, stat.start_ticks, proc, target))


def _room(folder: Path | None) -> str | None:
    if folder is None:
        return "this user has no home directory; name a place with --output"
    try:
        return disk_full(disk_at(folder))
    except OSError as error:
        return (error.strerror or str(error)).lower()
