"""Damaged, foreign and hostile files: one clear sentence each; never a traceback, never a hang."""

from __future__ import annotations

import gzip
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gputop_llm.cli import main
from tests.cli.test_verdict import busy_schedule
from tests.support.captures import CAPTURES
from tests.support.cli import ROOT
from tests.support.synth_kineto import to_kineto
from tests.support.synth_nsys import to_nsys_sqlite

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
NOBODY = 65534


def trace(tmp_path):
    return to_kineto(busy_schedule(), tmp_path / "trace.json")


def export(tmp_path):
    return to_nsys_sqlite(busy_schedule(), tmp_path / "capture.sqlite")


def written(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    return path


def changed(tmp_path, *statements):
    path = export(tmp_path)
    database = sqlite3.connect(path)
    for statement in statements:
        database.execute(statement)
    database.commit()
    database.close()
    return path


def event(**changes):
    """One kernel event as JSON, with these raw values."""
    values = {"ts": "10", "dur": "5", "name": '"k"', "args": '{"device":0,"stream":7}', **changes}
    return '{"ph":"X","cat":"kernel","pid":0,"tid":7,' + ",".join(f'"{k}":{v}' for k, v in values.items()) + "}"


def events(*extra):
    good = [event(ts=str(1000 * n), dur="900") for n in range(40)]
    return ('{"traceEvents":[' + ",".join([*good, *extra]) + "]}").encode()


def sparse(tmp_path, first):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.write(first)
        file.truncate(50 << 30)
    return path


def preallocated(tmp_path):
    """A file that was made larger than all that was written into it."""
    path = written(tmp_path, events()[: -len("]}")] + b",")
    os.truncate(path, 200 << 20)
    return path


def bomb(tmp_path):
    piece = gzip.compress(b" " * (4 << 20))
    return written(tmp_path, gzip.compress(b'{"traceEvents":[') + piece * 100)


def copy_cut(tmp_path, name, share):
    whole = (CAPTURES / name).read_bytes()
    return written(tmp_path, whole[: int(len(whole) * share)])


#: what → (how to make it, what the sentence says)
UNREADABLE = {
    "missing": (lambda p: p / "none.json", "No such file"),
    "empty": (lambda p: written(p, b""), "empty"),
    "made up by the kernel": (lambda p: Path("/proc/self/status"), "empty"),
    "a folder": (lambda p: p, "folder"),
    "text": (lambda p: written(p, b"hello"), "neither"),
    "a picture": (lambda p: written(p, b"\x89PNG\r\n\x1a\n" + bytes(100)), "neither"),
    "zeros": (lambda p: written(p, bytes(10_000)), "neither"),
    "JSON of something else": (lambda p: written(p, b'{"a": [1, 2]}'), "cannot read"),
    "broken JSON only": (lambda p: written(p, b'{"traceEvents": [{"ph": "X", ,,}]}'), "cannot read"),
    "negative durations only": (
        lambda p: written(p, b'{"traceEvents":[' + event(dur="-5").encode() + b"]}"),
        "none of",
    ),
    "gzip of nothing": (lambda p: written(p, b"\x1f\x8b" + b"\xff" * 100), "compression is damaged"),
    "cut xz": (lambda p: copy_cut(p, "public/nsysai_h100_2gpu_1s.sqlite.xz", 0.5), "ends too early"),
    "cut SQLite": (lambda p: copy_cut(p, "public/flameox_graph_2025.5.2.sqlite", 0.5), "cut"),
    "SQLite of something else": (lambda p: other_database(p), "not an export of Nsight Systems"),
    "needed column missing": (
        lambda p: changed(p, f"ALTER TABLE {KERNELS} RENAME COLUMN start TO began"),
        "start",
    ),
    "a schema with bytes that are no text": (lambda p: schema_spoilt(p), "damaged"),
    "huge and sparse": (lambda p: sparse(p, b""), "neither"),
    "huge and sparse trace": (lambda p: sparse(p, b'{"traceEvents":['), "limit"),
    "bomb": (bomb, "times its size"),
}


def schema_spoilt(tmp_path):
    path = export(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"CREATE TABLE " + KERNELS.encode(), b"CREATE \xff\xfeBLE " + KERNELS.encode()))
    return path


