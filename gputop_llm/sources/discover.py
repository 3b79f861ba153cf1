"""Finds what can be watched on this node: engines, and whatever else holds GPU memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gputop_llm.clock import Clock, SystemClock
from gputop_llm.errors import SourceError
from gputop_llm.model import GpuNode, Target, TargetList, TargetProcess
from gputop_llm.redact_argv import redact_argv, redact_text
from gputop_llm.sources import namespaces
from gputop_llm.sources.container import container_of
from gputop_llm.sources.cuda_processes import cuda_targets, zombie_note
from gputop_llm.sources.dist_info import installed_version
from gputop_llm.sources.engine_processes import find_engine_trees
from gputop_llm.sources.engines import ENGINES
from gputop_llm.sources.gpu_map import INFERRED_NOTE, GpuInference, GpuUse, uses_by_nvml
from gputop_llm.sources.http_ports import PortFinder
from gputop_llm.sources.own_network import leads_to, reachable
from gputop_llm.sources.owner import user_of
from gputop_llm.sources.process_table import Process, ProcessTable
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.sources.ray_workers import RANKS_BY_GPU, ranked, with_ray_workers
from gputop_llm.sources.torch_process import TorchProcesses
from gputop_llm.sources.vllm_processes import Member, Tree, find_trees

STARTING_S, AGAIN_S = 300.0, 15.0
ORPHAN_NOTE = (
    "orphan: the server that started it was killed, and what is left still runs (and holds its GPU memory) "
    "under PID 1; end these processes by hand if nobody needs them"
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What doesn't change while an engine lives, read once.

    A process that has just begun may not show its environment yet: it is looked at again then.
    """

    again_s: float | None
    version: str | None
    container: str | None
    user: str | None
    same_network: bool | None


