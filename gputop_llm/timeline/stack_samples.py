"""Samples of Python stacks that were taken beside a record: read, put on the record's clock, joined to its threads.

They lie beside the record that they belong to: `rank0_pid7.stacks.json` beside `rank0_pid7.gtw`.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gputop_llm.printable import printable
from gputop_llm.timeline.model import I32, StackSamples, Thread, Timeline

#: In a capture's facts, and in the names of files.
SAMPLES = "stacks"
SUFFIX = f".{SAMPLES}.json"
_SCHEMA = 1
_PACKED = (".gz", ".xz")
_RECORD = ".gtw"
_MOST_BYTES = 64 << 20
_MOST_CELLS = 20_000_000
_MOST_TEXT = 200
_LOW = 0xFFFF_FFFF
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def samples_name(record: str) -> str:
    """The name of the samples that belong to a record."""
    for packed in _PACKED:
        record = record.removesuffix(packed)
    return record.removesuffix(_RECORD) + SUFFIX


def with_samples(timeline: Timeline, records: Sequence[Path]) -> Timeline:
    """The timeline with the samples that lie beside its records, where there are any; their threads get their names.

    Args:
        records: of the timeline's processes, in the same order.
    """
    threads = list(timeline.threads)
    found: list[StackSamples] = []
    warnings = list(timeline.origin.warnings)
    for process, record in enumerate(records):
        path = record.with_name(samples_name(record.name))
        try:
            told = _read(path)
            if told is not None:
                found.append(_samples(told, process, threads, timeline))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            warnings.append(f"{printable(path.name, 100)} is damaged: its Python stacks were not used")
        except OSError as error:
            warnings.append(f"{printable(path.name, 100)} was not read: {error.strerror or error}")
    return replace(
        timeline,
        threads=tuple(threads),
        samples=tuple(found),
        origin=replace(timeline.origin, warnings=tuple(warnings)),
    )


def _read(path: Path) -> Mapping[str, Any] | None:
    """What a file says; None where there is none. A link, or what is no plain file, is not followed."""
    try:
        fd = os.open(path, _OPEN)
    except FileNotFoundError:
        return None
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("no plain file")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError("too large")
    told = json.loads(data)
    if not isinstance(told, dict) or told.get("schema") != _SCHEMA:
        raise ValueError("another form")
    return told


def _samples(told: Mapping[str, Any], process: int, threads: list[Thread], timeline: Timeline) -> StackSamples:
    moments = np.asarray(told["moments_us"], dtype=np.int64)
    changes = np.asarray(told["changes"], dtype=np.int64).reshape(-1, 3)
    known = [list(one) for one in told["threads"]]
    stacks = [tuple(int(call) for call in stack) for stack in told["stacks"]]
    calls = tuple(_words(*call) for call in told["calls"])
    if len(moments) * max(len(known), 1) > _MOST_CELLS:
        raise ValueError("too many samples")
    limits = (len(moments), len(known), len(stacks))
    if len(changes) and not all(changes[:, n].min() >= 0 and changes[:, n].max() < limits[n] for n in range(3)):
        raise ValueError("a change out of bounds")
    if any(not 0 <= call < len(calls) for stack in stacks for call in stack) or (np.diff(moments) < 0).any():
        raise ValueError("a stack or moment out of bounds")
    at = np.full((len(moments), len(known)), -1, dtype=np.int32)
    for moment, thread, stack in changes.tolist():
        at[moment, thread] = stack
    held = _held(at)
    zero = int(told["zero_realtime_ns"])
    time = zero + moments * 1000
    taken = told.get("samples_per_thread")
    cpu_s = told.get("cpu_s")
    return StackSamples(
        process=process,
        time=time,
        threads=_joined(known, process, threads, timeline),
        at=held,
        stacks=tuple(stacks),
        calls=calls,
        rate_hz=float(told["rate_hz"]),
        taken=float(taken) if isinstance(taken, (int, float)) else None,
        error_ns=int(told["zero_error_ns"]) + _pass_ns(cpu_s, taken),
        errors=int(told.get("errors") or 0),
    )


def _held(at: Any) -> Any:
    """Each thread's stack at each moment: where nothing is written it is as it was before."""
    if not len(at):
        return at
    rows = np.where(at >= 0, np.arange(len(at))[:, None], 0)
    np.maximum.accumulate(rows, axis=0, out=rows)
    held: Any = np.take_along_axis(at, rows, axis=0)
    return held


def _pass_ns(cpu_s: object, taken: object) -> int:
    """How long one look at all threads takes: by so much may a stack be older than the time of its sample."""
    if not isinstance(cpu_s, (int, float)) or not isinstance(taken, (int, float)) or taken < 1 or cpu_s < 0:
        return 1_000_000
    return int(1e9 * cpu_s / taken)


def _joined(known: Sequence[list[Any]], process: int, threads: list[Thread], timeline: Timeline) -> I32:
    """For each sampled thread its position in the timeline, -1 where that has none. Native records know half an ID."""
    by_half = {one.name: number for number, one in enumerate(timeline.threads) if one.process == process}
    found = np.full(len(known), -1, dtype=np.int32)
    for position, (thread_id, tid, name) in enumerate(known):
        number = by_half.get(f"thread 0x{int(thread_id) & _LOW:x}")
        if number is not None:
            found[position] = number
            told = tid if type(tid) is int and 0 < tid < 1 << 31 else None
            label = printable(name, 60) if isinstance(name, str) and name else threads[number].name
            threads[number] = Thread(told, process, label)
    return found


def _words(function: object, file: object, line: object) -> str:
    place = f"{file}:{line}" if type(line) is int and line else str(file)
    return printable(f"{function} ({place})", _MOST_TEXT)
