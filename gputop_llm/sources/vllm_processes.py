"""Which processes are a vLLM, which belong together, and what each of them does.

vLLM titles its processes `VLLM::EngineCore_DP1`, `VLLM::Worker_TP0`, … when the
package setproctitle is there; the original command line is then only left on the
root. Without titles (older releases) the children are recognised by descent.
All processes of one server share the root's process group, which is what is left
to group by when the root was killed and its children were adopted by PID 1.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os.path import basename

from gputop_llm.sources.launch import Launch, is_python
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.vllm_argv import read_launch

ROLE_ORDER = ("api-server", "coordinator", "engine-core", "worker", "other")

# The prefix is VLLM unless VLLM_PROCESS_NAME_PREFIX says otherwise. Names may be cut to the 15 bytes of `comm`.
_TITLE = re.compile(
    r"(?P<prefix>[^\s:]+)::(?P<kind>DPEngineC|EngineC|DPCoord|Worker|APIServ|ExternalLBRank)(?P<rest>\S*)"
)
_OTHER_ENGINES = {"ray", "sglang", "triton", "trtllm"}
_RANK = re.compile(r"(?:^|_)(DP|PP|PCP|TP|DCP|EP)(\d+)")
_HELPER = re.compile(r"multiprocessing\.(?:resource_tracker|semaphore_tracker|forkserver)")
_MAX_DEPTH = 64


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a tree; `rank` as titled, with the DP rank of the engine core it belongs to."""

    process: Process
    role: str
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """One engine: its root first, then the others by role.

    `launch` is None where no command line tells it: the root was killed
    (`orphan`), can't be seen from here, or is a program of the user's own that has the engine inside.
    """

    root: Process
    members: tuple[Member, ...]
    orphan: bool = False
    launch: Launch | None = None
    api_servers: int | None = None
    engine: str = "vllm"


@dataclass(frozen=True, slots=True)
class Title:
    """A process title of vLLM's; not `certain` if other programs may well use such a title too."""

    prefix: str
    role: str
    rank: str | None
    certain: bool


def read_title(process: Process) -> Title | None:
    """What a process says in its title; None if it isn't one of vLLM's."""
    text = process.title
    if "::" not in text:
        return None
    found = _TITLE.match(text)
    if found is None or found["prefix"].lower() in _OTHER_ENGINES:
        return None
    kind, rest = found["kind"], found["rest"]
    ranks = _RANK.findall(rest)
    if kind == "DPEngineC" and (number := re.search(r"_(\d+)", rest)):
        ranks = [("DP", number[1]), *(pair for pair in ranks if pair[0] != "DP")]
    elif kind == "ExternalLBRank" and (number := re.search(r"_(\d+)", rest)):
        ranks = [("DP", number[1])]
    if kind in ("APIServ", "ExternalLBRank"):
        role = "api-server"
    elif kind == "DPCoord":
        role = "coordinator"
    # 0.10.1 titles a worker with its parent's title and its own ranks behind.
    elif kind == "Worker" or "Worker" in rest or any(name != "DP" for name, _ in ranks):
        role = "worker"
    else:
        role = "engine-core"
    certain = found["prefix"] == "VLLM" or kind in ("EngineC", "DPEngineC", "DPCoord")
    return Title(found["prefix"], role, "_".join(name + number for name, number in ranks) or None, certain)


def find_trees(processes: Mapping[int, Process]) -> list[Tree]:
    """All vLLM engines among the processes, in the order of their roots' PIDs."""
    titles: dict[int, Title] = {}
    launches: dict[int, Launch] = {}
    for process in processes.values():
        if (title := read_title(process)) is not None:
            titles[process.pid] = title
        elif (launch := read_launch(process.argv)) is not None:
            launches[process.pid] = launch
    prefixes = {title.prefix for title in titles.values() if title.certain}
    titles = {pid: title for pid, title in titles.items() if title.prefix in prefixes}
    if not titles and not launches:
        return []
    children = _children(processes)
    tops = {_top(pid, processes, titles, launches) for pid in (*titles, *launches)}
    trees: dict[int, Tree] = {}
    orphans: dict[tuple[int, int], list[Process]] = defaultdict(list)
    for top in sorted(tops):
        if top in launches:
            trees[top] = _tree(processes[top], [processes[top]], children, titles, launches[top])
        elif (launcher := _launcher(processes[top], processes)) is not None:
            if launcher.pid not in trees:
                trees[launcher.pid] = _tree(launcher, [launcher], children, titles, None)
        else:
            orphans[processes[top].session, processes[top].pgrp].append(processes[top])
    for group in orphans.values():
        oldest = min(group, key=lambda process: (process.zombie, process.start_ticks, process.pid))
        orphan = not has_hidden_parent(oldest, processes)
        trees.setdefault(oldest.pid, _tree(oldest, group, children, titles, None, orphan))
    return [trees[root] for root in sorted(trees)]


