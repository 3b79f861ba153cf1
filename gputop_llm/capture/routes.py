"""The ways to capture a process: which are open, why the others are not, and the one thing that opens each."""

from __future__ import annotations

from gputop_llm.capture.stacks import route as stacks
from gputop_llm.capture.way import Route, Seen
from gputop_llm.capture.ways import WAYS
from gputop_llm.model import Target
from gputop_llm.sources.procfs import ProcFs

#: Ways that this version does not have; what each will need of the target.
_UNBUILT = (
    (
        "ncu-rerun",
        "Nsight Compute on the hot kernel, run again beside the server",
        "torch on this node, free GPU memory",
    ),
    ("ncu-attach", "Nsight Compute attached to the server", "a server that was started under ncu, five times slower"),
)


def routes_of(
    pid: int, start_ticks: int, proc: ProcFs | None = None, target: Target | None = None
) -> tuple[Route, ...]:
    """All ways into a process, best first. Nothing is done to it.

    Args:
        target: whose process it is, where that is known.
    """
    seen = Seen(pid, start_ticks, proc or ProcFs(), target)
    return (
        *(route for way in WAYS for route in way.look(seen)),
        stacks.look(seen),
        *(Route(key, title, "unbuilt", "not built yet", needs) for key, title, needs in _UNBUILT),
    )
