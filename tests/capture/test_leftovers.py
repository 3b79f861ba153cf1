"""What a crash left is found and removed; what is recorded is kept; what isn't ours or goes on is left alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

import pytest

from gputop_llm.capture.folder import LOCK, CaptureFolder
from gputop_llm.capture.kineto.left import remove_left
from gputop_llm.capture.leftovers import clean_up
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk

GREETING = form.MAGIC + form.CHUNK_HEADER.pack(Chunk.HELLO, 16) + bytes(16)
RECORD = GREETING + form.CHUNK_HEADER.pack(Chunk.STARTED, form.STARTED.size) + bytes(form.STARTED.size)
LONG_AGO_S = 10_000


def unfinished(folder, content):
    """A capture's folder as a crash leaves it."""
    made = CaptureFolder(folder, "20261129T000000Z-vllm-7")
    made.make()
    # As one of another PID namespace: what it says of its worker means nothing here.
    made.write_json("capture.json", {"schema": 1, "worker": {"pid": 2**22 + 1, "start_ticks": 1}})
    os.write(made.open_record("rank0_pid7.gtw"), content)
    made.close()
    return made.path


def aged(path):
    os.utime(path, (time.time() - LONG_AGO_S,) * 2)


def test_a_capture_without_a_record_is_removed(captures):
    path = unfinished(captures, GREETING)
    (found,) = clean_up([captures], [])

    assert (found.kind, found.path) == ("capture", str(path))
    assert found.done == "removed: nothing was recorded"
    assert list(captures.iterdir()) == []
    assert clean_up([captures], []) == ()


def test_a_record_is_kept_under_its_own_name(captures):
    unfinished(captures, RECORD)
    (found,) = clean_up([captures], [])

    (kept,) = captures.iterdir()
    assert found.done == f"kept as {kept.name}"
    assert kept.name == "20261129T000000Z-vllm-7-incomplete"
    assert (kept / "rank0_pid7.gtw").read_bytes() == RECORD
    assert json.loads((kept / "capture.json").read_text())["outcome"] == "incomplete"


@pytest.fixture
def going_on(captures):
    """A capture that is being taken."""
    path = unfinished(captures, RECORD)
    at_work = CaptureFolder(captures, "20261129T000000Z-vllm-7")
    at_work.open()
    assert at_work.claim()
    aged(path)
    yield at_work
    at_work.close()


def test_a_capture_that_goes_on_is_left_alone_in_whatever_container(going_on, captures):
    assert clean_up([captures], []) == ()
    assert going_on.path.is_dir()

    going_on.close()
    assert len(clean_up([captures], [])) == 1


def test_a_capture_that_goes_on_can_be_settled_by_its_own_worker_only(going_on, captures):
    assert CaptureFolder(captures, "20261129T000000Z-vllm-7").settle("another's") is None
    assert going_on.path.is_dir()

    assert going_on.settle("its own").name == "20261129T000000Z-vllm-7-incomplete"


def test_one_that_has_just_been_made_is_left_alone_until_it_is_old(captures):
    path = unfinished(captures, GREETING)
    (path / LOCK).unlink()
    assert clean_up([captures], []) == ()

    aged(path)
    assert len(clean_up([captures], [])) == 1


def test_where_there_are_no_locks_nothing_is_touched(captures, monkeypatch):
    def unknown(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    path = unfinished(captures, GREETING)
    monkeypatch.setattr(fcntl, "flock", unknown)
    (found,) = clean_up([captures], [])

    assert found.done.startswith("can't be settled: nobody can tell whether it still goes on")
    assert path.is_dir()


def test_nothing_is_reached_through_a_link(captures, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    captures.mkdir()
    (captures / ".one.partial").symlink_to(elsewhere)
    (captures / ".two.bundle.partial").symlink_to(elsewhere)
    aged(elsewhere)
    clean_up([captures], [captures / ".one.partial"])

    assert (elsewhere / "precious").read_text() == "kept"
    assert (captures / ".one.partial").is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_another_users_are_left_alone(captures):
    path = unfinished(captures, GREETING)
    os.chown(path, 65534, 65534)
    (found,) = clean_up([captures], [])

    assert "another user's" in found.done
    assert path.is_dir()


def test_a_half_written_bundle_is_removed_once_it_is_old(captures):
    bundle = captures / ".one.bundle.partial"
    bundle.mkdir(parents=True)
    (bundle / "verdict.md").write_text("half")
    assert clean_up([captures], []) == ()

    aged(bundle)
    (found,) = clean_up([captures], [])
    assert found.kind == "bundle"
    assert list(captures.iterdir()) == []


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A short path: that of a socket may have 107 bytes."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir(mode=0o700)
    return Path("run")


def test_sockets_that_nobody_serves_are_removed_and_others_stay(runtime):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(runtime / "1-1.sock"))
    listening.listen()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(runtime / "2-2.sock"))
    (runtime / "notes.txt").write_text("not ours")
    (runtime / "3-3.sock").write_text("no socket")
    found = clean_up([], [runtime])

    assert [(one.kind, Path(one.path).name) for one in found] == [("socket", "2-2.sock")]
    assert {path.name for path in runtime.iterdir()} == {"1-1.sock", "notes.txt", "3-3.sock"}
    listening.close()


def test_a_folder_without_sockets_goes(runtime):
    (found,) = clean_up([], [runtime])

    assert found.kind == "folder"
    assert not runtime.exists()
    assert clean_up([], [runtime]) == ()


def test_a_trace_whose_process_was_killed_is_removed_and_nothing_that_only_looks_like_it(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("keep")
    old, young, growing, foreign, linked = (
        tmp_path / f"gputop-llm-trace-{name}"
        for name in ("7-0123456789ab", "8-0123456789ab", "9-0123456789ab", "notes", "5-0123456789ab")
    )
    for folder in (old, young, growing, foreign, linked):
        folder.mkdir(mode=0o700)
        trace = folder / "trace.json"
        trace.symlink_to(outside) if folder is linked else trace.write_text("{")
        if folder not in (young, growing):
            os.utime(trace, (0, 0), follow_symlinks=False)
        if folder is not young:
            aged(folder)

    assert remove_left(120.0, time.time(), [str(tmp_path)]) == [str(linked), str(old)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [outside.name, young.name, growing.name, foreign.name]
    )
    assert outside.read_text() == "keep"
