"""An Nsight Systems SQLite export, open for reading: tables, whole-number columns, texts.

Numbers of large tables are taken from the file's pages where they are stored the plain way, and from SQLite elsewhere.
The file comes from anywhere, so it is treated as hostile: it is never written to, only ordinary tables are read (no
views, no virtual tables), no SQL of its own runs, and no value is trusted to have its column's type.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from gputop_llm.errors import GputopError
from gputop_llm.timeline.model import I64
from gputop_llm.timeline.nsys_columns import Column, quoted
from gputop_llm.timeline.sqlite_pages import SqlitePages, Unusual, Values
from gputop_llm.timeline.unpack import head, shown

MAGIC = b"SQLite format 3\0"

#: Rows of one capture that are kept: 20 M take about 2 GB.
MAX_ROWS = 20_000_000
#: Rows taken from SQLite at once (more fall out of the processor's cache), and pieces of those handed on together.
_ROWS, _PIECES = 2048, 8
#: SQLite's own steps between two looks at `cancelled`: about 20 ms.
_STEPS = 500_000
#: Kernel names of template libraries reach 4 KB.
MAX_TEXT = 8192
_LOCKED_S = 1.0
_WRONG_TYPE = "values of a wrong type"
#: The second is what Python makes of a complaint that quotes damaged bytes of the file.
_FAILURES = (sqlite3.Error, UnicodeDecodeError)


class NsysDb:
    """One export. `label` is the name that the user gave; `skipped` counts rows left out by (table, why)."""

    def __init__(self, path: Path, label: Path, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.label = label
        self.skipped: Counter[tuple[str, str]] = Counter()
        self.rows_read = 0
        self.on_rows: Callable[[], None] | None = None
        self.size_bytes = _size(path)
        self._cancelled = cancelled
        self._columns: dict[str, frozenset[str]] = {}
        self._connection = _open(path, label)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._connection.set_progress_handler(lambda: int(cancelled()), _STEPS)
        # From the first look on until it is closed nobody may write to the file.
        self.rows("BEGIN")
        found = self.rows("SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        self._roots = {str(name): int(root) for name, root in found}
        self.tables = frozenset(self._roots)
        self._pages = None if _unwritten(path) else SqlitePages(path)

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()
        # Only now: closing a file gives up all locks that this process has on it.
        if self._pages is not None:
            self._pages.close()

    def __enter__(self) -> NsysDb:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def columns(self, table: str) -> frozenset[str]:
        """The columns of a table, none if there is no such table."""
        if table not in self._columns:
            # table_info leaves generated columns out: their expressions never run.
            names = self.rows(f"PRAGMA table_info({quoted(table)})") if table in self.tables else ()
            self._columns[table] = frozenset(str(row[1]) for row in names)
        return self._columns[table]

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all of these columns."""
        return table in self.tables and self.columns(table).issuperset(columns)

    def estimated_rows(self, table: str) -> int:
        """How many rows the table has, without reading it; 0 when that can't be told."""
        if table not in self.tables:
            return 0
        try:
            ((rows,),) = self.rows(f"SELECT max(rowid) FROM {quoted(table)}")
        except GputopError:
            return 0
        return max(rows, 0) if isinstance(rows, int) else 0

    def rows(self, sql: str, parameters: Sequence[object] = (), limit: int = 100_000) -> list[tuple[Any, ...]]:
        """The rows of a small query, as SQLite gives them, at most `limit`."""
        try:
            return list(islice(self._connection.execute(sql, parameters), limit))
        except _FAILURES as error:
            raise self._failure(error) from error

    def chunks(
        self, table: str, columns: Sequence[Column], where: str = "1", text: str | None = None
    ) -> Iterator[tuple[list[I64], list[Any]]]:
        """The columns of a table in pieces: an array for each, and the values of `text` for the same rows.

        Rows in which a needed column holds no whole number are left out and counted; in others the default stands.
        """
        if text is None and where == "1":
            last: int | None = None
            try:
                for arrays, rowid in self._from_pages(table, columns):
                    last = rowid
                    yield arrays, []
                return
            except Unusual:
                where = "1" if last is None else f"_rowid_ > {last}"
        yield from self._from_rows(table, columns, where, text)

    def _from_pages(self, table: str, columns: Sequence[Column]) -> Iterator[tuple[list[I64], int]]:
        """Pieces read from the file's pages, each with the rowid of its last row."""
        layout = self._layout(table)
        wanted = sorted({layout[name] for column in columns for name in column.names if name in layout})
        if self._pages is None or not wanted:
            raise Unusual
        for parts, last in self._pages.rows(self._roots[table], len(layout), wanted):
            length = len(parts[0].numbers)
            self._count(length)
            by_name = {name: parts[wanted.index(at)] for name, at in layout.items() if at in wanted}
            read = [
                column.of([by_name[name] for name in column.names])
                if column.names
                else Values(np.broadcast_to(np.int64(column.default or 0), length), None)
                for column in columns
            ]
            lacking = [values.whole for values in read if values.whole is not None]
            if lacking:
                good = np.logical_and.reduce(lacking)
                self.skipped[table, _WRONG_TYPE] += int((~good).sum())
                yield [values.numbers[good] for values in read], last
            else:
                yield [values.numbers for values in read], last

    def _layout(self, table: str) -> dict[str, int]:
        """Where in a row each column stands; nothing for tables that are not stored the plain way.

        A key may stand for the rowid and be stored as NULL; generated columns need not be stored.
        """
        found = self.rows(f"PRAGMA table_xinfo({quoted(table)})") if table in self.tables else []
        if any(key or hidden for *_, key, hidden in found):
            return {}
        return {str(name): position for position, (_, name, *_) in enumerate(found)}

    def _from_rows(
        self, table: str, columns: Sequence[Column], where: str, text: str | None
    ) -> Iterator[tuple[list[I64], list[Any]]]:
        read = [c for c in columns if c.names]
        wanted = [c.sql for c in read]
        sql = f"SELECT {', '.join([*wanted, text] if text else wanted)} FROM {quoted(table)} WHERE {where}"
        pieces: list[I64] = []
        texts: list[Any] = []
        try:
            cursor = self._connection.execute(sql)
            while rows := list(islice(cursor, _ROWS)):
                self._count(len(rows))
                pieces.append(self._numbers(table, read, rows, texts if text else None))
                if len(pieces) == _PIECES:
                    yield _by_column(columns, pieces), texts
                    pieces, texts = [], []
            if pieces:
                yield _by_column(columns, pieces), texts
        except _FAILURES as error:
            raise self._failure(error) from error

    def _numbers(
        self, table: str, columns: Sequence[Column], rows: list[tuple[Any, ...]], texts: list[Any] | None
    ) -> I64:
        """The numbers of some rows, one row after the other; their texts are added to `texts`."""
        width = len(columns)
        try:
            numbers = rows if texts is None else (row[:width] for row in rows)
            flat = np.fromiter(chain.from_iterable(numbers), np.int64, len(rows) * width)
        except (TypeError, ValueError, OverflowError):
            whole = [(self._whole(table, columns, row), row) for row in rows]
            rows = [row for fixed, row in whole if fixed]
            flat = np.array([value for fixed, _ in whole for value in fixed], dtype=np.int64)
        if texts is not None:
            texts += [row[width] for row in rows]
        return flat

    def _whole(self, table: str, columns: Sequence[Column], row: tuple[Any, ...]) -> list[int]:
        """The row with defaults where no whole number stands; nothing (and counted) if a needed one is missing."""
        fixed = [value if type(value) is int else c.default for value, c in zip(row, columns, strict=False)]
        numbers = [value for value in fixed if value is not None]
        if len(numbers) == len(fixed):
            return numbers
        self.skipped[table, _WRONG_TYPE] += 1
        return []

    def _count(self, rows: int) -> None:
        self.rows_read += rows
        if self.rows_read > MAX_ROWS:
            raise too_many_rows(self.label, self.rows_read)
        if self._cancelled():
            raise self._cancel()
        if self.on_rows is not None:
            self.on_rows()

    def _cancel(self) -> GputopError:
        return GputopError(f"reading {shown(self.label)} was cancelled")

    def _failure(self, error: Exception) -> GputopError:
        if "interrupted" in str(error) and self._cancelled():
            return self._cancel()
        return _sentence(self.label, error)


