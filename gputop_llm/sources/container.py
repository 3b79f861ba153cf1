"""Which container and which pod a process runs in, seen from the node or from within."""

from __future__ import annotations

import re

from gputop_llm.sources.procfs import INITIAL_UTS_NAMESPACE, ProcFs, printable
from gputop_llm.sources.rootfs import RootFs

_ID = re.compile(
    r"(?:(docker|cri-containerd|crio|libpod|containerd)-|/(docker|libpod|lxc|crio)[/-])?([0-9a-f]{64})(?:\.scope)?"
)
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")
# What Kubernetes allows.
_POD_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_LXC = re.compile(r"/lxc(?:\.payload)?[./]([^/\n]+)")
# Docker, Podman and the kubelet write these files for each container or pod, and mount them into it.
_MANAGED_FILES = ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf")
_CONTAINER_FILES = re.compile(r"/(?:(overlay)-)?containers/([0-9a-f]{64})/")
_POD_FILES = re.compile(r"/pods/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/")
_SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_NAME_MAX_BYTES = 512
_RUNTIME = {"cri-containerd": "containerd", "libpod": "podman", "crio": "cri-o"}
_SHORT_ID = 12


def container_of(proc: ProcFs, pid: int) -> str | None:
    """The container in words ("docker 3f2a91c04b7d, pod shop/vllm-0"); None outside of one.

    By the control group's path, which a container that is looked at from within does not show; there by the files
    that its runtime mounts. A pod goes by its name where the process's environment or files tell it, else by its UID.
    """
    try:
        cgroup = printable(proc.read(f"{pid}/cgroup"))
    except OSError:
        return None
    found, uid = _container_in(cgroup), _POD.search(cgroup)
    if _from_within(cgroup):
        found, uid = _by_mounts(proc, pid)
    if uid is None:
        return found
    pod = f"pod {_pod_name(proc, pid) or uid[1].replace('_', '-')}"
    return f"{found}, {pod}" if found else pod


def _from_within(cgroup: str) -> bool:
    """Whether the paths begin at the container's own group, or beside it, and so name nothing."""
    paths = [path for line in cgroup.splitlines() if (path := line.split(":", 2)[-1])]
    return all(path == "/" or path.startswith("/..") for path in paths)


def _container_in(cgroup: str) -> str | None:
    """The container that the paths of a /proc/PID/cgroup name."""
    found = _id_in(cgroup)
    if found is not None:
        runtime = found[1] or found[2] or ("containerd" if _POD.search(cgroup) else "container")
        return f"{_RUNTIME.get(runtime, runtime)} {found[3][:_SHORT_ID]}"
    lxc = _LXC.search(cgroup)
    return f"lxc {lxc[1]}" if lxc is not None else None


def container_id(cgroup: str) -> str | None:
    """The whole ID of the container that the paths of a /proc/PID/cgroup name: 64 hexadecimal digits."""
    found = _id_in(cgroup)
    return None if found is None else found[3]


def _id_in(cgroup: str) -> re.Match[str] | None:
    return max(_ID.finditer(cgroup), key=lambda match: bool(match[1] or match[2]), default=None)


def _by_mounts(proc: ProcFs, pid: int) -> tuple[str | None, re.Match[str] | None]:
    """The container and the pod's UID, by where the /etc/hostname and /etc/hosts of a process come from."""
    try:
        mounts = [line.split() for line in printable(proc.read(f"{pid}/mountinfo")).splitlines()]
    except OSError:
        return None, None
    sources = [fields[3] for fields in mounts if len(fields) > 4 and fields[4] in _MANAGED_FILES]
    uid = next((match for source in sources if (match := _POD_FILES.search(source))), None)
    own = next((match for source in sources if (match := _CONTAINER_FILES.search(source))), None)
    # In a pod the files are the sandbox's, whose number is not the container's.
    if uid is not None or own is None:
        return None, uid
    return f"{'podman' if own[1] else 'docker'} {own[2][:_SHORT_ID]}", None


def _pod_name(proc: ProcFs, pid: int) -> str | None:
    """ "namespace/name", as far as they are known; None if the pod has the node's own host name, or can't be read."""
    try:
        environ = proc.environ(pid)
        named = proc.link(f"{pid}/ns/uts") != INITIAL_UTS_NAMESPACE
    except OSError:
        return None
    in_cluster = "KUBERNETES_SERVICE_HOST" in environ
    names = (
        environ.get("POD_NAME") if in_cluster else None,
        _inside(proc, pid, "/etc/hostname") if named else None,
        environ.get("HOSTNAME") if in_cluster and named else None,
    )
    name = next((name for name in names if name and _POD_NAME.fullmatch(name)), None)
    if name is None:
        return None
    space = environ.get("POD_NAMESPACE") or _inside(proc, pid, f"{_SERVICE_ACCOUNT}/namespace")
    return f"{space}/{name}" if space and _POD_NAME.fullmatch(space) else name


def _inside(proc: ProcFs, pid: int, path: str) -> str | None:
    """A short file as the process sees it; None if it can't be read."""
    try:
        with RootFs(f"{proc.root}/{pid}/root") as root:
            return printable(root.read(path, _NAME_MAX_BYTES)).strip()
    except OSError:
        return None
