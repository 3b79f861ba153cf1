"""The operator that launched a hot kernel, where the record has it with its shapes: as a case that calls it again.

Only ATen operators are called: what the inputs of others mean is not known. Kernels that a graph replay ran hang on no
operator.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.timeline.kineto_ops import Operator, operators
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.grouped import from_graphs
from gputop_llm.verdict.nesting import enclosing

_DTYPES = {
    "float": ("torch.float32", 4),
    "double": ("torch.float64", 8),
    "c10::Half": ("torch.float16", 2),
    "c10::BFloat16": ("torch.bfloat16", 2),
    "c10::Float8_e4m3fn": ("torch.float8_e4m3fn", 1),
    "c10::Float8_e5m2": ("torch.float8_e5m2", 1),
    "int": ("torch.int32", 4),
    "long int": ("torch.int64", 8),
    "short int": ("torch.int16", 2),
    "signed char": ("torch.int8", 1),
    "unsigned char": ("torch.uint8", 1),
    "bool": ("torch.bool", 1),
}
#: A Python number beside a tensor is recorded as a tensor without dimensions. On the GPU one takes another kernel.
_NUMBERS = {"double": "1.0", "long int": "0"}
_ATEN = re.compile(r"aten::[a-z0-9_]{1,80}")
#: Operators whose work depends on the values of their inputs, or that take from the host: zeros would not do.
_BY_VALUE = re.compile(r"aten::(_local_scalar_dense|nonzero|masked_select|unique\w*|item|repeat_interleave)")
_LARGEST = 1 << 40
#: Different calls that are tried for one kernel.
_MOST_EACH = 2
ORIGIN = "the record's own operators"


def of_record(context: Context, hot: Sequence[HotLaunch], files: Sequence[Path]) -> tuple[Case, ...]:
    """The operators behind these kernels; none for those that hang on none, or on one that can't be called."""
    timeline = context.timeline
    if timeline.origin.format != "kineto" or not bool((timeline.cpu_ops.shapes_id >= 0).any()):
        return ()
    wanted = [key for one in hot for key in _behind(context, one)]
    found = operators(files, set(wanted))
    cases: dict[str, Case] = {}
    for key in wanted:
        if key in found and (case := case_of(found[key])) is not None:
            cases.setdefault(case.label, case)
    return tuple(cases.values())


def _behind(context: Context, hot: HotLaunch) -> list[tuple[str, int]]:
    """The operators around its launches, by name and external id: one of each shape, the most frequent first."""
    timeline = context.timeline
    # A graph's launch lies within whatever operator was open, and is none of it.
    alone = (timeline.ops.launch[hot.rows] >= 0) & ~from_graphs(timeline.ops, context.uses)[hot.rows]
    calls = timeline.ops.launch[hot.rows[alone]]
    around = enclosing(timeline.cpu_ops, timeline.calls.thread[calls], timeline.calls.start[calls])
    table = timeline.cpu_ops
    rows = around[around >= 0]
    rows = rows[table.shapes_id[rows] >= 0]
    counted = Counter(zip(table.name_id[rows].tolist(), table.shapes_id[rows].tolist(), strict=True))
    found = []
    for (name_id, shapes_id), _ in counted.most_common(_MOST_EACH):
        first = rows[np.flatnonzero((table.name_id[rows] == name_id) & (table.shapes_id[rows] == shapes_id))[0]]
        found.append((timeline.name(name_id), int(table.external_id[first])))
    return found


def case_of(operator: Operator) -> Case | None:
    """The call of an operator; None for one that can't be called from what the record has."""
    if not _ATEN.fullmatch(operator.name) or _BY_VALUE.fullmatch(operator.name):
        return None
    inputs: list[str] = []
    said: list[str] = []
    size = 0
    rows = zip(operator.types, operator.dims, operator.strides, operator.concrete, strict=True)
    for kind, dims, strides, concrete in rows:
        if kind in _NUMBERS and dims == []:
            text = _NUMBERS[kind]
            said.append("scalar")
        elif kind in _DTYPES:
            made = _tensor(kind, dims, strides)
            if made is None:
                return None
            text, taken = made
            size += taken
            said.append("×".join(map(str, dims)) or "scalar")
        else:
            value = _value(kind, concrete)
            if value is None:
                return None
            text = value
        inputs.append(text)
    # What makes its tensors of nothing doesn't say where: it would make them on the CPU.
    if not size:
        return None
    return Case(
        f"{operator.name} of {', '.join(said)}",
        f'operator("{operator.name.removeprefix("aten::")}", {", ".join(inputs)})',
        ("operator",),
        2 * size,
        ORIGIN,
    )


def _tensor(kind: str, dims: Any, strides: Any) -> tuple[str, int] | None:
    """The expression of a tensor and its bytes."""
    shapes = (dims, strides)
    if not all(isinstance(one, list) and all(type(n) is int and 0 <= n < _LARGEST for n in one) for one in shapes):
        return None
    if len(dims) != len(strides):
        return None
    dtype, each = _DTYPES[kind]
    span = 1 + sum((n - 1) * step for n, step in zip(dims, strides, strict=True)) if 0 not in dims else 0
    if span * each > _LARGEST:
        return None
    plain = [math.prod(dims[position + 1 :]) for position in range(len(dims))]
    stride = "" if plain == strides else f", stride={tuple(strides)!r}"
    sizes = ", ".join(map(str, dims))
    return f"tensor({sizes}{', ' if sizes else ''}dtype={dtype}{stride})".replace(", stride=(,)", ""), span * each


def _value(kind: Any, concrete: Any) -> str | None:
    """A plain input as Python; None for one that is neither known nor left out."""
    if not isinstance(concrete, str) or not isinstance(kind, str):
        return None
    if concrete in ("", "None"):
        # A list of tensors has no value of its own either.
        return "None" if kind in ("", "None", "Scalar", "ScalarList") else None
    special: Mapping[str, str] = {"inf": "float('inf')", "-inf": "-float('inf')"}
    if concrete in special:
        return special[concrete]
    try:
        value = ast.literal_eval(concrete)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    plain = (bool, int, float)
    if isinstance(value, plain) or (isinstance(value, list) and all(isinstance(one, plain) for one in value)):
        return repr(value)
    return None
