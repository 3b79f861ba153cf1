"""Rows of an SQLite table from the pages of its file, whole columns at once.

SQLite hands out one row after the other as Python objects, which for millions of rows takes most of the time that a
verdict takes. Here a table's leaves are decoded many at a time (https://www.sqlite.org/fileformat2.html, "B-tree Pages"
and "Record Format"). Only numbers of rows that lie whole within their page are read; whatever else is met raises
`Unusual`, and is left to SQLite, which also knows what damage is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gputop_llm.timeline.model import I64, U8

Mask = NDArray[np.bool_]

_LEAF, _INTERIOR = 13, 5
_LEAF_HEAD, _INTERIOR_HEAD = 8, 12
#: Each level multiplies the pages by two at the very least, and there are less than 2³².
_DEEPEST = 32
#: Pages decoded at once: about as much as a processor's cache holds.
_BATCH_BYTES = 1 << 20
#: What may be read beyond the last page's end before the checks: a whole header and a word.
_PAD = 256
#: A column's type is one byte for numbers and short texts; a header of more than this has longer ones.
_MOST_COLUMNS = 120
_FLOAT, _ZERO, _ONE, _RESERVED, _TEXT = 7, 8, 9, (10, 11), 12
#: By type: bytes of the value, and by how much a word that begins with it is shifted to leave it alone.
_SIZES = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((n - _TEXT) // 2 for n in range(_TEXT, 128))], dtype=np.int64)
_SHIFTS = np.where((_SIZES > 0) & (_SIZES <= 8), 64 - 8 * _SIZES, 0)
_LAST_OF_NUMBER = np.uint64(0x8080808080808080)


class Unusual(Exception):
    """The table, or this part of it, is not stored the plain way."""


class Values(NamedTuple):
    """A column of some rows; `whole` tells where it holds a whole number, None: everywhere."""

    numbers: I64
    whole: Mask | None


class SqlitePages:
    """One SQLite file. Whoever opens it sees to it that nobody writes to it meanwhile."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        head = self._file.read(100)
        told = int.from_bytes(head[16:18], "big")
        self._page = 65536 if told == 1 else told
        self._usable = self._page - head[20]
        if self._page < 512 or self._page & (self._page - 1) or self._usable < 480:
            self._page = 0
            return
        self._pages = os.fstat(self._file.fileno()).st_size // self._page

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def rows(self, root: int, width: int, wanted: Sequence[int]) -> Iterator[tuple[list[Values], int]]:
        """The rows of the table with this root page and so many columns, in pieces in the order of their rowids.

        Each piece holds the columns `wanted` (positions in the table), and the rowid of its last row.

        Raises:
            Unusual: the next piece must be read by SQLite. All pieces before are right.
        """
        if not self._page or width > _MOST_COLUMNS or not 0 < root <= self._pages:
            raise Unusual
        try:
            leaves = self._leaves(root)
            step = max(1, _BATCH_BYTES // self._page)
            for first in range(0, len(leaves), step):
                rows = self._decoded(leaves[first : first + step], width, wanted)
                if rows is not None:
                    yield rows
        except (IndexError, OSError) as error:
            raise Unusual from error

    def _leaves(self, root: int) -> I64:
        level = np.array([root], dtype=np.int64)
        for _ in range(_DEEPEST):
            if self._read(level[:1])[0] == _LEAF:
                return level
            level = np.concatenate([self._children(int(page)) for page in level])
            # More than the file has: pages that point at one another.
            if len(level) > self._pages or level.min() < 1 or level.max() > self._pages:
                raise Unusual
        raise Unusual

    def _children(self, page: int) -> I64:
        data = self._read(np.array([page]))
        count = int(data[3]) << 8 | int(data[4])
        if data[0] != _INTERIOR or _INTERIOR_HEAD + 2 * count > self._usable:
            raise Unusual
        cells = data[_INTERIOR_HEAD : _INTERIOR_HEAD + 2 * count].view(">u2").astype(np.int64)
        # The last child stands in the page's own head.
        at = np.append(cells, 8)
        children: I64 = _words(data, at) >> 32
        return children & 0xFFFFFFFF

    def _read(self, pages: I64) -> U8:
        """The pages one after the other, and some zeros."""
        size = self._page
        data = bytearray(len(pages) * size + _PAD)
        view = memoryview(data)
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        for first, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(pages)], strict=True):
            place = view[first * size : end * size]
            if os.preadv(self._file.fileno(), [place], (int(pages[first]) - 1) * size) != len(place):
                raise Unusual
        return np.frombuffer(data, dtype=np.uint8)

    def _decoded(self, pages: I64, width: int, wanted: Sequence[int]) -> tuple[list[Values], int] | None:
        data = self._read(pages)
        header, ends = self._headers(data, len(pages))
        if not len(header):
            return None
        last = _rowid(data, int(header[-1]))
        header = header + _length(data, header)
        # One byte for the header's own size and for each type.
        if bool((data[header] != width + 1).any()):
            raise Unusual
        count = max(wanted) + 1
        rows = np.ndarray(len(data) - count + 1, f"V{count}", data, strides=(1,))[header + 1]
        types = np.ascontiguousarray(rows.view(np.uint8).reshape(-1, count).T)
        low, high = types.min(axis=1).tolist(), types.max(axis=1).tolist()
        if max(high) > 127 or bool(((types == _RESERVED[0]) | (types == _RESERVED[1])).any()):
            raise Unusual
        at = header + (width + 1)
        found = {}
        for column in range(count):
            if column in wanted:
                found[column] = _column(data, at, types[column], low[column], high[column])
            at = at + (_SIZES[low[column]] if low[column] == high[column] else _SIZES[types[column]])
        if bool((at > ends).any()):
            raise Unusual
        return [found[column] for column in wanted], last

    def _headers(self, data: U8, pages: int) -> tuple[I64, I64]:
        """Where in the pages' bytes each row's rowid begins (its header follows), and where the row ends."""
        size = self._page
        table = data[: pages * size].reshape(pages, size)
        counts = table[:, 3].astype(np.int64) << 8 | table[:, 4]
        most = int(counts.max())
        if bool((table[:, 0] != _LEAF).any()) or _LEAF_HEAD + 2 * most > self._usable:
            raise Unusual
        cells = np.ascontiguousarray(table[:, _LEAF_HEAD : _LEAF_HEAD + 2 * most]).view(">u2")
        used = np.arange(most) < counts[:, None]
        bases = np.repeat(np.arange(pages, dtype=np.int64) * size, counts)
        at = bases + cells[used]
        length: Any = data[at].astype(np.int64)
        at += 1
        long = length > 127
        if bool(long.any()):
            second = data[at].astype(np.int64)
            if bool((second[long] > 127).any()):
                raise Unusual
            length = np.where(long, (length & 127) << 7 | second, length)
            at += long
        ends = at + _length(data, at) + length
        # Longer rows go on in pages of their own.
        if bool((length > self._usable - 35).any()) or bool((ends > bases + self._usable).any()):
            raise Unusual
        return at, ends


