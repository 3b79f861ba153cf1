"""When a capture can't be judged: why, and what to do instead."""

from __future__ import annotations

from gputop_llm.timeline.model import Kind, Timeline
from gputop_llm.verdict.blind import CLOCKS_DISAGREE
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.distortion import WHOLE_REPLAYS
from gputop_llm.verdict.facts import share, span

#: A shorter window, or fewer device rows, is chance. A device that is busy throughout may be judged from less.
SHORTEST_NS = 20_000_000
FEWEST_ROWS = 10
#: From here on a device counts as busy throughout.
BUSY_PCT = 90.0

_AGAIN = {
    "nsys": "trace the process that launches the kernels, with its children (nsys profile --trace=cuda,nvtx,osrt; "
    "for a server: the engine's worker process), over a window with load",
    "kineto": "record again with ProfilerActivity.CUDA, in the process that launches the kernels, "
    "over at least 10 steps",
}
_LONGER = "record at least 10 steps and 20 ms under load"


def refusal(context: Context) -> str | None:
    """Why this capture can't be judged and what to do, as the headline says it; None if it can be."""
    timeline = context.timeline
    if not context.coverage:
        return f"can't judge: {_nothing(timeline)}"
    main = max(context.coverage, key=lambda c: c.busy_pct)
    rows = sum(sum(c.counts.values()) for c in context.coverage)
    # Busy time is by the device's own clock: where none was idle, nothing is asked of the host's.
    busy_by_itself = min(c.busy_pct for c in context.coverage) >= BUSY_PCT
    if context.blind and not (context.blind.id == CLOCKS_DISAGREE and busy_by_itself):
        return f"can't judge: {context.blind.reason}, so {context.blind.so}; {context.blind.remedy}"
    if rows < FEWEST_ROWS:
        return f"can't judge: too little GPU work: {_counted(context)} in {span(timeline.window_ns)}; {_LONGER}"
    if main.busy_pct >= BUSY_PCT:
        return None
    if timeline.window_ns < SHORTEST_NS:
        return (
            f"can't judge: the window is too short: {span(timeline.window_ns)} with {_counted(context)} "
            f"(busy {main.busy_pct:.1f} %); {_LONGER}"
        )
    if context.distortion is not None:
        high = main.busy_pct + context.distortion.low_by_pct(main.busy_pct)
        if high >= BUSY_PCT:
            return (
                f"can't judge: graph replays were recorded node by node, which stretches them: the GPU reads "
                f"{share(main.busy_pct)} busy and may have been {share(high)}; {WHOLE_REPLAYS}"
            )
    return None


def _nothing(timeline: Timeline) -> str:
    origin = timeline.origin
    if len(timeline.ops):
        why = f"the {len(timeline.ops):,} device rows have no duration, or lie outside of the window"
    else:
        why = origin.missing.get("device_activity", "no device activity lies in the window")
    known = (timeline.ops, timeline.calls, timeline.cpu_ops, timeline.ranges, timeline.os_waits)
    some = any(map(len, known)) or why.startswith("none of its")
    what = "no GPU activity was recorded" if some else "no events were recorded"
    todo = _AGAIN.get(origin.format, "record again")
    if "update nsys" in why:
        todo = "then repeat the capture"
    elif "cut off" in why:
        todo = "copy it again, whole"
    return f"{what}: {why}; {todo}"


def _counted(context: Context) -> str:
    names = {Kind.KERNEL: "kernel", Kind.GRAPH: "graph replay", Kind.COPY: "copy", Kind.MEMSET: "memset"}
    found = []
    for kind, name in names.items():
        count = sum(c.counts[kind] for c in context.coverage)
        if count:
            plural = name if count == 1 else "copies" if name == "copy" else f"{name}s"
            found.append(f"{count:,} {plural}")
    return ", ".join(found)
