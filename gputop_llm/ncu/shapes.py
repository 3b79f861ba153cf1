"""Which matrix product a kernel computes, from a capture that recorded the operators' input shapes.

Kernels that a graph replay ran hang on no operator: their shapes stay unknown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

import numpy as np

from gputop_llm.ncu.model import GemmShape
from gputop_llm.timeline.launch_shape import product
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import short_name
from gputop_llm.verdict.nesting import enclosing

#: Where the two matrices stand among the inputs of an operator.
_PRODUCTS = {"aten::mm": (0, 1), "aten::addmm": (1, 2), "aten::_scaled_mm": (0, 1)}

#: By short name and number of blocks.
Shapes = dict[tuple[str, int], GemmShape]


def of_kernels(context: Context, full_names: Iterable[str]) -> Shapes:
    """The most frequent product of each of these kernels with each grid; 16-bit elements."""
    timeline = context.timeline
    ops = timeline.ops
    if not len(timeline.cpu_ops) or not bool((timeline.cpu_ops.shapes_id >= 0).any()):
        return {}
    wanted = {short_name(name) for name in full_names}
    ids = [
        int(i) for i in np.unique(ops.name_id[ops.kind == Kind.KERNEL]) if short_name(timeline.name(int(i))) in wanted
    ]
    rows = np.flatnonzero((ops.kind == Kind.KERNEL) & np.isin(ops.name_id, ids) & (ops.launch >= 0) & (ops.grid > 0))
    calls = ops.launch[rows]
    around = enclosing(timeline.cpu_ops, timeline.calls.thread[calls], timeline.calls.start[calls])
    seen: dict[tuple[str, int], Counter[GemmShape]] = {}
    for row, operator in zip(rows[around >= 0], around[around >= 0], strict=True):
        shape = _product(context, int(operator))
        if shape is not None:
            key = (short_name(timeline.name(int(ops.name_id[row]))), int(product(ops.grid[row])))
            seen.setdefault(key, Counter())[shape] += 1
    return {key: counted.most_common(1)[0][0] for key, counted in seen.items()}


def _product(context: Context, operator: int) -> GemmShape | None:
    table, timeline = context.timeline.cpu_ops, context.timeline
    shapes_id = int(table.shapes_id[operator])
    places = _PRODUCTS.get(timeline.name(int(table.name_id[operator])))
    if places is None or shapes_id < 0:
        return None
    try:
        shapes = json.loads(timeline.name(shapes_id))
        (m, k), (k_too, n) = (shapes[place] for place in places)
    except (ValueError, IndexError, TypeError):
        return None
    if k != k_too or not all(isinstance(size, int) and size > 0 for size in (m, n, k)):
        return None
    return GemmShape(m, n, k)
