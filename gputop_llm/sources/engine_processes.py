"""Which processes are an engine's other than vLLM's, and which belong together.

What a command line or a title says is told by the engine's own module (sources/engines). Most processes belong to
their server by descent; SGLang's schedulers are adopted by PID 1 though their server lives, and belong to it by
their process group or session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gputop_llm.sources.engines import ENGINES
from gputop_llm.sources.launch import Launch
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.vllm_processes import ROLE_ORDER, Member, Tree, has_hidden_parent, rank_order

_MAX_DEPTH = 64
# Command lines that are remembered, with what they start: a thousand processes are looked at each time.
_KNOWN = 8192


@dataclass(frozen=True, slots=True)
class _Root:
    """A server that was found."""

    process: Process
    engine: str
    launch: Launch


def find_engine_trees(processes: Mapping[int, Process], taken: Collection[int]) -> list[Tree]:
    """The engines among the processes that are not `taken`, in the order of their roots' PIDs."""
    free = [process for process in processes.values() if process.pid not in taken and (process.argv or process.zombie)]
    launched = {p.pid: _Root(p, *found) for p in free if (found := _launched(p.argv)) is not None}
    titled = [(process, name) for process in free if "::" in process.title and (name := _titled(process.title))]
    if not launched and not titled:
        return []
    roots = {pid: root for pid, root in launched.items() if not _has_root_above(root, processes, launched)}
    children: dict[int, list[Process]] = defaultdict(list)
    for process in free:
        children[process.ppid].append(process)
    members = {pid: _descent(root.process, children, roots) for pid, root in roots.items()}
    placed = {process.pid for found in members.values() for process in found}
    orphans: dict[tuple[str, int, int], list[Process]] = defaultdict(list)
    for process, name in titled:
        if process.pid in placed:
            continue
        server = _server_of(process, name, roots)
        if server is not None:
            members[server] += [one for one in _descent(process, children, roots) if one.pid not in placed]
        else:
            orphans[name, process.session, process.pgrp].append(process)
    trees = [_tree(roots[pid], found) for pid, found in members.items()]
    for (name, _, _), group in orphans.items():
        trees.append(_without_server(name, group, processes))
    return sorted(trees, key=lambda tree: tree.root.pid)


@lru_cache(maxsize=_KNOWN)
def _launched(argv: tuple[str, ...]) -> tuple[str, Launch] | None:
    for engine in ENGINES.values():
        if (launch := engine.launch(argv)) is not None:
            return engine.name, launch
    return None


@lru_cache(maxsize=_KNOWN)
def _titled(title: str) -> str | None:
    return next((engine.name for engine in ENGINES.values() if engine.role(title, ()) is not None), None)


def _has_root_above(root: _Root, processes: Mapping[int, Process], launched: Mapping[int, _Root]) -> bool:
    """Whether a server of the same engine started this one, and the two are one engine."""
    if ENGINES[root.engine].nested:
        return False
    above = root.process.ppid
    for _ in range(_MAX_DEPTH):
        if above in launched and launched[above].engine == root.engine:
            return True
        if above not in processes:
            return False
        above = processes[above].ppid
    return False


def _descent(top: Process, children: Mapping[int, list[Process]], roots: Mapping[int, _Root]) -> list[Process]:
    """A process and all below it that belong to no other root."""
    found: dict[int, Process] = {}
    waiting = [top]
    while waiting:
        process = waiting.pop()
        if process.pid not in found and (process is top or process.pid not in roots):
            found[process.pid] = process
            waiting += children.get(process.pid, ())
    return list(found.values())


def _server_of(process: Process, engine: str, roots: Mapping[int, _Root]) -> int | None:
    """The server of a process that lost its parent; None if it is gone, or if two may be meant."""
    for same in ("pgrp", "session"):
        found = [
            pid
            for pid, root in roots.items()
            if root.engine == engine and getattr(root.process, same) == getattr(process, same)
        ]
        if len(found) == 1:
            return found[0]
    return None


def _tree(root: _Root, processes: Sequence[Process]) -> Tree:
    launch = root.launch
    members = []
    for process in processes:
        role, rank = _role(root.engine, process)
        if process is root.process and role == "other" and launch.root_serves:
            role = "api-server"
        elif role == "api-server" and (own := _launched(process.argv)) is not None:
            # The process that serves knows its port better than the one that started it.
            launch = replace(launch, host=own[1].host, port=own[1].port, model=launch.model or own[1].model)
        members.append(Member(process, role, rank))
    members.sort(
        key=lambda m: (m.process is not root.process, ROLE_ORDER.index(m.role), rank_order(m.rank), m.process.pid)
    )
    servers = sum(member.role == "api-server" for member in members) or None
    return Tree(root.process, tuple(members), False, launch, servers, root.engine)


def _role(engine: str, process: Process) -> tuple[str, str | None]:
    return ENGINES[engine].role(process.title, process.argv) or ("other", None)


def _without_server(engine: str, group: Sequence[Process], processes: Mapping[int, Process]) -> Tree:
    """What is left of an engine whose server was killed, or what can be seen of it where its server can't be."""
    root = min(group, key=lambda process: (process.zombie, process.start_ticks, process.pid))
    orphan = not has_hidden_parent(root, processes)
    members = [Member(process, *_role(engine, process)) for process in group]
    members.sort(key=lambda m: (m.process is not root, ROLE_ORDER.index(m.role), rank_order(m.rank), m.process.pid))
    return Tree(root, tuple(members), orphan, None, None, engine)
