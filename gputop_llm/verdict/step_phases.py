"""Which steps are prefill, where no annotation says so: inferred from kernels, replays, attention and grids.

A prefill step that is inferred may hold decode work too: engines batch both. In turn: a kernel whose name says prefill;
a step outside of graph replays, or in many small ones, where most steps are one replay; a step that works much longer
than most, with an attention kernel that most lack, or with the usual norm over many times the usual rows.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from gputop_llm.timeline.launch_shape import product
from gputop_llm.timeline.model import I64, Kind
from gputop_llm.verdict.apis import Api
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import Mask
from gputop_llm.verdict.grouped import FAMILIES, from_graphs
from gputop_llm.verdict.kernel_names import Family
from gputop_llm.verdict.step_marks import ANNOTATION, Marks, Phase

_SAYS_PREFILL = re.compile(r"prefill|context_fwd|extend_attention|fmha\w*context", re.IGNORECASE)
_MOSTLY = 0.5
#: More replays than this many times the usual number: a step in pieces.
_PIECES = 3
_LONGER = 1.5
_RARE = 0.1
#: A norm takes each token's row by itself, most in a block for each: so many times the blocks are as many more tokens.
_MORE_ROWS = 4


def with_phases(context: Context, marks: Marks) -> Marks:
    """The same steps, their phases inferred where no annotation tells them; UNKNOWN where nothing tells steps apart."""
    if marks.source == ANNOTATION:
        return marks
    prefill = _prefill(context, marks)
    if not prefill.any() or prefill.all():
        return marks
    return replace(marks, phase=np.where(prefill, Phase.PREFILL, Phase.DECODE).astype(np.uint8))


def _prefill(context: Context, marks: Marks) -> Mask:
    timeline = context.timeline
    ops = timeline.ops
    owned = marks.owner >= 0
    rows, step = marks.rows[owned], marks.owner[owned]
    count = len(marks)
    name_ids = ops.name_id[rows]
    names = {int(i): timeline.name(int(i)) for i in np.unique(name_ids)}
    kernel = ops.kind[rows] == Kind.KERNEL
    work = np.where(kernel | (ops.kind[rows] == Kind.GRAPH), (ops.end - ops.start)[rows], 0)
    by_step = np.bincount(step, weights=work, minlength=count)
    said = [i for i, name in names.items() if _SAYS_PREFILL.search(name)]
    found: Mask = np.bincount(step[kernel & np.isin(name_ids, said)], minlength=count) > 0
    graph = from_graphs(ops, context.uses)[rows]
    share = np.bincount(step[graph], weights=work[graph], minlength=count) / np.maximum(by_step, 1)
    if np.median(share) >= _MOSTLY:
        found |= share < _MOSTLY
        replays = _replays(context, rows, step, count)
        found |= replays >= _PIECES * max(1.0, float(np.median(replays)))
        return found
    attention = context.families[rows] == FAMILIES.index(Family.ATTENTION)
    for name_id in np.unique(name_ids[attention]):
        has = np.bincount(step[attention & (name_ids == name_id)], minlength=count) > 0
        if has.mean() <= _RARE:
            found |= has & (by_step >= _LONGER * float(np.median(by_step)))
    longer: Mask = by_step >= _LONGER * float(np.median(by_step))
    return found | (longer & _many_rows(context, rows, step, count))


def _many_rows(context: Context, rows: I64, step: I64, count: int) -> Mask:
    """Few steps in which a norm that most steps run has many times the blocks that it usually has."""
    ops = context.timeline.ops
    norm = np.flatnonzero((context.families[rows] == FAMILIES.index(Family.NORM)) & (ops.grid[rows] > 0))
    found: Mask = np.zeros(count, dtype=bool)
    for name_id in np.unique(ops.name_id[rows[norm]]):
        own = norm[ops.name_id[rows[norm]] == name_id]
        most: I64 = np.zeros(count, dtype=np.int64)
        np.maximum.at(most, step[own], product(ops.grid[rows[own]]))
        # A batch that grew would stay so.
        many = most >= _MORE_ROWS * max(1.0, float(np.median(most)))
        if np.median(most) > 0 and many.mean() <= _RARE:
            found |= many
    return found


def _replays(context: Context, rows: I64, step: I64, count: int) -> I64:
    """How many graph replays began in each step."""
    ops, use = context.timeline.ops, context.uses
    first = ops.kind == Kind.GRAPH
    launches = np.flatnonzero((use == Api.GRAPH_LAUNCH) & (context.first_op >= 0))
    first[context.first_op[launches]] = True
    replays: I64 = np.bincount(step[first[rows]], minlength=count)
    return replays
