"""What share of a capture a profiled kernel takes, of its window and of a step: by name, and by grid where recorded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gputop_llm.printable import printable
from gputop_llm.timeline.intervals import clip, intersect, length, union
from gputop_llm.timeline.launch_shape import product
from gputop_llm.timeline.model import I64, Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.step_marks import PHASE_LABELS, Marks, Phase


@dataclass(frozen=True, slots=True)
class Part:
    """|∪ of a kernel's rows| ÷ the window, and ÷ the time of the steps of the phase that it mostly runs in, in percent.

    `phase` is as in `PHASE_LABELS`; it and `step_pct` are None where no steps were found.
    """

    window_pct: float
    phase: str | None = None
    step_pct: float | None = None


#: By short name and number of blocks; None stands for every grid of that name.
Shares = dict[tuple[str, int | None], Part]


def plain(full_name: str) -> str:
    """The name by which kernels of a profile and of a capture are compared, as the table of hot kernels has it."""
    return printable(short_name(full_name), 100)


def of_kernels(context: Context, full_names: Iterable[str]) -> Shares:
    """The parts of those that are there, on the device that did most."""
    timeline, main = context.timeline, context.main
    if main is None or not timeline.window_ns:
        return {}
    ops = timeline.ops
    steps = _steps(context.marks.get(main.device))
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
            busy = union(*clip(ops.start[own], ops.end[own], timeline.start, timeline.end))
            if length(*busy):
                shares[name, blocks] = Part(100.0 * length(*busy) / timeline.window_ns, *_of_steps(busy, steps))
    return shares


def _steps(marks: Marks | None) -> dict[str, tuple[I64, I64]]:
    """The disjoint times of the steps of each phase; a last one without an end is left out."""
    if marks is None:
        return {}
    begin, end, phase = marks.at[:-1], marks.at[1:], marks.phase
    if marks.open_end:
        begin, end, phase = begin[:-1], end[:-1], phase[:-1]
    return {PHASE_LABELS[Phase(int(one))]: union(begin[phase == one], end[phase == one]) for one in np.unique(phase)}


def _of_steps(busy: tuple[I64, I64], steps: dict[str, tuple[I64, I64]]) -> tuple[str | None, float | None]:
    """Prefill and decode are never averaged together."""
    inside = {phase: length(*intersect(busy, times)) for phase, times in steps.items()}
    phase = max(inside, key=lambda one: inside[one], default=None)
    if phase is None or not inside[phase]:
        return None, None
    return phase, 100.0 * inside[phase] / length(*steps[phase])