def other_database(tmp_path):
    path = tmp_path / "places.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE bookmarks (id INTEGER, url TEXT)")
    database.commit()
    database.close()
    return path


def verdict(capsys, path):
    began = time.monotonic()
    code = main(["verdict", str(path)])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    assert time.monotonic() - began < 20
    return code, out, err


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_1(capsys, tmp_path, what):
    make, said = UNREADABLE[what]
    code, out, err = verdict(capsys, make(tmp_path))

    assert (code, out) == (1, "")
    assert err.count("\n") == 1, err
    assert said in err
    assert "failed:" not in err, "a bug, not a sentence"


#: what → (how to make it, what a note says, exit code)
MENDED = {
    "small gzip cut short": (lambda p: written(p, gzip.compress(events())[:-20]), "cut off", 0),
    "gzip with something behind it": (lambda p: written(p, gzip.compress(events()) + b"more" * 50), "GPU busy: 90", 0),
    "gzip cut short": (lambda p: copy_cut(p, "h200/kineto_vllm-0.24_cuda-only_0.5s.json.gz", 0.6), "cut off", 0),
    "JSON cut short": (lambda p: written(p, trace(p).read_bytes()[:-900]), "cut off", 0),
    "JSON with zeros behind it": (preallocated, "cut off after 40 events", 0),
    "invalid escapes": (lambda p: written(p, events(event(name=r'"torch\cuda\streams"'))), "mended", 0),
    "NaN": (lambda p: written(p, events(event(dur="NaN"))), "mended", 0),
    "a time of a million digits": (lambda p: written(p, events(event(ts="1e900000"))), "left out", 0),
    "times that no clock shows": (lambda p: written(p, events(event(ts="1e15", dur="9e15"))), "left out", 0),
    "a name that is a number": (lambda p: written(p, events(event(name="5"))), "left out", 0),
    "a device that no machine has": (
        lambda p: written(p, events(event(args='{"device":9999999999,"stream":7}'))),
        "left out",
        0,
    ),
    "a header of wrong types": (
        lambda p: written(p, b'{"deviceProperties":[{"id":0,"name":5,"numSms":"x"}],' + events()[1:]),
        "GPU busy: 90",
        0,
    ),
    "a GPU that no machine has": (
        lambda p: changed(p, "UPDATE TARGET_INFO_GPU SET id = 3000000000", "DELETE FROM TARGET_INFO_CUDA_DEVICE"),
        "names of the GPUs",
        0,
    ),
    "no time": (lambda p: written(p, events(event(ts='"soon"'))), "left out", 0),
    "arguments of a wrong type": (lambda p: written(p, events(event(args="[1]"))), "left out", 0),
    "values of a wrong type": (lambda p: changed(p, f"UPDATE {KERNELS} SET start='x' WHERE rowid=3"), "wrong type", 0),
}


@pytest.mark.parametrize("what", MENDED)
def test_what_is_damaged_in_part_is_judged_by_the_rest_and_says_so(capsys, tmp_path, what):
    make, said, expected = MENDED[what]
    code, out, err = verdict(capsys, make(tmp_path))

    assert (code, err) == (expected, "")
    assert said in " ".join(out.split())


def test_a_trace_cut_before_its_first_kernel_is_not_one_without_cuda_activity(capsys, tmp_path):
    path = written(
        tmp_path, b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1},{"ph":"X","cat":"ker'
    )
    code, out, _ = verdict(capsys, path)

    assert code == 4
    assert "the trace is cut off before its first device activity; copy it again" in " ".join(out.split())


