"""What forbids a verdict on idle time: device work that the record lacks, or times that cannot be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline.model import I32, U8, Kind, Timeline
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.facts import span

#: Less than this, or a smaller share, does not make a record useless.
_FEW = 3
_FEW_SHARE = 0.05
CLOCKS_DISAGREE = "clocks-disagree"
#: Recorders convert one clock into the other: what begins less than this before its launch is no contradiction.
_CLOCKS_NS = 100_000


@dataclass(frozen=True)
class Blind:
    """One such reason. `so` is what is not known then, `cause` and `remedy` what is behind it and what helps."""

    id: str
    reason: str
    so: str
    cause: str
    remedy: str


def blind(timeline: Timeline, uses: U8, first_op: I32, unseen_replays: int) -> Blind | None:
    """Why idle time can't be judged; None if nothing is known to forbid it."""
    replays = int((uses == Api.GRAPH_LAUNCH).sum())
    if unseen_replays >= max(_FEW, _FEW_SHARE * replays):
        return Blind(
            "replays-not-recorded",
            f"the work of at least {unseen_replays:,} of {replays:,} CUDA-graph launches is not in the record",
            "idle time and coverage are not known",
            "the recorder left CUDA-graph replays out (nsys up to 2023.4 does so on export), "
            "so the GPU looks idle while they run",
            "record with nsys 2024.3 or newer and --cuda-graph-trace=graph",
        )
    lost, launches = _lost_kernels(timeline, uses, first_op), int((uses == Api.LAUNCH).sum())
    if lost >= max(_FEW, _FEW_SHARE * launches):
        return Blind(
            "kernels-not-recorded",
            f"the kernels of at least {lost:,} of {launches:,} launches are not in the record",
            "idle time and coverage are not known",
            "the recorder lost them (full buffers, or torch.profiler in a process that has run for long), "
            "so the GPU looks idle while they run",
            "record again: a shorter window, a newer PyTorch or nsys, or soon after the process began",
        )
    issued = timeline.ops.launch >= 0
    early = timeline.calls.start[timeline.ops.launch[issued]] - timeline.ops.start[issued]
    impossible = early[early > _CLOCKS_NS]
    if len(impossible) >= max(_FEW, _FEW_SHARE * len(early)):
        return Blind(
            CLOCKS_DISAGREE,
            f"{len(impossible):,} of {len(early):,} device rows begin before the call that launched them "
            f"(by {span(float(np.median(impossible)))}, median)",
            "what the host did in idle time is not known",
            "the recorder put the GPU's times beside the host's by a clock that was off",
            "record again with a newer PyTorch or nsys",
        )
    return None


def _lost_kernels(timeline: Timeline, uses: U8, first_op: I32) -> int:
    """Launches without a kernel before their process's last one with one: what was queued at its end is not lost."""
    calls, ops = timeline.calls, timeline.ops
    # A call that is captured into a graph runs nothing.
    if any("BeginCapture" in timeline.name(int(i)) for i in np.unique(calls.name_id)):
        return 0
    rows = np.flatnonzero(uses == Api.LAUNCH)
    rows = rows[np.lexsort((calls.start[rows], calls.thread[rows]))]
    seen = first_op[rows] >= 0
    if not seen.any():
        return 0
    start, thread = calls.start[rows], calls.thread[rows]
    # Each rank's recorder stops at its own time, and may have recorded no work at all.
    process = np.array([one.process for one in timeline.threads], dtype=np.int64)[thread]
    last = np.full(process.max() + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, process[seen], start[seen])
    lost = ~seen & (start >= timeline.start) & (start < last[process])
    # One launch may be recorded as two calls, the runtime's around the driver's, of which one has the kernel.
    same = (thread[1:] == thread[:-1]) & (start[1:] < calls.end[rows[:-1]])
    lost[:-1] &= ~(same & seen[1:])
    lost[1:] &= ~(same & seen[:-1])
    # Kernels that are there but belong to no launch, or (ROCm) stand beside another's under its number.
    kernels = ops.kind == Kind.KERNEL
    unlinked = int((kernels & (ops.launch < 0)).sum())
    doubled = int((uses[ops.launch[kernels & (ops.launch >= 0)]] == Api.LAUNCH).sum()) - int(seen.sum())
    return max(0, int(lost.sum()) - unlinked - max(0, doubled))
