"""Damaged, hostile and foreign files end in one sentence, or in a timeline that says what it lacks."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline import nsys_db
from gputop_llm.timeline.model import Kind
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.nsys_figures import counts, decode, names
from tests.support.nsys_files import changed
from tests.support.synth_nsys import to_nsys_sqlite

KERNEL, RUNTIME = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"


@pytest.fixture
def export(tmp_path):
    return to_nsys_sqlite(decode(), tmp_path / "capture.sqlite")


@contextmanager
def without_rights():
    """As a user to whom permissions apply."""
    user = os.geteuid()
    os.seteuid(65534 if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def locked_folder():
    """A folder in which nobody but its owner may make files, with a capture in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = to_nsys_sqlite(decode(), folder / "capture.sqlite")
        folder.chmod(0o555)
        yield path
        folder.chmod(0o755)


def refusal(path, **more):
    with pytest.raises(GputopError) as caught:
        read_nsys([path], **more)
    sentence = caught.value.sentence()
    assert "\n" not in sentence
    return sentence


# Not an export at all.


def test_no_such_file(tmp_path):
    assert "No such file" in refusal(tmp_path / "capture.sqlite")


def test_a_folder(tmp_path):
    assert "it is a folder" in refusal(tmp_path)


def test_an_empty_file(tmp_path):
    path = tmp_path / "capture.sqlite"
    path.touch()

    assert "the file is empty" in refusal(path)


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    assert "not a regular file" in refusal(path)


def test_a_file_that_may_not_be_read(export):
    export.chmod(0)

    with without_rights():
        assert "Permission denied" in refusal(export)


@pytest.mark.parametrize(
    "content", [b"x", b'{"traceEvents": []}', b"\x7fELF" + bytes(500), b"SQLite format 2\0" + bytes(100)]
)
def test_something_else(tmp_path, content):
    path = tmp_path / "capture.sqlite"
    path.write_bytes(content)

    assert "not a SQLite file" in refusal(path)


def test_a_database_of_something_else(tmp_path):
    path = changed(tmp_path / "places.sqlite", "CREATE TABLE moz_places (id INTEGER, url TEXT)")

    assert "not an export of Nsight Systems" in refusal(path)


def test_names_with_terminal_escapes_are_shown_inert(tmp_path):
    path = tmp_path / "a\x1b[31m[bold]\nb.sqlite"
    path.write_bytes(b"nothing")

    sentence = refusal(path)
    assert "\x1b" not in sentence
    assert "\\x1b" in sentence


# Cut and broken.


@pytest.mark.parametrize("kept", [1, 40, 99, 100, 512, 4096, 8192, -4096, -1])
def test_a_cut_export(export, kept):
    whole = export.read_bytes()
    export.write_bytes(whole[:kept])

    sentence = refusal(export)
    assert any(word in sentence for word in ("is cut", "not a SQLite file", "damaged"))


@pytest.mark.parametrize("page", range(1, 12))
def test_a_page_of_noise_never_crashes(export, page):
    whole = bytearray(export.read_bytes())
    whole[page * 4096 : (page + 1) * 4096] = os.urandom(4096)
    export.write_bytes(whole)

    # Any other exception fails the test.
    with suppress(GputopError):
        read_nsys([export])


# Written by somebody at the same time; folders that can't be written to.


