"""Exports without tables or columns, and those that are too large or no longer wanted."""

from __future__ import annotations

import sqlite3

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline import nsys_db
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.captures import CAPTURES
from tests.support.nsys_figures import counts, decode
from tests.support.nsys_files import changed
from tests.support.synth_nsys import to_nsys_sqlite

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


@pytest.fixture
def export(tmp_path):
    return to_nsys_sqlite(decode(), tmp_path / "capture.sqlite")


def refusal(path):
    with pytest.raises(GputopError) as caught:
        read_nsys([path])
    return caught.value.sentence()


@pytest.mark.parametrize("column", ["start", "end", "deviceId", "streamId"])
def test_a_needed_column_is_named_when_it_is_missing(export, column):
    changed(export, f"ALTER TABLE {KERNEL} DROP COLUMN {column}")

    sentence = refusal(export)
    assert KERNEL in sentence
    assert column in sentence


@pytest.mark.parametrize(
    ("table", "column", "key"),
    [(RUNTIME, "nameId", "launches"), ("NVTX_EVENTS", "globalTid", "ranges"), ("OSRT_API", "start", "os_waits")],
)
def test_a_host_table_without_a_column_is_unknown_and_named(export, table, column, key):
    changed(export, f"ALTER TABLE {table} DROP COLUMN {column}")
    missing = read_nsys([export]).origin.missing

    assert table in missing[key]
    assert column in missing[key]


@pytest.mark.parametrize(
    ("table", "key"),
    [
        (RUNTIME, "launches"),
        ("NVTX_EVENTS", "ranges"),
        ("OSRT_API", "os_waits"),
        ("TARGET_INFO_GPU", "device_names"),
    ],
)
def test_a_missing_table_is_unknown(export, table, key):
    changed(export, f"DROP TABLE {table}")
    timeline = read_nsys([export])

    assert counts(timeline) == (3, 6, 3, 3)
    assert key in timeline.origin.missing


def test_every_table_but_the_kernels_may_be_missing(export):
    database = sqlite3.connect(export)
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    database.close()
    changed(export, *(f"DROP TABLE {table}" for table in tables if table != KERNEL))
    timeline = read_nsys([export])

    assert counts(timeline) == (3, 0, 0, 0)
    assert timeline.origin.schema is None


def test_empty_tables_make_an_empty_timeline(export):
    changed(export, *(f"DELETE FROM CUPTI_ACTIVITY_KIND_{t}" for t in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")))
    timeline = read_nsys([export])

    assert counts(timeline) == (0, 0, 0, 0)
    assert "CUDA calls were recorded but no work" in timeline.origin.missing["device_activity"]
    assert timeline.window_ns > 0


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("No CUDA events collected. Does the process use CUDA?", "the traced process does not use CUDA"),
        ("Profiling has started.", "no CUDA rows"),
    ],
)
def test_a_capture_of_the_wrong_process_says_so(tmp_path, said, why):
    path = to_nsys_sqlite(decode(), tmp_path / "capture.sqlite", diagnostics=[(2, said)])
    changed(
        path, *(f"DROP TABLE CUPTI_ACTIVITY_KIND_{t}" for t in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME"))
    )

    assert why in read_nsys([path]).origin.missing["device_activity"]


# Too large, or unwanted.


def test_too_many_rows_are_refused_before_they_are_read(export, monkeypatch):
    monkeypatch.setattr("gputop_llm.timeline.read_nsys.MAX_ROWS", 10)

    assert "million is the limit" in refusal(export)


def test_too_many_rows_are_refused_even_if_the_file_hides_their_number(export, monkeypatch):
    monkeypatch.setattr(nsys_db, "MAX_ROWS", 10)

    assert "million is the limit" in refusal(export)


def test_a_row_number_beyond_reason_is_no_reason_to_refuse(export):
    changed(export, f"UPDATE {KERNEL} SET rowid = 9223372036854775807 WHERE rowid = 3")

    assert counts(read_nsys([export]))[0] == 3


@pytest.mark.parametrize("looks", [0, 1, 5])
def test_reading_ends_when_it_is_cancelled(looks):
    asked = iter(range(10**9))

    with pytest.raises(GputopError, match="was cancelled"):
        read_nsys(
            [CAPTURES / "h200" / "nsys-2023.4.4_torch-eager-decode.sqlite.xz"], None, lambda: next(asked) >= looks
        )
