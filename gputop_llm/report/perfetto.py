"""A window of a timeline as a Chrome trace, which Perfetto and chrome://tracing open and our own reader reads back.

Events carry the names that Kineto gives them. Two things differ: launches and their work are joined by numbers of this
file's own (those of several processes would collide), and a graph replay recorded whole becomes one kernel row. Events
of one track must nest, so what a stream runs at the same time (nodes of a replay) gets a further track beside it.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.timeline.launch_shape import extents_of

if TYPE_CHECKING:
    from gputop_llm.timeline.model import Timeline

_ROWS = 8_192
#: No process has such an id (Linux ends at 4,194,304): tracks of GPUs, and of processes whose id is unknown.
_GPU_PID, _UNKNOWN_PID = 10_000_000, 20_000_000
_NO_STREAM = 999_999
#: Further tracks of streams are numbered from here on.
_BESIDE = 900_000_000
_DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "DtoD", 4: "HtoH", 5: "PtoP", 6: "UVM"}
_MEMORIES = {1: "Pageable", 2: "Pinned", 3: "Device", 4: "Managed"}


def write_perfetto(
    path: Path,
    timeline: Timeline,
    window: tuple[int, int] | None = None,
    packed: bool | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Writes what reaches into the window (ns; None: all of it), cut at its edges, whole or not at all.

    Calls that launched work of the window are kept, though they may lie before it.

    `packed` says whether to compress it; None goes by the name (".gz").

    Raises:
        GputopError: it can't be written, or `cancelled` said yes.
    """
    if packed is None:
        packed = path.suffix == ".gz"
    draft = None
    try:
        # A device or pipe would be replaced by a file: /dev/null, for every program of the machine.
        if path.exists() and not path.is_file():
            raise GputopError(f"cannot write {printable(str(path))}", "it is not a regular file", "give another name")
        handle, draft = tempfile.mkstemp(prefix=".gputop-llm-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            # A fixed time: the same window gives the same bytes.
            out: Any = gzip.GzipFile("", "wb", 5, file, 0) if packed else file
            for piece in _pieces(timeline, window or (timeline.start, timeline.end)):
                if cancelled():
                    raise GputopError("did not write the trace", "it was cancelled")
                out.write(piece.encode("utf-8", "surrogatepass"))
            if packed:
                out.close()
        # What a temporary file may not be: read by others, as far as the user's own umask lets them.
        os.umask(mask := os.umask(0o077))
        os.chmod(draft, 0o666 & ~mask)
        os.replace(draft, path)
        draft = None
    except OSError as error:
        raise GputopError(f"cannot write {printable(str(path))}", error.strerror or str(error)) from error
    finally:
        if draft is not None:
            with suppress(OSError):
                os.unlink(draft)


def _pieces(timeline: Timeline, window: tuple[int, int]) -> Iterator[str]:
    events = _Events(timeline, *window)
    yield f'{json.dumps(_header(timeline, events.base))[:-1]}, "traceEvents": [\n'
    yield ",\n".join(json.dumps(event) for event in _names(timeline, window, events.base))
    for lines in events.chunks():
        if lines:
            yield ",\n" + ",\n".join(lines)
    for event in events.tracks():
        yield ",\n" + json.dumps(event)
    yield "\n]}\n"


def _header(timeline: Timeline, base: int) -> dict[str, object]:
    header: dict[str, object] = {
        "schemaVersion": 1,
        "deviceProperties": [_device(d) for d in timeline.devices],
        "baseTimeNanoseconds": base,
        "displayTimeUnit": "ns",
    }
    if len(timeline.processes) == 1 and (rank := timeline.processes[0].rank) is not None:
        header["distributedInfo"] = {"rank": rank}
    return header


def _device(device: Any) -> dict[str, object]:
    major, _, minor = (device.compute_capability or "").partition(".")
    described = {
        "id": device.number,
        "name": device.name,
        "totalGlobalMem": device.mem_total_bytes,
        "numSms": device.sm_count,
        "computeMajor": int(major) if major.isdecimal() else None,
        "computeMinor": int(minor) if minor.isdecimal() else None,
    }
    return {key: value for key, value in described.items() if value is not None}


def _names(timeline: Timeline, window: tuple[int, int], base: int) -> Iterator[dict[str, object]]:
    """What Perfetto calls the tracks, and the window as the file's own record of it."""
    for device in timeline.devices:
        name = f"GPU {device.number}" + (f" {device.name}" if device.name else "")
        yield _meta("process_name", _GPU_PID + device.number, 0, name)
    for position, process in enumerate(timeline.processes):
        yield _meta("process_name", _pid(timeline, position), 0, process.name or "process")
    for position, thread in enumerate(timeline.threads):
        if thread.name:
            yield _meta("thread_name", _pid(timeline, thread.process), _tid(timeline, position), thread.name)
    low, high = window
    if timeline.origin.window_from == "record" or window != (timeline.start, timeline.end):
        yield {
            "ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "PyTorch Profiler",
            "ts": (low - base) / 1000, "dur": (high - low) / 1000,
        }  # fmt: skip
    else:
        # A trace without events of its own must still be a list of events.
        yield _meta("trace_name", 0, 0, "gputop-llm")


def _meta(what: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _pid(timeline: Timeline, position: int) -> int:
    pid = timeline.processes[position].pid
    return _UNKNOWN_PID + position if pid is None else pid


def _tid(timeline: Timeline, position: int) -> int:
    tid = timeline.threads[position].tid
    return _UNKNOWN_PID + position if tid is None else tid


class _Events:
    """The events of one window as lines of JSON, some thousand rows at a time."""

    def __init__(self, timeline: Timeline, low: int, high: int) -> None:
        self._timeline, self._low, self._high = timeline, low, high
        ops, calls = timeline.ops, timeline.calls
        launches = ops.launch[self._inside(ops)]
        self._launches = launches[launches >= 0]
        #: The moment that is 0 in the file.
        self.base = min([low, *calls.start[self._launches].tolist()])
        self._threads = [f'"pid":{_pid(timeline, t.process)},"tid":{_tid(timeline, n)}' for n, t in
                         enumerate(timeline.threads)]  # fmt: skip
        # By device and stream: for each of its tracks the number, and where its last event ends.
        self._tracks: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._beside = _BESIDE
        # A name stands in thousands of rows.
        self._name = lru_cache(maxsize=65_536)(lambda number: json.dumps(timeline.name(number)))
        self._shapes = lru_cache(maxsize=65_536)(lambda number: _as_json(timeline.name(number)))
        self._copy_name = lru_cache(maxsize=4_096)(self._named_copy)

    def chunks(self) -> Iterator[list[str]]:
        timeline = self._timeline
        for table, line in (
            (timeline.ops, self._op),
            (timeline.calls, self._call),
            (timeline.cpu_ops, self._cpu_op),
            (timeline.ranges, self._range),
            (timeline.os_waits, self._wait),
        ):
            yield from self._rows(table, line)

    def _rows(self, table: Any, line: Callable[..., str]) -> Iterator[list[str]]:
        columns = tuple(table.__dataclass_fields__)
        inside = self._inside(table)
        if table is self._timeline.calls:
            inside[self._launches] = True
        rows = inside.nonzero()[0]
        for first in range(0, len(rows), _ROWS):
            some = rows[first : first + _ROWS]
            values = (getattr(table, name)[some].tolist() for name in columns)
            yield [line(row, *row_values) for row, *row_values in zip(some.tolist(), *values, strict=True)]

    def _inside(self, table: Any) -> Any:
        """Which rows reach into the window; moments without a duration count too."""
        return (table.end >= self._low) & (table.start <= self._high)

    def _when(self, start: int, end: int) -> str:
        if end >= self._low:
            start = max(start, self._low)
        end = max(start, min(end, self._high))
        return f'"ts":{_us(start - self.base)},"dur":{_us(end - start)}'

    def _op(self, _row: int, start: int, end: int, kind: int, device: int, stream: int, process: int, name: int,
            _correlation: int, launch: int, graph: int, node: int, size: int, direction: int, source: int,
            target: int, grid: int, block: int) -> str:  # fmt: skip
        args = f'"device":{device},"stream":{stream}'
        if launch >= 0:
            args += f',"correlation":{launch + 1}'
        if graph >= 0:
            args += f',"graph id":{graph}'
        if node >= 0:
            args += f',"graph node id":{node}'
        label, category = self._name(name), "kernel"
        if kind in (1, 2):
            category = "gpu_memcpy" if kind == 1 else "gpu_memset"
            args += f',"bytes":{size}'
            if kind == 1:
                label = self._copy_name(name, direction, source, target)
        else:
            args += f',"grid":{_extents(grid)},"block":{_extents(block)}'
        track = f'"pid":{_GPU_PID + device},"tid":{self._track(device, stream, start, end)}'
        return f'{{"ph":"X","cat":"{category}","name":{label},{track},{self._when(start, end)},"args":{{{args}}}}}'

    def _track(self, device: int, stream: int, start: int, end: int) -> int:
        """The first track of a stream on which nothing is under way."""
        tracks = self._tracks.setdefault((device, stream), [(stream if stream >= 0 else _NO_STREAM, start)])
        for position, (number, free) in enumerate(tracks):
            if start >= free:
                tracks[position] = (number, end)
                return number
        tracks.append((self._beside, end))
        self._beside += 1
        return self._beside - 1

    def tracks(self) -> Iterator[dict[str, object]]:
        """The names of the streams' tracks, once all events are written."""
        for (device, stream), tracks in self._tracks.items():
            name = f"stream {stream}" if stream >= 0 else "stream unknown"
            for position, (number, _) in enumerate(tracks):
                beside = f", at the same time ({position + 1})" if position else ""
                yield _meta("thread_name", _GPU_PID + device, number, name + beside)

    def _call(self, row: int, start: int, end: int, name: int, thread: int, _correlation: int) -> str:
        return self._host("cuda_runtime", start, end, name, thread, f'"correlation":{row + 1}')

    def _cpu_op(self, _row: int, start: int, end: int, name: int, thread: int, shapes: int, external: int) -> str:
        args = f'"External id":{external}' if external >= 0 else ""
        if shapes >= 0:
            args += f'{"," if args else ""}"Input Dims":{self._shapes(shapes)}'
        return self._host("cpu_op", start, end, name, thread, args)

    def _range(self, _row: int, start: int, end: int, name: int, thread: int) -> str:
        return self._host("user_annotation", start, end, name, thread, "")

    def _wait(self, _row: int, start: int, end: int, name: int, thread: int) -> str:
        return self._host("os_wait", start, end, name, thread, "")

    def _host(self, category: str, start: int, end: int, name: int, thread: int, args: str) -> str:
        track = self._threads[thread] if thread >= 0 else f'"pid":{_UNKNOWN_PID},"tid":0'
        when = self._when(start, end)
        return f'{{"ph":"X","cat":"{category}","name":{self._name(name)},{track},{when},"args":{{{args}}}}}'

    def _named_copy(self, name: int, direction: int, source: int, target: int) -> str:
        """The name that tells a copy's direction and memory, as Kineto writes it."""
        if direction not in _DIRECTIONS:
            return self._name(name)
        known = source in _MEMORIES or target in _MEMORIES
        ends = f" ({_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')})" if known else ""
        return json.dumps(f"Memcpy {_DIRECTIONS[direction]}{ends}")


@lru_cache(maxsize=4096)
def _extents(packed: int) -> str:
    return json.dumps(extents_of(packed) or (0, 0, 0))


def _us(ns: int) -> str:
    """Microseconds with all digits."""
    whole, rest = divmod(ns, 1000)
    return f"{whole}.{rest:03d}" if rest else str(whole)


def _as_json(text: str) -> str:
    """Recorded JSON as it was; what was cut, as a string."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return json.dumps(text)
    return text
