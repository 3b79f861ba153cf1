"""The nsys session that a process runs in, by what can be read of it: nothing is run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gputop_llm.capture.nsys.tool import distrusted
from gputop_llm.sources.procfs import ProcFs

_MOST_BYTES = 32 << 20
_LIBRARY = re.compile(rb"(/[^\n]*/)libToolsInjection(?:Proxy)?(?:64)?\.so$", re.MULTILINE)
_SESSION, _TEMPORARY = "NSYS_PROFILING_SESSION_ID", "NSYS_AGENT_TMP_DIR"


@dataclass(frozen=True, slots=True)
class Found:
    """A session.

    Args:
        session: its ID; "" where the process doesn't say it.
        tool: the binary that belongs to it.
        data: where nsys keeps what it has collected so far.
    """

    session: str
    tool: Path
    data: Path


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Why there is no session that can be used, and what would help."""

    why: str
    opens: str


_BY_RUN = "start the server by `gputop-llm run --nsys -- COMMAND`"


def session_of(pid: int, proc: ProcFs) -> Found | InTheWay:
    """The session of a process, or what is in the way."""
    try:
        library = _LIBRARY.search(proc.read(f"{pid}/maps", _MOST_BYTES))
        environment = proc.environ(pid)
    except OSError as error:
        why = f"what is loaded in it can't be read ({(error.strerror or str(error)).lower()})"
        return InTheWay(why, "run gputop-llm as root (sudo)")
    if library is None:
        return InTheWay("it was not started under nsys", _BY_RUN)
    if not _same_namespaces(pid):
        return InTheWay(
            "it runs under nsys in another container, and nsys serves its own container only",
            "run gputop-llm inside that container",
        )
    tool = Path(os.fsdecode(library[1])) / "nsys"
    if (doubt := distrusted(tool)) is not None:
        return InTheWay(f"its nsys can't be trusted: {doubt}", "install nsys as root, and start the server under that")
    session = environment.get(_SESSION, "")
    return Found(
        session if session.isdigit() else "", tool, data_of(session, {"TMPDIR": environment.get(_TEMPORARY, "")})
    )


def data_of(session: str, environment: Mapping[str, str]) -> Path:
    """Where an nsys with that environment keeps what it has collected so far in a session, by its ID."""
    return Path(environment.get("TMPDIR") or "/tmp") / "nvidia" / "nsight_systems" / f"quadd_session_{session}"


def _same_namespaces(pid: int) -> bool:
    try:
        return all(
            os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino
            for kind in ("pid", "mnt")
        )
    except OSError:
        return False


def collected_bytes(data: Path) -> int:
    """What nsys has collected so far in a session's folder, bytes."""
    total = 0
    for folder, _, names in os.walk(data):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total
