"""Walks the chunks of a native capture record, in bounded memory, whatever its bytes say.

A record may be cut anywhere (the target ended, the disk was full): what is whole counts.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gputop_llm.errors import GputopError
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.unpack import shown

#: The most that a window may send, with room for what stands around the rows.
MAX_BYTES = form.MAX_WINDOW_BYTES + 4 * form.MAX_PAYLOAD_BYTES
#: A record has a chunk for each buffer and each name; this many are no record but damage.
MAX_CHUNKS = 1 << 20
_ASK_EVERY = 1024

ROWS: dict[int, Any] = {
    form.Chunk.KERNELS: np.dtype(form.KERNEL_ROW),
    form.Chunk.COPIES: np.dtype(form.COPY_ROW),
    form.Chunk.MEMSETS: np.dtype(form.MEMSET_ROW),
    form.Chunk.CALLS: np.dtype(form.CALL_ROW),
}


class Chunks:
    """One record, walked as often as needed.

    `warnings` says what is wrong with it, once a walk is over; `whole` whether it ends with an END chunk.

    Args:
        path: the plain file.
        label: what to call it.
        cancelled: asked now and then; true ends the walk.
    """

    def __init__(self, path: Path, label: Path, cancelled: Callable[[], bool]) -> None:
        self._path, self.label, self._cancelled = path, label, cancelled
        self.damage: Counter[str] = Counter()
        self.whole = False

    def walk(self, wanted: Callable[[int], bool], at: Callable[[int], None] = lambda _: None) -> Iterator[Any]:
        """(kind, payload) of each chunk that is wanted, up to the END or to where the record is cut.

        Rows come as structured arrays of whole rows, all else as bytes. `at` is told the position, in bytes.

        Raises:
            GputopError: the file can't be read, is no record, is too large, or `cancelled` said yes.
        """
        self.damage.clear()
        self.whole = False
        try:
            with self._path.open("rb") as file:
                yield from self._chunks(file, wanted, at)
        except OSError as error:
            raise GputopError(f"cannot read {shown(self.label)}", str(error.strerror or error)) from error

    def _chunks(self, file: BinaryIO, wanted: Callable[[int], bool], at: Callable[[int], None]) -> Iterator[Any]:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise GputopError(
                f"will not read {shown(self.label)}",
                f"it has {size / 2**30:.1f} GiB, and {MAX_BYTES / 2**30:.1f} GiB is the limit of a window",
                "take a shorter window",
            )
        if file.read(len(form.MAGIC)) != form.MAGIC:
            raise GputopError(f"cannot read {shown(self.label)}", "it is no native capture record")
        for number in range(MAX_CHUNKS):
            if number % _ASK_EVERY == 0 and self._cancelled():
                raise GputopError(f"reading {shown(self.label)} was cancelled")
            header = file.read(form.CHUNK_HEADER.size)
            if len(header) < form.CHUNK_HEADER.size:
                return
            kind, length = form.CHUNK_HEADER.unpack(header)
            if length > form.MAX_PAYLOAD_BYTES:
                self.damage[f"it is damaged at byte {file.tell()}: what follows was left out"] += 1
                return
            present = min(length, size - file.tell())
            if wanted(kind):
                payload = file.read(present)
                at(file.tell())
                if present == length or kind in ROWS:
                    yield kind, self._rows(kind, payload, cut=present < length) if kind in ROWS else payload
            else:
                file.seek(present, os.SEEK_CUR)
            if present < length:
                return
            if kind == form.Chunk.END and length >= form.END.size:
                self.whole = True
                if file.tell() < size:
                    self.damage["what follows its end was left out"] += 1
                return
        self.damage[f"it has more than {MAX_CHUNKS:,} chunks: what follows was left out"] += 1

    def _rows(self, kind: int, payload: bytes, cut: bool) -> Any:
        row = ROWS[kind]
        count = len(payload) // row.itemsize
        if len(payload) % row.itemsize and not cut:
            self.damage["the rows of a chunk do not fill it: the odd bytes were left out"] += 1
        return np.frombuffer(payload, dtype=row, count=count)
