"""The inputs of single operators of a Kineto trace, in full: the timeline keeps only the text of their shapes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm.timeline.json_stream import TraceFile


@dataclass(frozen=True, slots=True)
class Operator:
    """One call of an operator; the lists have an element for each input, as Kineto writes them."""

    name: str
    dims: Sequence[Any]
    strides: Sequence[Any]
    types: Sequence[Any]
    concrete: Sequence[Any]


def operators(paths: Sequence[Path], wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], Operator]:
    """The operators with these names and external ids that have shapes. The files are read once more for them.

    Raises:
        TraceError: a file can't be read.
    """
    found: dict[tuple[str, int], Operator] = {}
    for path in paths:
        trace = TraceFile(path, None, None)
        trace.header()
        for event in trace.events():
            args = event.args
            key = event.name, args.external_id if args is not None else None
            if args is None or key not in wanted or key in found:
                continue
            dims = _list(args.input_dims)
            lists = [_list(raw) for raw in (args.input_strides, args.input_types, args.concrete_inputs)]
            if dims is not None and all(one is not None and len(one) == len(dims) for one in lists):
                found[event.name, args.external_id] = Operator(event.name, dims, *lists)
                if len(found) == len(set(wanted)):
                    return found
    return found


def _list(raw: Any) -> Any:
    try:
        found = json.loads(bytes(raw) or b"null")
    except ValueError:
        return None
    return found if isinstance(found, list) else None