def _by_column(columns: Sequence[Column], pieces: Sequence[I64]) -> list[I64]:
    table = np.concatenate(pieces).reshape(-1, sum(bool(c.names) for c in columns))
    read = iter(table.T)
    return [next(read) if c.names else np.broadcast_to(np.int64(c.default or 0), len(table)) for c in columns]


def too_many_rows(label: Path, rows: int) -> GputopError:
    """The refusal of a capture that would not fit into memory."""
    return GputopError(
        f"will not read {shown(label)}",
        f"it has {rows / 1e6:.0f} million rows or more, and {MAX_ROWS / 1e6:.0f} million is the limit",
        "take a shorter window, leave osrt out of --trace, or use --cuda-graph-trace=graph",
    )


def _open(path: Path, label: Path) -> sqlite3.Connection:
    first = head(path, 100)
    _check_head(path, label, first)
    real = path.resolve()
    unwritten = _unwritten(path)
    # In WAL mode even a reader makes files beside the database; with nothing in the log there is nothing to miss.
    immutable = first[18] == 2 and not unwritten
    try:
        return _connect(real, immutable)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or immutable:
            raise _sentence(label, error) from error
        if unwritten:
            raise GputopError(
                f"cannot read {shown(label)}",
                f"part of it is in {shown(label)}{unwritten[0]}, which cannot be joined here ({error})",
                "let the program that writes it finish, or copy both files to a folder you may write to",
            ) from error
    except _FAILURES as error:
        raise _sentence(label, error) from error
    # A read-only folder, or a file system without locks.
    try:
        return _connect(real, immutable=True)
    except _FAILURES as error:
        raise _sentence(label, error) from error


