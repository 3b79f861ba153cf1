"""Which container a process runs in, and whether its network and PIDs are ours."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gputop_llm.sources.procfs import INITIAL_PID_NAMESPACE, ProcFs, printable

_ID = re.compile(
    r"(?:(docker|cri-containerd|crio|libpod|containerd)-|/(docker|libpod|lxc|crio)[/-])?([0-9a-f]{64})(?:\.scope)?"
)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
# What Kubernetes allows.
_POD_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LXC = re.compile(r"/lxc(?:\.payload)?[./]([^/\n]+)")
_RUNTIME = {"cri-containerd": "containerd", "libpod": "podman", "crio": "cri-o"}
_SHORT_ID = 12
_LISTEN = "0A"


def container_of(proc: ProcFs, pid: int) -> str | None:
    """The container in words ("docker 3f2a91c04b7d"); None outside of one, or if it can't be seen from inside.

    A pod by its name where the process's environment has that, else by its UID.
    """
    try:
        cgroup = printable(proc.read(f"{pid}/cgroup"))
    except OSError:
        return None
    return container_in(cgroup, _pod_name(proc, pid) if _POD.search(cgroup) else None)


def _pod_name(proc: ProcFs, pid: int) -> str | None:
    """The name that Kubernetes gives the pod's host; None if the pod has the node's own, or if it can't be read."""
    try:
        environ = proc.environ(pid)
        if "KUBERNETES_SERVICE_HOST" not in environ:
            return None
        name = environ.get("POD_NAME")
        if name is None and proc.link(f"{pid}/ns/uts") != proc.link("1/ns/uts"):
            name = environ.get("HOSTNAME")
    except OSError:
        return None
    return name if name is not None and _POD_NAME.fullmatch(name) else None


def container_in(cgroup: str, pod_name: str | None = None) -> str | None:
    """The container that the paths of a /proc/PID/cgroup name, its pod by `pod_name` where that is known."""
    pod = _POD.search(cgroup)
    found = _id_in(cgroup)
    words = []
    if found is not None:
        runtime = found[1] or found[2] or ("containerd" if pod else "container")
        words.append(f"{_RUNTIME.get(runtime, runtime)} {found[3][:_SHORT_ID]}")
    elif (lxc := _LXC.search(cgroup)) is not None:
        words.append(f"lxc {lxc[1]}")
    if pod is not None:
        words.append(f"pod {pod_name or pod[1].replace('_', '-')}")
    return ", ".join(words) or None


def container_id(cgroup: str) -> str | None:
    """The whole ID of the container that the paths of a /proc/PID/cgroup name: 64 hexadecimal digits."""
    found = _id_in(cgroup)
    return None if found is None else found[3]


def _id_in(cgroup: str) -> re.Match[str] | None:
    return max(_ID.finditer(cgroup), key=lambda match: bool(match[1] or match[2]), default=None)


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
    """The PID that a process has inside its own container (NSpid); None if it is the same as here."""
    try:
        numbers = proc.status(pid).get("NSpid", "").split()
    except OSError:
        return None
    return int(numbers[-1]) if len(numbers) > 1 else None