def _words(data: U8, at: I64) -> I64:
    """The eight bytes at each place, as a signed number."""
    words: I64 = np.ndarray(len(data) - 7, ">i8", data, strides=(1,))[at].astype(np.int64)
    return words


def _length(data: U8, at: I64) -> I64:
    """How many bytes the variable-length number at each place takes: up to the first below 128."""
    ends = ~_words(data, at).view(np.uint64) & _LAST_OF_NUMBER
    length = np.ones(len(at), dtype=np.int64)
    for bit in range(63, 0, -8):
        more = ends < np.uint64(1 << bit)
        if not more.any():
            return length
        length += more
    raise Unusual


def _rowid(data: U8, at: int) -> int:
    number = 0
    for byte in data[at : at + 8].tolist():
        number = number << 7 | byte & 127
        if byte < 128:
            break
    return number


def _column(data: U8, at: I64, types: U8, low: int, high: int) -> Values:
    """The values at these places: of one type mostly, which then needs no look at each."""
    if low == high:
        if low in (_ZERO, _ONE):
            return Values(np.broadcast_to(np.int64(low - _ZERO), len(at)), None)
        if low in (0, _FLOAT) or low >= _TEXT:
            return Values(np.broadcast_to(np.int64(0), len(at)), np.broadcast_to(np.bool_(False), len(at)))
        return Values(_words(data, at) >> int(_SHIFTS[low]), None)
    numbers = _words(data, at) >> _SHIFTS[types]
    constant = (types == _ZERO) | (types == _ONE)
    if bool(constant.any()):
        numbers[constant] = types[constant] - _ZERO
    whole = (types != 0) & (types != _FLOAT) & (types < _TEXT)
    return Values(numbers, None if bool(whole.all()) else whole)
