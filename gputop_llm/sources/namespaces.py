"""Which namespaces of a process are ours, too: its PIDs, its network, its files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.sources.container import container_of
from gputop_llm.sources.procfs import INITIAL_PID_NAMESPACE, ProcFs, printable

_LISTEN = "0A"


@dataclass(frozen=True, slots=True)
class Visibility:
    """What of the node's processes can be seen from here.

    `initial_pids` is false in a container with PIDs of its own, None if unknown.
    `hidepid` is how /proc hides other users' processes ("2", "invisible", …), None if it doesn't.
    """

    initial_pids: bool | None
    hidepid: str | None


def visibility(proc: ProcFs) -> Visibility:
    """What can be seen in this /proc."""
    try:
        initial: bool | None = proc.link("self/ns/pid") == INITIAL_PID_NAMESPACE
    except OSError:
        initial = None
    try:
        mounts = printable(proc.read("self/mountinfo")).splitlines()
    except OSError:
        mounts = []
    hidden = None
    for fields in (line.split() for line in mounts):
        # … mount point is the fifth field, the options of the file system are the last.
        if len(fields) > 4 and fields[4] == "/proc" and (found := re.search(r"\bhidepid=(\w+)", fields[-1])):
            hidden = found[1] if found[1] not in ("0", "off") else None
    return Visibility(initial, hidden)


def same_network(proc: ProcFs, pid: int) -> bool | None:
    """True if 127.0.0.1 of that process is ours; None if it can't be told.

    The namespace link needs rights; without them the listening sockets are
    compared, whose inode numbers are unique on the machine.
    """
    try:
        return proc.link(f"{pid}/ns/net") == proc.link("self/ns/net")
    except OSError:
        pass
    try:
        theirs, ours = _listening(proc, str(pid)), _listening(proc, "self")
    except OSError:
        return None
    return bool(theirs & ours) if theirs else None


def _listening(proc: ProcFs, who: str) -> set[str]:
    rows = (line.split() for line in printable(proc.read(f"{who}/net/tcp")).splitlines()[1:])
    return {fields[9] for fields in rows if len(fields) > 9 and fields[3] == _LISTEN}


def container_pid(proc: ProcFs, pid: int) -> int | None:
    """The PID that a process has in its own PID namespace (NSpid); None if that is ours, too."""
    try:
        numbers = proc.status(pid).get("NSpid", "").split()
    except OSError:
        return None
    return int(numbers[-1]) if len(numbers) > 1 else None


def same_files(proc: ProcFs, pid: int) -> bool:
    """True if the process's paths are ours, too."""
    try:
        return proc.link(f"{pid}/ns/mnt") == proc.link("self/ns/mnt")
    except OSError:
        return container_of(proc, pid) is None
