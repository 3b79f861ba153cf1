"""Rows from a file's pages are those that SQLite gives, in its order, up to where the reader leaves them to SQLite."""

from __future__ import annotations

import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.timeline.nsys_columns import Column
from gputop_llm.timeline.nsys_db import NsysDb
from gputop_llm.timeline.sqlite_pages import SqlitePages, Unusual

NUMBERS = st.one_of(
    st.integers(-2, 2),
    st.integers(-(2**15), 2**15),
    st.integers(-(2**47), 2**47),
    st.integers(-(2**63), 2**63 - 1),
)
PLAIN = st.one_of(NUMBERS, st.none(), st.floats(allow_nan=False), st.text(max_size=12), st.binary(max_size=40))
ANY = st.one_of(PLAIN, st.text(min_size=150, max_size=700))


def write(path, rows, width, page_size, deleted=()):
    """A table of columns c0, c1, … without affinity; rows by number are deleted again."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA page_size = {page_size}")
        database.execute(f"CREATE TABLE t ({', '.join(f'c{i}' for i in range(width))})")
        database.executemany(f"INSERT INTO t VALUES ({', '.join('?' * width)})", rows)
        database.executemany("DELETE FROM t WHERE rowid = ?", [(row,) for row in deleted])


def by_pages(path, width, wanted):
    """The rows as the pages give them (None where no whole number stands), and whether that was all."""
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'")
    found, last = [], None
    with closing(SqlitePages(path)) as pages:
        try:
            for parts, rowid in pages.rows(root, width, wanted):
                columns = [
                    [
                        n if ok else None
                        for n, ok in zip(
                            numbers.tolist(), np.broadcast_to(True if w is None else w, len(numbers)), strict=True
                        )
                    ]
                    for numbers, w in parts
                ]
                found += list(zip(*columns, strict=True))
                last = rowid
        except Unusual:
            return found, last, False
    return found, last, True


def by_sqlite(path, wanted):
    names = ", ".join(f"c{i}" for i in wanted)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(f"SELECT rowid, {names} FROM t").fetchall()
    return [row for row, *_ in rows], [tuple(v if type(v) is int else None for v in row) for _, *row in rows]


@st.composite
def tables(draw, values):
    width = draw(st.integers(1, 5))
    rows = draw(st.lists(st.tuples(*[values] * width), max_size=12)) * draw(st.sampled_from((1, 7, 60)))
    wanted = sorted(draw(st.sets(st.integers(0, width - 1), min_size=1)))
    deleted = draw(st.lists(st.integers(1, max(1, len(rows))), max_size=5))
    return width, rows, wanted, deleted, draw(st.sampled_from((512, 1024, 4096)))


@settings(max_examples=150, deadline=None)
@given(tables(PLAIN))
def test_plain_tables_are_read_whole(table):
    width, rows, wanted, deleted, page_size = table
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path, rows, width, page_size, deleted)
        found, _, complete = by_pages(path, width, wanted)
        assert complete
        assert found == by_sqlite(path, wanted)[1]


@settings(max_examples=150, deadline=None)
@given(tables(ANY))
def test_what_is_read_before_something_unusual_is_right(table):
    width, rows, wanted, deleted, page_size = table
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path, rows, width, page_size, deleted)
        found, last, complete = by_pages(path, width, wanted)
        rowids, right = by_sqlite(path, wanted)
        assert found == right[: len(found)]
        assert complete is (len(found) == len(right)) or not complete
        assert not found or last == rowids[len(found) - 1]


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_deep_trees_with_rows_of_every_width(tmp_path, page_size):
    chance = random.Random(page_size)
    rows = [
        tuple(chance.choice((0, 1, None, chance.getrandbits(chance.randint(1, 63)))) for _ in range(6))
        for _ in range(40_000)
    ]
    write(tmp_path / "file", rows, 6, page_size, deleted=range(1, 40_000, 7))
    found, _, complete = by_pages(tmp_path / "file", 6, (0, 2, 5))
    assert complete
    assert found == by_sqlite(tmp_path / "file", (0, 2, 5))[1]


def test_rows_after_one_that_does_not_fit_its_page_are_read_too(tmp_path):
    # Long enough before it for pieces to have been read from the pages.
    rows = [(i, i % 3 or None, "") for i in range(200_000)]
    rows[150_000] = (150_000, 5, "x" * 10_000)
    write(tmp_path / "file", rows, 3, 4096)
    found, _, complete = by_pages(tmp_path / "file", 3, (0, 1))
    assert 0 < len(found) < 150_000
    assert not complete
    with NsysDb(tmp_path / "file", tmp_path / "file") as database:
        chunks = [numbers for numbers, _ in database.chunks("t", [Column(("c0",)), Column(("c1",), 9)])]
        assert database.rows_read == len(rows)
    first, second = np.concatenate(chunks, axis=1)
    assert first.tolist() == [row[0] for row in rows]
    assert second.tolist() == [9 if row[1] is None else row[1] for row in rows]


@pytest.mark.parametrize("key", ["", "PRIMARY KEY"], ids=["from pages", "from SQLite"])
def test_the_first_of_several_columns(tmp_path, key):
    rows = [
        (1, 2, 3, 4),
        (2, None, 5, 6),
        (3, "text", 7, 8),
        (4, 2.5, 1, 9),
        (5, 1 << 40, 1 << 40, 2),
        (6, None, None, 3),
        (7, -3, 4, 1),
    ]
    with closing(sqlite3.connect(tmp_path / "file")) as database, database:
        database.execute(f"CREATE TABLE t (id INTEGER {key}, a, b, c, none)")
        database.executemany("INSERT INTO t VALUES (?, ?, ?, ?, NULL)", rows)
    columns = [Column(("id",)), Column(("none", "a"), -1), Column((), 5)]
    with NsysDb(tmp_path / "file", tmp_path / "file") as database:
        ((numbers, _),) = list(database.chunks("t", columns))
    assert [row.tolist() for row in numbers] == [
        [1, 2, 3, 4, 5, 6, 7],
        [2, -1, -1, -1, 1 << 40, -1, -3],
        [5] * 7,
    ]


def test_rows_without_a_needed_number_are_left_out_and_counted(tmp_path):
    write(tmp_path / "file", [(1, 1), (None, 2), ("three", 3), (4, None)], 2, 4096)
    with NsysDb(tmp_path / "file", tmp_path / "file") as database:
        ((numbers, _),) = list(database.chunks("t", [Column(("c0",)), Column(("c1",), 0)]))
        assert sum(database.skipped.values()) == 2
    assert [row.tolist() for row in numbers] == [[1, 4], [1, 0]]


def test_nobody_writes_while_the_file_is_open(tmp_path):
    write(tmp_path / "file", [(1,)], 1, 4096)
    with closing(sqlite3.connect(tmp_path / "file", timeout=0)) as writer:
        with NsysDb(tmp_path / "file", tmp_path / "file") as database:
            list(database.chunks("t", [Column(("c0",))]))
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                writer.execute("INSERT INTO t VALUES (2)").connection.commit()
            writer.rollback()
        writer.execute("INSERT INTO t VALUES (2)").connection.commit()


@pytest.mark.parametrize("child", [0, 2, 1 << 31], ids=["none", "itself", "beyond the file"])
def test_pages_that_lead_nowhere_are_left_to_sqlite(tmp_path, child):
    path = tmp_path / "file"
    write(path, [(i,) for i in range(5_000)], 1, 512)
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as database:
        ((root,),) = database.execute("SELECT rootpage FROM sqlite_master")
    page = (root - 1) * 512
    assert data[page] == 5
    data[page + 8 : page + 12] = (root if child == 2 else child).to_bytes(4, "big")
    path.write_bytes(data)
    assert by_pages(path, 1, (0,))[2] is False
