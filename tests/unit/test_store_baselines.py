"""Stored baselines: replaced as a whole, private, bounded, and worth nothing when they can't be read."""

from __future__ import annotations

import json
import logging
import os
import stat
import time

import pytest

from gputop_llm.store import baselines
from gputop_llm.store.baselines import MOST_FILES, BaselineKeeper, file_of, load, save
from tests.support.fake_sources import until

KEY = ("vllm", "org/model-a", "1x NVIDIA H200")
BUCKETS = [{"load": 6, "at_s": [1.0], "values": {"itl_p95_s": [0.02]}}]


def test_what_is_saved_is_loaded_again_for_the_same_key_only(tmp_path):
    assert load(tmp_path, KEY) is None
    save(tmp_path, KEY, BUCKETS)
    assert load(tmp_path, KEY) == BUCKETS
    assert load(tmp_path, ("vllm", "org/model-a", "2x NVIDIA H200")) is None
    save(tmp_path, KEY, [])
    assert load(tmp_path, KEY) == []


def test_files_and_folder_are_the_owners_alone(tmp_path):
    folder = tmp_path / "state" / "baselines"
    save(folder, KEY, BUCKETS)
    assert stat.S_IMODE(file_of(folder, KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("model", ["../../etc/passwd", "a/b\0c", "", ".", "x" * 500, "\ud800", "ünïcode", "[red]x[/]"])
def test_any_model_name_makes_a_file_in_the_folder(tmp_path, model):
    key = ("vllm", model, "1x NVIDIA H200")
    save(tmp_path, key, BUCKETS)
    assert file_of(tmp_path, key).parent == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == [file_of(tmp_path, key).name]
    assert load(tmp_path, key) == BUCKETS


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"17",
        b'{"schema": 1}',
        json.dumps({"schema": 2, "key": list(KEY), "buckets": []}).encode(),
        json.dumps({"schema": 1, "key": ["vllm", "other", "x"], "buckets": []}).encode(),
        b"[" * 100_000,
        b"1" * 5_000,
    ],
)
def test_a_file_that_can_not_be_used_is_forgotten_with_a_line_in_the_log(tmp_path, caplog, content):
    file_of(tmp_path, KEY).write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert load(tmp_path, KEY) is None
    (record,) = caplog.records
    assert record.getMessage().endswith("it is learnt anew")
    assert str(file_of(tmp_path, KEY)) in record.getMessage()
    assert record.exc_info is None
    save(tmp_path, KEY, BUCKETS)
    assert load(tmp_path, KEY) == BUCKETS


def test_a_huge_file_is_not_read(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(baselines, "_MOST_BYTES", 1000)
    save(tmp_path, KEY, ["x" * 2000])
    assert load(tmp_path, KEY) is None
    assert "larger than 1000 bytes" in caplog.text


def test_a_write_that_fails_leaves_what_was_there_and_nothing_beside_it(tmp_path, monkeypatch):
    save(tmp_path, KEY, BUCKETS)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, KEY, [])
    assert load(tmp_path, KEY) == BUCKETS
    assert len(list(tmp_path.iterdir())) == 1


def test_the_number_of_files_is_bounded_and_the_oldest_go_first(tmp_path):
    for i in range(MOST_FILES + 5):
        key = ("vllm", f"m{i}", "x")
        save(tmp_path, key, [])
        os.utime(file_of(tmp_path, key), (1000 + i, 1000 + i))
    save(tmp_path, KEY, [])
    assert len(list(tmp_path.glob("*.json"))) == MOST_FILES
    assert load(tmp_path, ("vllm", "m0", "x")) is None
    assert load(tmp_path, KEY) == []


def test_what_a_killed_program_left_half_written_is_removed_an_hour_later(tmp_path):
    old, new = tmp_path / ".new-old", tmp_path / ".new-new"
    for path in (old, new):
        path.touch()
    os.utime(old, (time.time() - 7200,) * 2)
    save(tmp_path, KEY, [])
    assert not old.exists()
    assert new.exists()


# -- the keeper -------------------------------------------------------------------


def test_the_keeper_reads_and_writes_in_the_background(tmp_path):
    keeper = BaselineKeeper(tmp_path)
    keeper.keep(KEY, BUCKETS)
    keeper.close(5.0)
    again = BaselineKeeper(tmp_path)
    again.ask(("vllm", "never seen", "x"))
    again.ask(KEY)
    assert until(again.found) == [(KEY, BUCKETS)]
    assert again.found() == []
    again.close(5.0)


def test_everything_is_stored_before_it_ends(tmp_path):
    keeper = BaselineKeeper(tmp_path)
    for i in range(20):
        keeper.keep(("vllm", f"m{i}", "x"), [i])
    keeper.close(10.0)
    assert [load(tmp_path, ("vllm", f"m{i}", "x")) for i in range(20)] == [[i] for i in range(20)]


def test_a_keeper_that_was_never_used_ends_at_once(tmp_path):
    BaselineKeeper(tmp_path).close(0.0)


def test_a_disk_that_hangs_holds_up_nobody(tmp_path):
    # Opening a pipe for reading waits for a writer.
    os.mkfifo(file_of(tmp_path, KEY))
    keeper = BaselineKeeper(tmp_path)
    keeper.ask(KEY)
    assert until(lambda: not keeper._work), "it is taken, and hangs"
    began = time.monotonic()
    for i in range(1000):
        keeper.keep(("vllm", f"m{i}", "x"), [])
    assert keeper.found() == []
    assert len(keeper._work) <= keeper._MOST_WAITING
    keeper.close(0.1)
    assert time.monotonic() - began < 2.0
    # Lets the thread go, wherever it is: with both ends open nobody waits.
    os.close(os.open(file_of(tmp_path, KEY), os.O_RDWR))


def test_a_folder_that_can_not_be_written_is_a_line_in_the_log(tmp_path, caplog):
    (tmp_path / "file").touch()
    keeper = BaselineKeeper(tmp_path / "file" / "baselines")
    keeper.keep(KEY, BUCKETS)
    keeper.close(5.0)
    assert "cannot store the baseline" in caplog.text
    assert all(record.exc_info is None for record in caplog.records)
