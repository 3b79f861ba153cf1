"""Traces of torch.profiler in a capture's folder: named by rank and process, taken in under its bounds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.kineto.traces import copy_trace
from gputop_llm.capture.plan import PlannedRank
from gputop_llm.errors import GputopError

SUFFIX = ".trace.json.gz"


def rank_facts(rank: PlannedRank, reached_by: str, size: int | None) -> dict[str, Any]:
    """What a bundle says of a rank: `size` is that of its trace in bytes, None where there is no whole one."""
    return {
        "file": _name_of(rank),
        "pid": rank.pid,
        "rank": rank.rank,
        "reached_by": reached_by,
        "bytes": size,
        "whole": size is not None,
    }


def _name_of(rank: PlannedRank) -> str:
    return f"rank{rank.number}_pid{rank.pid}{SUFFIX}"


def take_in(
    source: int,
    rank: PlannedRank,
    folder: CaptureFolder,
    most_bytes: int,
    cancelled: Callable[[], bool] = lambda: False,
) -> int:
    """Copies a trace into the folder, where it appears when it is whole; returns the bytes that it has unpacked.

    Args:
        source: a descriptor; not closed.

    Raises:
        GputopError: it is no whole trace, too large, or can't be written.
    """
    name = _name_of(rank)
    try:
        target = folder.open_record(name)
    except OSError as error:
        raise GputopError("cannot keep the trace", error.strerror or str(error)) from error
    try:
        try:
            size = copy_trace(source, target, most_bytes, cancelled)
        finally:
            os.close(target)
        folder.whole(name)
    except OSError as error:
        raise GputopError("cannot keep the trace", error.strerror or str(error)) from error
    return size
