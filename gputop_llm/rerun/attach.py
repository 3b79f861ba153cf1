"""Attaching ncu to a server that was started under it: said with its price, or refused with the reason; never done.

How such a server is let go once the launches are profiled was never tried: the command is left to the user.
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath

from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.profiled import function_name
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.verdict.kernel_names import Family

_MOST_PARENTS = 32


def attach_note(hot: HotLaunch, pid: int | None, ranks: int, proc: ProcFs | None = None) -> str | None:
    """What can be said of attaching; None where the engine wasn't started for it.

    Args:
        hot: the kernel that would be profiled.
        pid: a process of the engine that runs; None if none does.
        ranks: how many processes the engine works in.
    """
    if pid is None or not _under_ncu(pid, proc or ProcFs()):
        return None
    if hot.family is Family.NCCL:
        return "the server runs under ncu, but nothing attaches for a collective: held for a replay it never ends"
    if ranks > 1:
        return (
            f"the server runs under ncu, but nothing attaches to one of {ranks} ranks: while it is held for a replay "
            "the others wait in their next collective, and may time out"
        )
    kernel = shlex.quote(f"regex:^{re.escape(function_name(hot.name))}$")
    return (
        "the server runs under ncu (about five times slower than without): "
        f"`ncu --mode attach --hostname 127.0.0.1 --clock-control none --kernel-name {kernel} --launch-count 3` "
        "profiles the kernel in it; requests stand still meanwhile, and how the server goes on then was never tried"
    )


def _under_ncu(pid: int, proc: ProcFs) -> bool:
    """Whether one of its parents is `ncu --mode launch`."""
    for _ in range(_MOST_PARENTS):
        try:
            pid = proc.stat(pid).ppid
            argv = proc.argv(pid) if pid > 0 else ()
        except (OSError, ValueError):
            return False
        if pid <= 1:
            return False
        if argv and PurePath(argv[0]).name in ("ncu", "nv-nsight-cu-cli"):
            return re.search(r"--mode(=| )launch( |$)", " ".join(argv)) is not None
    return False
