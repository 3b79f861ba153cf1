"""Which process is on which GPU.

NVML says it by PID, and that is the truth where its PIDs are ours. Inside a
container some drivers translate PIDs and leave out those of other containers
(580 does), others name the host's PIDs, or nobody; there it is inferred from the
device files that a process has open, CUDA_VISIBLE_DEVICES, and its rank. Every
process of an engine may have all device files open, so open files alone only
count when there is just one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gputop_llm.model import Gpu, GpuNode
from gputop_llm.sources.procfs import ProcFs, printable
from gputop_llm.sources.vllm_processes import Member, Tree, read_title

INFERRED_NOTE = (
    "NVML does not name its PIDs here: its GPUs are inferred from open device files, CUDA_VISIBLE_DEVICES and ranks, "
    "and how much of their memory is its own isn't known"
)
NEEDS_RIGHTS = "needs root or the same user"

_WINDOWS_DRIVER = "/dev/dxg"
_DEVICE = re.compile(r"/dev/nvidia(\d+)$")
_MINOR = re.compile(r"Device Minor:\s*(\d+)")
_UUID = re.compile(r"GPU UUID:\s*(\S+)")
_RANK = re.compile(r"(DP|PP|TP)(\d+)")


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The GPUs of one process; `source` as in TargetProcess.gpus_from."""

    gpus: tuple[int, ...] = ()
    source: str | None = None
    mig_instance: int | None = None
    mem_bytes: int | None = None
    note: str | None = None


def uses_by_nvml(node: GpuNode | None) -> dict[int, GpuUse]:
    """What NVML says, by its PIDs; programs that only draw (an X server) are left out."""
    listed: dict[int, dict[tuple[int, int | None], int | None]] = {}
    for gpu in node.gpus if node else ():
        on_slices = (process for instance in gpu.mig_instances for process in instance.processes)
        for process in (*on_slices, *(gpu.processes or ())):
            if process.kind != "graphics":
                # The parent GPU may list once more, without a slice, what its slices list.
                places = listed.setdefault(process.pid, {})
                if process.gpu_instance is not None or not any(index == gpu.index for index, _ in places):
                    places.setdefault((gpu.index, process.gpu_instance), process.mem_bytes)
    uses = {}
    for pid, places in listed.items():
        slices = {instance for _, instance in places if instance is not None}
        uses[pid] = GpuUse(
            gpus=tuple(sorted({index for index, _ in places})),
            source="nvml",
            mig_instance=slices.pop() if len(slices) == 1 else None,
            mem_bytes=None if None in places.values() else sum(size for size in places.values() if size is not None),
        )
    return uses