def test_a_database_in_exclusive_use(export, monkeypatch):
    monkeypatch.setattr(nsys_db, "_LOCKED_S", 0.05)
    writer = sqlite3.connect(export, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert "another program is writing it" in refusal(export)
    finally:
        writer.close()


def test_an_export_in_wal_mode_is_read_and_nothing_left_beside_it(export):
    changed(export, "PRAGMA journal_mode = WAL", f"DELETE FROM {KERNEL} WHERE rowid = 1")

    assert counts(read_nsys([export]))[0] == 2
    assert [path.name for path in export.parent.iterdir()] == [export.name]


def test_what_stands_only_in_the_log_is_read_too(export):
    writer = sqlite3.connect(export, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"DELETE FROM {KERNEL} WHERE rowid = 1")
    try:
        assert export.with_name("capture.sqlite-wal").stat().st_size > 0
        assert counts(read_nsys([export]))[0] == 2
    finally:
        writer.close()


def test_a_capture_in_a_folder_that_is_read_only(locked_folder):
    with without_rights():
        assert counts(read_nsys([locked_folder])) == (3, 6, 3, 3)


def test_a_capture_in_wal_mode_in_a_folder_that_is_read_only(locked_folder):
    locked_folder.parent.chmod(0o755)
    changed(locked_folder, "PRAGMA journal_mode = WAL")
    locked_folder.parent.chmod(0o555)

    with without_rights():
        assert counts(read_nsys([locked_folder])) == (3, 6, 3, 3)


def test_a_log_that_cannot_be_joined_is_not_passed_over(locked_folder):
    log = locked_folder.with_name("capture.sqlite-wal")
    locked_folder.parent.chmod(0o755)
    writer = sqlite3.connect(locked_folder, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute(f"DELETE FROM {KERNEL}")
    kept = log.read_bytes()
    writer.close()
    log.write_bytes(kept)
    locked_folder.parent.chmod(0o555)

    with without_rights():
        sentence = refusal(locked_folder)
    assert "capture.sqlite-wal, which cannot be joined" in sentence
    assert "copy both files" in sentence


def test_reading_changes_no_byte(export):
    before, stat = export.read_bytes(), export.stat()
    read_nsys([export])

    assert export.read_bytes() == before
    assert export.stat().st_mtime_ns == stat.st_mtime_ns


def test_several_readers_at_once(export):
    found = []
    threads = [threading.Thread(target=lambda: found.append(counts(read_nsys([export])))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert found == [counts(read_nsys([export]))] * 4


# Hostile content.


def test_views_in_the_place_of_tables_are_not_read(export):
    changed(
        export,
        f"ALTER TABLE {KERNEL} RENAME TO kept",
        f"CREATE VIEW {KERNEL} AS SELECT * FROM kept, kept AS again, kept AS third",
    )

    assert counts(read_nsys([export]))[0] == 0


def test_generated_columns_are_not_worked_out(export):
    changed(
        export,
        f"ALTER TABLE {KERNEL} DROP COLUMN correlationId",
        f"ALTER TABLE {KERNEL} ADD COLUMN correlationId INTEGER AS (abs(-9223372036854775807 - 1)) VIRTUAL",
    )
    timeline = read_nsys([export])

    assert counts(timeline)[0] == 3
    assert (timeline.ops.launch[timeline.ops.kind == Kind.KERNEL] == -1).all()


def test_names_of_bytes_and_of_nonsense(export):
    changed(
        export,
        "UPDATE StringIds SET value = CAST(x'ff41fe' AS TEXT) WHERE value = 'gemm<float, 8>'",
        "UPDATE StringIds SET value = x'00' WHERE value = 'python3'",
    )
    timeline = read_nsys([export])

    assert names(timeline, "ops")["\ufffdA\ufffd"] == 3
    assert timeline.threads[0].name is None


def test_a_name_that_is_nowhere_is_unknown(export):
    changed(export, "DELETE FROM StringIds WHERE value = 'gemm<float, 8>'", f"UPDATE {RUNTIME} SET nameId = -5")
    timeline = read_nsys([export])

    assert names(timeline, "ops")[""] == 3
    assert set(names(timeline, "calls")) == {""}


def test_strings_without_a_key_are_found(export):
    changed(
        export,
        "CREATE TABLE copied (id INTEGER, value TEXT)",
        "INSERT INTO copied SELECT * FROM StringIds",
        "DROP TABLE StringIds",
        "ALTER TABLE copied RENAME TO StringIds",
    )

    assert names(read_nsys([export]), "ops")["gemm<float, 8>"] == 3


# Wrong values.


@pytest.mark.parametrize("value", ["NULL", "'soon'", "x'0102'", "1e300", "9e999", "9223372036854775807"])
@pytest.mark.parametrize("column", ["start", "end", "deviceId"])
def test_rows_with_a_value_that_cannot_be_are_left_out_and_counted(export, column, value):
    changed(export, f"UPDATE {KERNEL} SET {column} = {value} WHERE rowid = 2")
    timeline = read_nsys([export])

    assert counts(timeline)[0] == 2
    assert any(f"1 rows of {KERNEL} were left out" in warning for warning in timeline.origin.warnings)


@pytest.mark.parametrize("value", ["NULL", "'many'", "x'0102'", "1e300"])
@pytest.mark.parametrize("column", ["gridX", "graphNodeId", "correlationId", "globalPid", "demangledName"])
def test_a_wrong_value_that_is_not_needed_is_unknown(export, column, value):
    changed(export, f"UPDATE {KERNEL} SET {column} = {value} WHERE rowid = 2")
    timeline = read_nsys([export])

    assert counts(timeline)[0] == 3
    assert timeline.origin.warnings == ()


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ("end = start - 1", 2),
        ("end = 0", 2),
        ("end = start", 3),
        ("deviceId = -1", 2),
        ("start = -5000", 3),
        ("start = -9223372036854775808", 2),
    ],
)
def test_times_and_devices_that_cannot_be(export, change, left):
    changed(export, f"UPDATE {KERNEL} SET {change} WHERE rowid = 2")

    assert counts(read_nsys([export]))[0] == left


def test_replays_that_never_ended_are_left_out(export):
    changed(export, "UPDATE CUPTI_ACTIVITY_KIND_GRAPH_TRACE SET end = 0 WHERE rowid < 3")
    timeline = read_nsys([export])

    assert counts(timeline)[3] == 1
    assert any("2 rows of CUPTI_ACTIVITY_KIND_GRAPH_TRACE" in warning for warning in timeline.origin.warnings)


@pytest.mark.parametrize("duration", ["NULL", "'long'", "-5", "0", "9223372036854775807"])
def test_a_window_that_cannot_be_is_not_used(export, duration):
    changed(export, f"UPDATE ANALYSIS_DETAILS SET duration = {duration}")

    assert read_nsys([export]).origin.window_from == "activity"


def test_kinds_of_copies_that_nobody_knows_are_unknown(export):
    changed(export, "UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET copyKind = 99, srcKind = -3, dstKind = NULL")

    assert names(read_nsys([export]), "ops")["Memcpy (Unknown -> Unknown)"] == 6


def test_kinds_go_by_the_names_in_the_file(export):
    changed(
        export,
        "CREATE TABLE ENUM_CUDA_MEM_KIND (id INTEGER, name TEXT, label TEXT)",
        "INSERT INTO ENUM_CUDA_MEM_KIND VALUES (1, 'CUDA_MEMOPR_MEMORY_KIND_MANAGED', 'Managed')",
    )

    assert names(read_nsys([export]), "ops")["Memcpy HtoD (Managed -> Unknown)"] == 3
