"""A kernel that was run again, under Nsight Compute: the script alone, that one case, L2 flushed before each launch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu import assemble
from gputop_llm.ncu.assemble import Group
from gputop_llm.ncu.collect import Order, Taken
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.match import Match
from gputop_llm.rerun.place import Python
from gputop_llm.rerun.run import WITHIN_S, ended_within
from gputop_llm.verdict.kernel_names import short_name

_LAUNCHES = 3


def order_for(match: Match, python: Python, script: Path, variables: Mapping[str, str]) -> Order:
    """How the best match is profiled.

    Raises:
        GputopError: nothing launched the kernel again.
    """
    if match.best is None:
        raise GputopError("nothing to profile", f"{match.hot.short} was not launched again")
    bare = ("--bare", *ended_within(WITHIN_S), "--times", str(_LAUNCHES), "--only", match.best.case)
    argv = (python.path, str(script.absolute()), *bare)
    return Order(
        argv=argv,
        kernel=f"^{re.escape(function_name(match.hot.name))}$",
        launches=_LAUNCHES,
        # Kernels that make the inputs, warm up and flush L2 often have the same function's name.
        nvtx="rerun/",
        within_s=WITHIN_S,
        cwd=Path("/"),
        environment=variables,
    )


def order_for_command(hot: HotLaunch, argv: tuple[str, ...]) -> Order:
    """How the user's own command is profiled: only launches of this kernel."""
    return Order(argv=argv, kernel=f"^{re.escape(function_name(hot.name))}$", launches=_LAUNCHES)


def verdict_of(taken: Taken, hot: HotLaunch, case: Case | None = None) -> tuple[Verdict, tuple[Group, ...]]:
    """The verdict on the launches that are the kernel of the record: the same grid and block.

    Raises:
        GputopError: there is none among those that were profiled.
    """
    kernels = tuple(one for one in taken.profile.kernels if (one.grid, one.block) == (hot.grid, hot.block))
    if not kernels:
        seen = ", ".join(dict.fromkeys(f"grid {one.grid} block {one.block}" for one in taken.profile.kernels))
        raise GputopError(
            "what was profiled is not the kernel of the record",
            f"it ran with {seen}, in the record with grid {hot.grid} block {hot.block}",
            "change the shape, and try again",
        )
    shapes = {}
    if case is not None and case.gemm is not None and kernels[0].blocks is not None:
        shapes[short_name(kernels[0].full_name), kernels[0].blocks] = case.gemm
    return assemble.judge(replace(taken.profile, kernels=kernels), None, shapes)


def function_name(name: str) -> str:
    """A kernel's name as ncu filters by it: without namespaces, template arguments and arguments."""
    plain = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    # What it returns may have template arguments too: `std::enable_if<…>::type f<…>(…)`.
    while (shorter := re.sub(r"<[^<>]*>", "", plain)) != plain:
        plain = shorter
    head = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return head.rpartition(" ")[2].rpartition("::")[2]