def test_a_trace_of_another_program_is_not_said_to_hold_no_events(capsys, tmp_path):
    code, out, _ = verdict(capsys, written(tmp_path, b'[{"ph":"B","cat":"toplevel","name":"Task","pid":1,"ts":5}]'))

    assert code == 4
    assert "none of its 1 events is a kernel, an operator or a CUDA call" in " ".join(out.split())


def test_device_rows_without_a_duration_are_not_called_no_events(capsys, tmp_path):
    path = written(tmp_path, events().replace(b'"dur":900', b'"dur":0'))
    code, out, _ = verdict(capsys, path)

    assert code == 4
    # The first one begins at 0: it has no time either.
    assert "the 39 device rows have no duration" in " ".join(out.split())


def test_negative_durations_never_make_negative_figures(capsys, tmp_path):
    code, out, _ = verdict(capsys, written(tmp_path, events(event(dur="-500"))))

    assert code == 0
    assert "-" not in out.split("GPU coverage")[1].split("Idle")[0].replace("first-to-last", "")


@pytest.mark.parametrize(
    "statements",
    [
        (f"DELETE FROM {KERNELS}",),
        (f"DROP TABLE {KERNELS}",),
        (f"DROP TABLE {KERNELS}", "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"),
    ],
)
def test_an_export_without_kernels_cannot_be_judged(capsys, tmp_path, statements):
    code, out, err = verdict(capsys, changed(tmp_path, *statements))

    assert (code, err) == (4, "")
    assert out.startswith("can't judge: ")


def test_an_export_without_api_calls_is_judged_and_says_what_is_not_known(capsys, tmp_path):
    code, out, _ = verdict(capsys, changed(tmp_path, "DROP TABLE CUPTI_ACTIVITY_KIND_RUNTIME"))

    assert code == 0
    assert "not known: launches" in out


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b'{"traceEvents": {"a": 1}}', b"[]"])
def test_a_trace_with_no_events_cannot_be_judged(capsys, tmp_path, text):
    code, out, err = verdict(capsys, written(tmp_path, text))

    assert (code, err) == (4, "")
    assert out.startswith("can't judge: no events were recorded")


def test_a_locked_export_says_that_it_is_being_written(capsys, tmp_path):
    path = export(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("BEGIN EXCLUSIVE")
        code, _, err = verdict(capsys, path)
    finally:
        writer.close()

    assert code == 1
    assert "another program is writing it" in err


def test_an_export_in_wal_mode_is_read_with_its_log(capsys, tmp_path):
    path = export(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    try:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE late (x)")
        code, out, _ = verdict(capsys, path)
    finally:
        writer.close()

    assert code == 0
    assert "GPU busy" in out


def test_a_pipe_is_refused_and_not_waited_for(capsys, tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    code, _, err = verdict(capsys, path)

    assert code == 1
    assert "not a regular file" in err


def test_a_file_without_read_permission_is_one_sentence(capsys, tmp_path):
    path = trace(tmp_path)
    assert verdict(capsys, path)[0] == 0
    path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:  # Nothing is forbidden to root.
            os.seteuid(NOBODY)
        code, out, err = verdict(capsys, path)
    finally:
        if root:
            os.seteuid(0)

    assert (code, out) == (1, "")
    assert err == f"cannot read {path}: Permission denied\n"


def test_a_bomb_takes_little_memory(tmp_path):
    path = bomb(tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    subprocess.run(
        [sys.executable, "-m", "gputop_llm", "verdict", str(path)], cwd=ROOT, capture_output=True, timeout=60
    )

    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, 300_000)


def test_a_copy_of_a_capture_with_a_wrong_name_is_read(capsys, tmp_path):
    path = tmp_path / "notes.txt"
    shutil.copy(CAPTURES / "public/tl_vllm_decode.json.gz", path)

    assert verdict(capsys, path)[0] == 0
