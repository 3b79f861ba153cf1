"""How far a record of graph replays, taken node by node, reads the device as less busy than it is.

Recording each node stretches the replays. The same load on one H200 read 52.2 % busy where replays were recorded whole,
48.5 % by a bare CUPTI client's node records, 29.8 % by Kineto, 23.9 % by Kineto with CPU operators.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.timeline.model import U8, Kind, Timeline
from gputop_llm.verdict.apis import Api

# How much longer the window is than it would be, if all device rows are graph nodes. Measured at 88 % nodes as above;
# nsys in node mode by a public llama.cpp run: its steps took 2.4 times as long.
_STRETCH = {"native": 0.085, "kineto": 0.85, "kineto+cpu": 1.35, "nsys": 1.4}
#: What was seen on an H200 that was 52.2 % busy; of nsys it was not measured there.
_SEEN_BY_SOME = "24 to 48.5 %"
_SEEN = {"native": "48.5 %", "kineto": "30 %", "kineto+cpu": "24 %"}
#: What to do for a record without it: the client's own way always records nodes.
WHOLE_REPLAYS = (
    "record whole replays: start the engine with gputop-llm run --nsys, and capture it with --route nsys-session "
    "(nsys itself: --cuda-graph-trace=graph)"
)
#: From this share of nodes on the distortion is worth a word.
_WORTH_TELLING = 0.02


@dataclass(frozen=True, slots=True)
class Distortion:
    """`node_pct`: share of the device rows that are graph nodes. `stretch`: the window may be this part too long.

    `seen` is how busy the same recorder read an H200 that was 52.2 % busy.
    """

    node_pct: float
    stretch: float
    seen: str = _SEEN_BY_SOME

    def low_by_pct(self, busy_pct: float) -> float:
        """By how many points a busy share may read too low (an idle share: too high)."""
        return min(100.0 - busy_pct, busy_pct * self.stretch)

    @property
    def text(self) -> str:
        """What a reader must know."""
        return (
            f"graph replays were recorded node by node ({self.node_pct:.0f} % of the device rows), which stretches "
            f"them: busy shares read low, idle shares high ({self.seen} on an H200 that was 52.2 % busy)"
        )


def distortion(timeline: Timeline, use: U8) -> Distortion | None:
    """The distortion of a capture; None if no replay was recorded node by node. `use` as from `apis.uses`.

    Kineto told node ids only from 2026 on: that many rows share one graph launch tells it as well.
    """
    ops = timeline.ops
    if not len(ops):
        return None
    nodes = ops.graph_node > 0
    launched = ops.launch >= 0
    if len(timeline.calls):
        by_graph = launched & (use[np.maximum(ops.launch, 0)] == Api.GRAPH_LAUNCH) & (ops.kind != Kind.GRAPH)
        shared = np.bincount(ops.launch[by_graph], minlength=len(timeline.calls)) > 1
        nodes |= by_graph & shared[np.maximum(ops.launch, 0)]
    share = float(nodes.mean())
    if share < _WORTH_TELLING:
        return None
    recorder = timeline.origin.format
    if recorder == "kineto" and len(timeline.cpu_ops):
        recorder = "kineto+cpu"
    stretch = share * _STRETCH.get(recorder, max(_STRETCH.values()))
    return Distortion(100.0 * share, stretch, _SEEN.get(recorder, _SEEN_BY_SOME))