def _unwritten(path: Path) -> list[str]:
    """The files beside a database that hold changes which aren't in it yet."""
    real = path.resolve()
    return [side for side in ("-wal", "-journal") if _size(real.with_name(real.name + side)) > 0]


def _connect(path: Path, immutable: bool) -> sqlite3.Connection:
    uri = f"{path.as_uri()}?{'immutable=1' if immutable else 'mode=ro'}"
    connection = sqlite3.connect(uri, uri=True, timeout=_LOCKED_S, isolation_level=None)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except _FAILURES:
        connection.close()
        raise
    return connection


def _check_head(path: Path, label: Path, first: bytes) -> None:
    what = f"cannot read {shown(label)}"
    if not first.startswith(MAGIC[: len(first)]):
        raise GputopError(what, "it is not a SQLite file", "give the .sqlite that nsys export wrote")
    size = _size(path)
    page = int.from_bytes(first[16:18], "big")
    pages = int.from_bytes(first[28:32], "big")
    # The page count holds only if it was written with the last change.
    told = (65536 if page == 1 else page) * pages if first[24:28] == first[92:96] else 0
    if len(first) < 100 or told > size:
        raise GputopError(what, f"it is cut: {size:,} of {max(told, 512):,} bytes are there", "copy it again, whole")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sentence(label: Path, error: Exception) -> GputopError:
    what, text = f"cannot read {shown(label)}", str(error)
    if isinstance(error, UnicodeDecodeError):
        text = "malformed texts"
    if "locked" in text or "busy" in text:
        return GputopError(what, "another program is writing it", "wait until the export has finished")
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return GputopError(what, f"the file is damaged ({text})", "export it again from the .nsys-rep")
    return GputopError(what, text)