def has_hidden_parent(process: Process, processes: Mapping[int, Process]) -> bool:
    """Whether its parent lives and can't be seen from here: another user's, or outside of this PID namespace (0).

    A process whose parent has ended has another one, PID 1 or a subreaper.
    """
    return process.ppid != 1 and process.ppid not in processes


def _children(processes: Mapping[int, Process]) -> dict[int, list[Process]]:
    children: dict[int, list[Process]] = defaultdict(list)
    for process in processes.values():
        children[process.ppid].append(process)
    return children


def _top(
    pid: int, processes: Mapping[int, Process], titles: Mapping[int, Title], launches: Mapping[int, Launch]
) -> int:
    """The highest ancestor that is one of vLLM's: forked children look like the root itself."""
    top = pid
    current = processes[pid].ppid
    for _ in range(_MAX_DEPTH):
        if current not in processes:
            break
        if current in launches or current in titles:
            top = current
        current = processes[current].ppid
    return top


def _launcher(process: Process, processes: Mapping[int, Process]) -> Process | None:
    """The user's own program that started this engine; None if the starter is gone.

    Orphans are adopted by PID 1 or a subreaper, which may be a Python program
    too (supervisord), but leads a process group of its own.
    """
    parent = processes.get(process.ppid)
    if parent is None or parent.zombie:
        return None
    if parent.comm.startswith("ray::") or parent.title.startswith("ray::"):
        return parent
    starts_engines = is_python(parent.argv) or basename(parent.title) == "vllm"
    return parent if starts_engines and parent.pgrp == process.pgrp else None


def _tree(
    root: Process,
    tops: Iterable[Process],
    children: Mapping[int, list[Process]],
    titles: Mapping[int, Title],
    launch: Launch | None,
    orphan: bool = False,
) -> Tree:
    descent: dict[int, tuple[Process, Process | None]] = {}
    waiting: list[tuple[Process, Process | None]] = [(top, None) for top in tops]
    while waiting:
        process, parent = waiting.pop()
        if process.pid not in descent:
            descent[process.pid] = (process, parent)
            waiting += [(child, process) for child in children.get(process.pid, ())]
    titled = {pid: titles[pid] for pid in descent if pid in titles}
    own_servers = sum(t.role == "api-server" for t in titled.values())
    own_servers += sum(_rust_server(process) for process, _ in descent.values())
    root_serves = launch is not None and launch.root_serves and own_servers == 0

    roles: dict[int, str] = {}
    members = []
    for process, parent in descent.values():
        if process.pid in titled:
            role = titled[process.pid].role
        elif process.pid == root.pid:
            role = "api-server" if root_serves else "other"
        else:
            role = _untitled_role(process, parent, root, roles, launch, bool(titled))
        roles[process.pid] = role
        members.append(Member(process, role, _rank(process, descent, titled)))
    members.sort(key=lambda m: (m.process.pid != root.pid, ROLE_ORDER.index(m.role), rank_order(m.rank), m.process.pid))
    servers = own_servers or (1 if root_serves else None)
    return Tree(root, tuple(members), orphan, launch, servers)


def rank_order(rank: str | None) -> list[int]:
    """TP10 comes after TP9."""
    return [int(number) for number in re.findall(r"\d+", rank or "")]


def _untitled_role(
    process: Process,
    parent: Process | None,
    root: Process,
    roles: Mapping[int, str],
    launch: Launch | None,
    titled: bool,
) -> str:
    """The role by descent, for releases (or the first seconds of a start) without titles."""
    if _rust_server(process):
        return "api-server"
    command = " ".join(process.argv[:6])
    spawned = "multiprocessing.spawn" in command or (process.argv == root.argv and bool(process.argv))
    if parent is None or titled or not spawned or _HELPER.search(command) or launch is None:
        return "other"
    if parent.pid == root.pid or _HELPER.search(" ".join(parent.argv)):
        return "worker" if launch.engine_in_root else "engine-core"
    return "worker" if roles.get(parent.pid) in ("engine-core", "worker") else "other"


def _rust_server(process: Process) -> bool:
    """vLLM's front end in Rust: one process, several threads."""
    return basename(process.title) == "vllm-rs"


def _rank(
    process: Process, descent: Mapping[int, tuple[Process, Process | None]], titled: Mapping[int, Title]
) -> str | None:
    own = titled.get(process.pid)
    if own is None:
        return None
    if own.role != "worker" or (own.rank is not None and own.rank.startswith("DP")):
        return own.rank
    parent = descent[process.pid][1]
    above = titled.get(parent.pid) if parent else None
    if above is None or above.role != "engine-core" or above.rank is None:
        return own.rank
    return above.rank if own.rank is None else f"{above.rank}_{own.rank}"
