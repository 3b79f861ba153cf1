"""One native record on its way into the timeline: first what it says of itself, then its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from gputop_llm.errors import GputopError
from gputop_llm.printable import printable
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.kineto_names import api_name
from gputop_llm.timeline.model import Process
from gputop_llm.timeline.native_chunks import ROWS, Chunks
from gputop_llm.timeline.native_clock import Clocks, RecordClock
from gputop_llm.timeline.native_devices import NativeDevices
from gputop_llm.timeline.native_rows import NativeRows
from gputop_llm.timeline.nsys_db import MAX_ROWS, MAX_TEXT, too_many_rows
from gputop_llm.timeline.unpack import shown

#: Programs have some thousand kernels; beyond this, names are left out.
_MAX_NAMES = 1 << 17
_MAX_NAMES_BYTES = 64 << 20

_ENDED = {
    form.EndReason.STOPPED: "the window was stopped before its time was up",
    form.EndReason.TOO_MANY_BYTES: "the window was ended early: it had reached its limit of bytes",
    form.EndReason.PROFILER_TOOK_OVER: "the window was ended early: another profiler began to collect in the process",
}


class NativeRecord:
    """One file.

    Args:
        plain: the record, unpacked.
        label: what it is called.
        rank: its place among the ranks of one run; None if it is alone.
        cancelled: asked now and then.
    """

    def __init__(self, plain: Path, label: Path, rank: int | None, cancelled: Callable[[], bool]) -> None:
        self.label = label
        self.rank = rank
        self.kinds = form.Kinds(0)
        self.node_level = False
        self.whole = False
        self.window = (0, 0)
        self.tool = "native CUPTI window"
        self._size = max(plain.stat().st_size, 1)
        self._chunks = Chunks(plain, label, cancelled)
        self._pid: int | None = None
        self._started: tuple[int, ...] | None = None
        self._ended: tuple[int, ...] | None = None
        self._kernel_names: dict[int, str] = {}
        self._api_names: dict[int, str] = {}
        self._names_bytes = 0
        self._names_left_out = 0
        self._rows: NativeRows | None = None
        self._clock: RecordClock | None = None

    def read(self, builder: TimelineBuilder, devices: NativeDevices, share: Callable[[float], None]) -> None:
        """Moves everything into the builder.

        Raises:
            GputopError: it can't be read, or holds no window.
        """
        for kind, payload in self._chunks.walk(lambda kind: kind not in ROWS):
            self._told(kind, payload)
        self._clock = clock = self._made_clock()
        process = len(builder.processes)
        builder.processes.append(Process(self._pid, rank=self.rank))
        number = devices.of_process(process, self._pid)
        rows = self._rows = NativeRows(builder, process, clock, self._kernel_names, self._api_names, number)
        for kind, chunk in self._chunks.walk(lambda kind: kind in ROWS, lambda at: share(at / self._size)):
            rows.take(kind, chunk)
            if rows.rows > MAX_ROWS:
                raise too_many_rows(self.label, rows.rows)
        self.whole = self._chunks.whole
        self.node_level = rows.node_rows > 0
        start, end = clock.window()
        self.window = start, end if end is not None else max(rows.span[1] if rows.span else start, start)
        share(1.0)

    def warnings(self) -> Iterator[str]:
        """What a reader of the verdict should know of it."""
        assert self._clock is not None
        assert self._rows is not None
        if not self.whole:
            yield "the record is cut before its end: work is missing, and the window ends with the last that is there"
        yield from self._chunks.damage
        yield from self._clock.warnings
        if self._ended is not None:
            reason, unreturned, dropped = self._ended[4], self._ended[5], self._ended[6]
            if reason in _ENDED:
                yield _ENDED[form.EndReason(reason)]
            if dropped:
                yield f"CUPTI dropped {dropped:,} records: the GPU did more than what is seen here"
            if unreturned:
                yield f"{unreturned:,} buffers of records never came back: the GPU did more than what is seen here"
        if self._clock.lost:
            yield f"{self._clock.lost:,} rows were left out: their times lie in no clock of the record"
        if self._rows.other_devices:
            yield f"{self._rows.other_devices:,} rows were left out: they name devices that cannot be"
        if self._rows.unnamed:
            yield f"the names of {len(self._rows.unnamed):,} kernels are not in the record"
        if self._names_left_out:
            yield f"{self._names_left_out:,} names were left out: a record has at most {_MAX_NAMES:,}"

    def _told(self, kind: int, payload: bytes) -> None:
        """One chunk that is no rows. What comes twice counts once."""
        if kind == form.Chunk.HELLO and self._pid is None and len(payload) >= form.HELLO.size:
            version, self._pid, _, cupti = form.HELLO.unpack_from(payload)
            if version != form.VERSION:
                raise GputopError(
                    f"cannot read {shown(self.label)}",
                    f"its format is {version}, and this program knows {form.VERSION}",
                    "open it with the version of gputop-llm that took it",
                )
            self.tool = f"native CUPTI window (CUPTI {cupti})"
        elif kind == form.Chunk.REFUSED and self._started is None and len(payload) >= form.REFUSED.size:
            why = payload[form.REFUSED.size :].decode("utf-8", "replace")
            raise GputopError(f"{shown(self.label)} holds no window", f"the client refused: {printable(why, 400)}")
        elif kind == form.Chunk.STARTED and self._started is None and len(payload) >= form.STARTED.size:
            self._started = form.STARTED.unpack_from(payload)
            self.kinds = form.Kinds(self._started[4] & sum(form.Kinds))
        elif kind == form.Chunk.END and len(payload) >= form.END.size:
            self._ended = form.END.unpack_from(payload)
        elif kind == form.Chunk.NAME:
            self._named(self._kernel_names, form.NAME.size, payload)
        elif kind == form.Chunk.API_NAME:
            self._named(self._api_names, form.API_NAME.size, payload)

    def _named(self, names: dict[int, str], head: int, payload: bytes) -> None:
        if len(payload) < head:
            return
        text = payload[head : head + MAX_TEXT].rstrip(b"\0").decode("utf-8", "replace")
        self._names_bytes += len(text)
        if len(names) >= _MAX_NAMES or self._names_bytes > _MAX_NAMES_BYTES:
            self._names_left_out += 1
            return
        number = int.from_bytes(payload[:head], "little")
        names.setdefault(number, api_name(text) if names is self._api_names else text)

    def _made_clock(self) -> RecordClock:
        if self._started is None:
            raise GputopError(
                f"{shown(self.label)} holds no window",
                "it ends before recording began",
                "take the capture again",
            )
        try:
            return RecordClock(Clocks(*self._started[:4]), Clocks(*self._ended[:4]) if self._ended else None)
        except ValueError as error:
            raise GputopError(f"cannot read {shown(self.label)}", str(error), "take the capture again") from None