class DiscoverySource:
    """Finds targets. A look at 300 processes costs about 1 ms once they are known.

    Args:
        gpus: the newest reading of the GPUs, None while there is none.
        probe: says whether the /metrics of a base URL answers as an engine's, within bounded time.
        proc_root: where /proc is mounted.
        clock: time, for tests.
    """

    name = "discovery"
    deadline_s = 10.0

    def __init__(
        self,
        gpus: Callable[[], GpuNode | None],
        probe: Callable[[str], bool],
        proc_root: str = "/proc",
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock = clock or SystemClock()
        self._gpus = gpus
        self._proc = ProcFs(proc_root)
        self._table = ProcessTable(self._proc, clock)
        self._stop = threading.Event()
        self._ports = PortFinder(self._proc, probe, clock, self._stop)
        self._other_ports = PortFinder(self._proc, probe, clock, self._stop, reachable, leads_to)
        self._inference = GpuInference(self._proc)
        self._torch = TorchProcesses(self._proc, clock)
        self._facts: dict[tuple[int, int, tuple[str, ...]], _Facts] = {}
        self._inner_pids: dict[tuple[int, int], int | None] = {}
        self._opens_gpu: set[tuple[int, int]] = set()
        self._interesting: set[int] = set()

    def poll(self) -> TargetList:
        """Looks once at all processes.

        Raises:
            SourceError: /proc can't be read at all.
        """
        self._stop.clear()
        try:
            processes = self._table.look(self._interesting)
        except OSError as error:
            raise SourceError(
                "cannot look for engines", f"{self._proc.root} can't be read ({error.strerror})", "mount /proc"
            ) from error
        seen = namespaces.visibility(self._proc)
        node = self._gpus()
        trees = find_trees(processes)
        trees += find_engine_trees(processes, {m.process.pid for tree in trees for m in tree.members})
        trees = with_ray_workers(trees, processes)
        inside = {m.process.pid for tree in trees for m in tree.members}
        uses = uses_by_nvml(node)
        if not seen.initial_pids:
            # NVML may name host PIDs, and a number may by chance be one of ours too.
            uses = {pid: use for pid, use in uses.items() if pid not in processes or self._plausible(processes[pid])}
        self._forget_all_but(
            {(processes[pid].pid, processes[pid].start_ticks) for pid in inside | uses.keys() if pid in processes}
        )
        infer = node is not None and (not seen.initial_pids or any(gpu.processes is None for gpu in node.gpus))
        targets = [self._engine(tree, uses, node if infer else None, infer) for tree in trees]
        others, notes = cuda_targets(self._proc, uses, processes, self._table.denied, inside, seen, self._torch.remark)
        self._interesting = inside | uses.keys()
        return TargetList((*(target for target in targets if target is not None), *others), notes)

    def _engine(self, tree: Tree, uses: Mapping[int, GpuUse], node: GpuNode | None, infer: bool) -> Target | None:
        """The target that a tree is; None for one that has ended and holds nothing."""
        root = tree.root
        key = f"{tree.engine}:{root.pid}:{root.start_ticks}"
        facts = self._facts_of(tree)
        seen = [
            (m, uses.get(m.process.pid) or (self._inference.use(tree, m, node) if infer else GpuUse()))
            for m in tree.members
        ]
        placed = ranked(tree, seen)
        attachable = None
        if all(m.process.zombie for m in tree.members):
            if all(use.mem_bytes is None for _, use in placed):
                return None
            attachable = zombie_note(root, next(use for _, use in placed if use.mem_bytes is not None))
        urls, urls_from, notes = self._addresses(tree, facts)
        if placed != seen:
            notes += (RANKS_BY_GPU,)
        if any(use.source == "inferred" for _, use in placed):
            notes += (INFERRED_NOTE,)
        servers, root_role = tree.api_servers, None
        if urls_from in ("socket", "network") and servers is None:
            servers, root_role = 1, "api-server"
        return Target(
            key=key,
            engine=tree.engine,
            root_pid=root.pid,
            argv=() if tree.launch is None and "::" in root.title else redact_argv(root.argv),
            model=tree.launch.model if tree.launch else None,
            version=facts.version,
            urls=urls,
            urls_from=urls_from,
            processes=tuple(
                self._process(m, use, facts, root_role if m.process is root else None) for m, use in placed
            ),
            api_servers=servers,
            container=facts.container,
            user=facts.user,
            started_s=self._proc.start_s(root.start_ticks),
            orphan=tree.orphan,
            attachable=attachable,
            notes=((ORPHAN_NOTE,) if tree.orphan else ()) + (tree.launch.notes if tree.launch else ()) + notes,
        )

    def _process(self, member: Member, use: GpuUse, facts: _Facts, role: str | None) -> TargetProcess:
        process = member.process
        titled = "::" in process.title
        return TargetProcess(
            pid=process.pid,
            ppid=process.ppid,
            role=role or member.role,
            title=redact_text(process.title) if titled else " ".join(redact_argv(process.argv)) or process.comm,
            rank=member.rank,
            gpus=use.gpus,
            gpus_from=use.source,
            mig_instance=use.mig_instance,
            mem_bytes=use.mem_bytes,
            nvml_pid=process.pid if use.source == "nvml" else None,
            state=process.state,
            start_s=self._proc.start_s(process.start_ticks),
            note=zombie_note(process, use) if process.zombie else use.note,
            container_pid=self._container_pid(process),
        )

    def _addresses(self, tree: Tree, facts: _Facts) -> tuple[tuple[str, ...], str | None, tuple[str, ...]]:
        """URLs, where they are from, and what is to be said when there are none."""
        launch = tree.launch
        if launch is not None and launch.no_http:
            return (), None, (f"no metrics: {launch.no_http}",)
        servers = [m.process for m in tree.members if m.role == "api-server" or m.process is tree.root]
        servers = [process for process in servers if not process.zombie]
        if facts.same_network is False:
            url = self._other_ports.url(servers)
            return ((url,), "network", ()) if url is not None else ((), None, (_own_network(tree),))
        if launch is not None and launch.urls:
            url = self._ports.url(servers) if launch.port_assumed else None
            return (launch.urls, "argv", ()) if url is None else ((url,), "socket", ())
        # A server titled with a rank has a port of its own.
        of_ranks = [m.process for m in tree.members if m.role == "api-server" and m.rank and not m.process.zombie]
        if len(of_ranks) > 1:
            urls = tuple(dict.fromkeys(url for process in of_ranks if (url := self._ports.url([process])) is not None))
            if urls:
                return urls, "socket", ()
        url = self._ports.url(servers)
        if url is not None:
            return (url,), "socket", ()
        where = f", and {launch.config_file} is not read" if launch and launch.config_file else ""
        return (), None, (f"no metrics address found: none of its ports answers as an engine{where}; try --url",)

    def _facts_of(self, tree: Tree) -> _Facts:
        root = tree.root
        key = (root.pid, root.start_ticks, root.argv)
        facts = self._facts.get(key)
        now_s = self._clock.mono()
        if facts is None or (facts.again_s is not None and now_s >= facts.again_s):
            packages = ENGINES[tree.engine].packages
            same_files = namespaces.same_files(self._proc, root.pid)
            version = installed_version(self._proc, root.pid, root.argv, packages, same_files)
            starting = self._clock.wall() - self._proc.start_s(root.start_ticks) < STARTING_S
            facts = _Facts(
                again_s=now_s + AGAIN_S if packages and version is None and starting else None,
                version=version,
                container=container_of(self._proc, root.pid),
                user=user_of(self._proc, root.pid),
                same_network=namespaces.same_network(self._proc, root.pid),
            )
            self._facts[key] = facts
        return facts

    def _container_pid(self, process: Process) -> int | None:
        key = (process.pid, process.start_ticks)
        if key not in self._inner_pids:
            self._inner_pids[key] = namespaces.container_pid(self._proc, process.pid)
        return self._inner_pids[key]

    def _plausible(self, process: Process) -> bool:
        """False if a process with NVML's number has no GPU open: then NVML means another one, on the host."""
        key = (process.pid, process.start_ticks)
        if key not in self._opens_gpu:
            opens = self._inference.opens_gpu(process.pid)
            if opens is False:
                return False
            self._opens_gpu.add(key)
        return True

    def _forget_all_but(self, alive: set[tuple[int, int]]) -> None:
        self._inference.begin(alive)
        self._ports.forget_all_but(alive)
        self._other_ports.forget_all_but(alive)
        self._torch.forget_all_but(alive)
        self._facts = {key: facts for key, facts in self._facts.items() if key[:2] in alive}
        self._inner_pids = {key: pid for key, pid in self._inner_pids.items() if key in alive}
        self._opens_gpu &= alive

    def abort(self) -> None:
        """Ends the look after the probe that is under way."""
        self._stop.set()

    def close(self) -> None:
        """Nothing is held."""


def _own_network(tree: Tree) -> str:
    """Why a server in another network has no address here, and what to do."""
    port = f" on port {tree.launch.port}" if tree.launch is not None and tree.launch.port else ""
    return (
        f"it listens{port} in a network of its own (a container), and no address was found that leads there: "
        f"give one with --pid {tree.root.pid} --url URL, or run as root: "
        f"nsenter -n -t {tree.root.pid} gputop-llm --pid {tree.root.pid}"
    )
