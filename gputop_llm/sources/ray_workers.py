"""The workers of a vLLM on Ray: children of Ray's daemon (raylet) and not of their server.

Nothing in /proc ties one to the other (Ray writes its title over command line and environment), so they go to the one
engine of this node that may be theirs. Their titles have no rank: vLLM gives those of a Ray node in the order of GPU
numbers (`assigned_physical_gpu_ids` is sorted, and `local_rank` is a place in it).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from gputop_llm.sources.gpu_map import GpuUse
from gputop_llm.sources.launch import Launch
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.vllm_processes import Member, Tree

RANKS_BY_GPU = "its workers run on Ray, whose titles tell no rank: ranks are told by the order of the GPUs"

_TITLE = re.compile(r"ray::RayWorker(?:Wrapper|Proc|Vllm)\b")
_BACKEND = "--distributed-executor-backend"


def is_ray_worker(process: Process) -> bool:
    """Whether it is titled as a worker of vLLM's on Ray."""
    # Thousands of processes are asked.
    text = process.argv[0] if process.argv else process.comm
    return text.startswith("ray::") and _TITLE.match(text) is not None and not process.zombie


def with_ray_workers(trees: Sequence[Tree], processes: Mapping[int, Process]) -> list[Tree]:
    """The trees with the workers on Ray, as engines of their own where it can't be told which one they belong to."""
    inside = {member.process.pid for tree in trees for member in tree.members}
    by_raylet: dict[int, list[Member]] = defaultdict(list)
    for process in processes.values():
        if process.pid not in inside and is_ray_worker(process):
            by_raylet[process.ppid].append(Member(process, "worker"))
    # TensorRT-LLM calls its workers on Ray the same.
    if not by_raylet or any(tree.engine == "trtllm" for tree in trees):
        return list(trees)
    for members in by_raylet.values():
        members.sort(key=lambda member: (member.process.start_ticks, member.process.pid))
    engines = [tree for tree in trees if tree.engine == "vllm" and not tree.orphan]
    theirs = [tree for tree in engines if _says_ray(tree)] or [tree for tree in engines if _may_use_ray(tree)]
    if len(theirs) != 1:
        why = _why_unplaced(theirs)
        return [*trees, *(_alone(members, why) for members in by_raylet.values())]
    own = theirs[0]
    joined = replace(own, members=(*own.members, *(member for members in by_raylet.values() for member in members)))
    return [joined if tree is own else tree for tree in trees]


def ranked(tree: Tree, placed: Sequence[tuple[Member, GpuUse]]) -> list[tuple[Member, GpuUse]]:
    """The members with the ranks of those on Ray; as they are unless all of them are here, each on a GPU of its own."""
    on_ray = [(member, use) for member, use in placed if is_ray_worker(member.process)]
    launch = tree.launch
    if launch is None or len(on_ray) != launch.tensor_parallel * launch.pipeline_parallel:
        return list(placed)
    gpus = sorted({use.gpus[0] for _, use in on_ray if len(use.gpus) == 1 and use.mig_instance is None})
    if len(gpus) != len(on_ray) or len({member.process.ppid for member, _ in on_ray}) != 1:
        return list(placed)
    ranks = {gpu: _rank(at, launch) for at, gpu in enumerate(gpus)}
    told = [
        (replace(member, rank=ranks[use.gpus[0]]) if is_ray_worker(member.process) else member, use)
        for member, use in placed
    ]
    return sorted(told, key=lambda one: gpus.index(one[1].gpus[0]) if is_ray_worker(one[0].process) else -1)


def _rank(number: int, launch: Launch) -> str:
    pipeline, tensor = divmod(number, launch.tensor_parallel)
    return f"PP{pipeline}_TP{tensor}" if launch.pipeline_parallel > 1 else f"TP{tensor}"


def _says_ray(tree: Tree) -> bool:
    argv = tree.root.argv
    return f"{_BACKEND}=ray" in argv or (_BACKEND, "ray") in pairwise(argv)


def _may_use_ray(tree: Tree) -> bool:
    """A server without workers that must have some, or a program of which nothing is known."""
    if any(member.role == "worker" for member in tree.members):
        return False
    return tree.launch is None or tree.launch.tensor_parallel * tree.launch.pipeline_parallel > 1


def _why_unplaced(theirs: Sequence[Tree]) -> str:
    if not theirs:
        return "these are workers on Ray, and their server isn't on this node: give its address with --url"
    pids = ", ".join(str(tree.root.pid) for tree in theirs)
    return f"these are workers on Ray of one of the engines with the PIDs {pids}; which one can't be told from here"


def _alone(members: Sequence[Member], why: str) -> Tree:
    return Tree(members[0].process, tuple(members), launch=Launch(no_http=why, root_serves=False))