class GpuInference:
    """Infers GPUs where NVML can't be asked by PID; remembers what it found while the process lives."""

    RETRY_LOOKS = 5

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._found: dict[tuple[int, int], tuple[GpuUse, int]] = {}
        self._look = 0

    def begin(self, alive: set[tuple[int, int]]) -> None:
        """Starts a new look; `alive` are (PID, start) of all processes that may be asked for."""
        self._look += 1
        self._found = {key: value for key, value in self._found.items() if key in alive}

    def use(self, tree: Tree, member: Member, node: GpuNode | None) -> GpuUse:
        """The GPUs of a member of an engine; empty for members that don't compute."""
        if member.process.zombie or not _computes(tree, member):
            return GpuUse()
        key = (member.process.pid, member.process.start_ticks)
        found, at = self._found.get(key, (GpuUse(), -self.RETRY_LOOKS))
        if not found.gpus and self._look - at >= self.RETRY_LOOKS:
            found = self._infer(tree, member, node)
            self._found[key] = (found, self._look)
        return found

    def opens_gpu(self, pid: int) -> bool | None:
        """True if the process has an NVIDIA device (under WSL: the Windows driver) open; None if that can't be seen."""
        try:
            return any(name.startswith(("/dev/nvidia", _WINDOWS_DRIVER)) for name in self._proc.open_files(pid))
        except OSError:
            return None

    def _infer(self, tree: Tree, member: Member, node: GpuNode | None) -> GpuUse:
        opened = self._opened(member.process.pid, node)
        if opened is not None and not opened:
            return GpuUse()
        visible, own = self._visible(tree, member, node)
        if opened is not None and len(opened) == 1:
            (index,) = opened
            slices = [instance for gpu, instance in visible or () if gpu == index]
            return GpuUse((index,), "inferred", mig_instance=slices[0] if len(slices) == 1 else None)
        slot = _slot(tree, member, own)
        if visible is not None and slot is not None and slot < len(visible):
            index, instance = visible[slot]
            if opened is None or index in opened:
                return GpuUse((index,), "inferred", mig_instance=instance)
        if opened is None:
            return GpuUse(note=f"its GPU can't be told: {NEEDS_RIGHTS}")
        names = ", ".join(str(index) for index in sorted(opened))
        return GpuUse(note=f"has the GPUs {names} open; which of them it computes on can't be told from here")

    def _opened(self, pid: int, node: GpuNode | None) -> set[int] | None:
        """NVML indices of the GPUs whose device files are open; None if that can't be seen."""
        try:
            names = self._proc.open_files(pid)
        except OSError:
            return None
        if _WINDOWS_DRIVER in names and node is not None and len(node.gpus) == 1:
            return {node.gpus[0].index}
        minors = {int(found[1]) for name in names if (found := _DEVICE.match(name))}
        if not minors or node is None or not node.gpus:
            return minors
        by_minor = self._by_minor(node)
        indices = {gpu.index for gpu in node.gpus}
        if by_minor:
            return {by_minor[minor] for minor in minors if minor in by_minor}
        return minors & indices or ({node.gpus[0].index} if len(indices) == 1 else set())

    def _by_minor(self, node: GpuNode) -> dict[int, int]:
        """NVML index by device number: /dev/nvidia3 may well be the only GPU of a container, with index 0."""
        index_of = {gpu.uuid: gpu.index for gpu in node.gpus if gpu.uuid}
        by_minor = {}
        try:
            for bus in self._proc.names("driver/nvidia/gpus"):
                text = printable(self._proc.read(f"driver/nvidia/gpus/{bus}/information"))
                minor, uuid = _MINOR.search(text), _UUID.search(text)
                if minor and uuid and uuid[1] in index_of:
                    by_minor[int(minor[1])] = index_of[uuid[1]]
        except OSError:
            return {}
        return by_minor

    def _visible(
        self, tree: Tree, member: Member, node: GpuNode | None
    ) -> tuple[list[tuple[int, int | None]] | None, bool]:
        """What CUDA_VISIBLE_DEVICES allows, in CUDA's order, and whether the list is the process's own.

        A titled process has overwritten its environment; the root's then counts.
        """
        if node is None or not node.gpus:
            return None, False
        own, root = self._environ(member.process.pid), self._environ(tree.root.pid)
        environ = own if "CUDA_VISIBLE_DEVICES" in own else root
        text = environ.get("CUDA_VISIBLE_DEVICES")
        if text is None:
            known = "PATH" in environ or len(node.gpus) == 1
            return ([(gpu.index, _only_instance(gpu)) for gpu in node.gpus] if known else None), False
        mixed = len({gpu.name for gpu in node.gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        return resolve_visible(text, node, mixed), text != root.get("CUDA_VISIBLE_DEVICES")

    def _environ(self, pid: int) -> dict[str, str]:
        try:
            return self._proc.environ(pid)
        except OSError:
            return {}


def resolve_visible(text: str, node: GpuNode, mixed: bool = False) -> list[tuple[int, int | None]] | None:
    """CUDA_VISIBLE_DEVICES as (NVML index, MIG instance) in CUDA's order, up to the first name that is none.

    None when plain numbers don't say which GPU is meant: `mixed` models are numbered by speed.
    """
    visible: list[tuple[int, int | None]] = []
    for name in (item.strip() for item in text.split(",")):
        if name.isdigit():
            if mixed:
                return None
            if int(name) >= len(node.gpus):
                break
            gpu = node.gpus[int(name)]
            visible.append((gpu.index, _only_instance(gpu)))
        elif (place := _named(name, node)) is not None:
            visible.append(place)
        else:
            break
    return visible


def _only_instance(gpu: Gpu) -> int | None:
    """The MIG instance where there is but one: a container sees only those that it may use."""
    return gpu.mig_instances[0].gpu_instance if len(gpu.mig_instances) == 1 else None


def _named(name: str, node: GpuNode) -> tuple[int, int | None] | None:
    """A GPU or MIG instance by its UUID (the start of it is enough), also in the old form MIG-GPU-…/1/0."""
    parent, _, slices = name.partition("/")
    for gpu in node.gpus:
        if slices and gpu.uuid and parent == f"MIG-{gpu.uuid}":
            instance = slices.partition("/")[0]
            return (gpu.index, int(instance)) if instance.isdigit() else None
        if name.startswith("GPU-") and gpu.uuid and gpu.uuid.startswith(name):
            return gpu.index, None
        for mig in gpu.mig_instances:
            if name.startswith("MIG-") and mig.uuid and mig.uuid.startswith(name):
                return gpu.index, mig.gpu_instance
    return None


def _computes(tree: Tree, member: Member) -> bool:
    """Workers compute; an engine core only if it has no workers; the root only if it is alone."""
    if member.role == "worker":
        return True
    workers = [m for m in tree.members if m.role == "worker"]
    if member.role == "engine-core":
        # Before titles came (V0), the engine process was the first worker itself.
        own = [w for w in workers if w.process.ppid == member.process.pid or w.process.title.startswith("ray::")]
        return read_title(member.process) is None or not own
    if member.process.pid != tree.root.pid:
        return False
    return (tree.launch is not None and tree.launch.engine_in_root) or len(tree.members) == 1


def _slot(tree: Tree, member: Member, own_list: bool) -> int | None:
    """The place in CUDA_VISIBLE_DEVICES that a rank takes: DP, then PP, then TP, the last changing fastest.

    With a list of its own, a DP replica counts from 0. None when the process has no title to tell its rank.
    """
    if read_title(member.process) is None:
        return 0 if len(tree.members) == 1 else None
    ranks = _ranks(member)
    replicas = [_ranks(m).get("DP", 0) for m in tree.members if m.role in ("worker", "engine-core")]
    tensor = _size(tree.members, "TP", tree.launch.tensor_parallel if tree.launch else 1)
    pipeline = _size(tree.members, "PP", tree.launch.pipeline_parallel if tree.launch else 1)
    within = ranks.get("PP", 0) * tensor + ranks.get("TP", 0)
    return within if own_list else (ranks.get("DP", 0) - min(replicas)) * tensor * pipeline + within


def _ranks(member: Member) -> dict[str, int]:
    return {name: int(number) for name, number in _RANK.findall(member.rank or "")}


def _size(members: Sequence[Member], name: str, at_least: int) -> int:
    return max(at_least, *(_ranks(m).get(name, 0) + 1 for m in members))
