"""What share of a capture's window each profiled kernel takes: by name, and by grid where that was recorded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import clip, length, union
from gputop_llm.timeline.launch_shape import product
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import short_name

#: By short name and number of blocks; None stands for every grid of that name.
Shares = dict[tuple[str, int | None], float]


def plain(full_name: str) -> str:
    """The name by which kernels of a profile and of a capture are compared, as the table of hot kernels has it."""
    return printable(short_name(full_name), 100)


def of_kernels(context: Context, full_names: Iterable[str]) -> Shares:
    """|∪ its rows| ÷ window, in percent, on the device that did most; nothing for kernels that are not there."""
    timeline, main = context.timeline, context.main
    if main is None or not timeline.window_ns:
        return {}
    ops = timeline.ops
    wanted = {plain(name) for name in full_names}
    on_device = (ops.kind == Kind.KERNEL) & (ops.device == main.device)
    by_name: dict[str, list[int]] = {}
    for name_id in np.unique(ops.name_id[on_device]):
        name = plain(timeline.name(int(name_id)))
        if name in wanted:
            by_name.setdefault(name, []).append(int(name_id))
    shares: Shares = {}
    blocks_of = product(ops.grid)
    for name, ids in by_name.items():
        rows = on_device & np.isin(ops.name_id, ids)
        grids = [int(grid) for grid in np.unique(blocks_of[rows]) if grid > 0]
        for blocks in (None, *grids):
            own = rows if blocks is None else rows & (blocks_of == blocks)
            busy = length(*union(*clip(ops.start[own], ops.end[own], timeline.start, timeline.end)))
            if busy:
                shares[name, blocks] = 100.0 * busy / timeline.window_ns
    return shares
