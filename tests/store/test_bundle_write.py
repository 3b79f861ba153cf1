"""A bundle stands under its lasting name whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.store import bundle_write
from gputop_llm.store.bundle_write import bundle_name, create


def test_a_finished_bundle_has_its_name_and_is_readable_by_its_owner_only(tmp_path):
    parent = tmp_path / "new" / "captures"
    with create(parent, "window") as writer:
        writer.write_json("capture.json", {"a": 1})
        assert [path.name for path in parent.iterdir()] == [".window.bundle.partial"]
        path = writer.finish("llama_H200")

    assert path == parent / "llama_H200"
    assert (path / "capture.json").read_text() == '{\n "a": 1\n}\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / "capture.json").stat().st_mode) == 0o600
    assert [p.name for p in parent.iterdir()] == ["llama_H200"]


def test_a_bundle_that_is_not_finished_is_gone(tmp_path):
    def fail():
        with create(tmp_path, "window") as writer:
            writer.write_text("verdict.md", "x")
            raise KeyError

    with pytest.raises(KeyError):
        fail()

    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fills_up_half_way_leaves_no_bundle(tmp_path, monkeypatch):
    def full(_fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def take():
        with create(tmp_path, "window") as writer:
            writer.write_text("capture.json", "{}")
            monkeypatch.setattr(os, "fsync", full)
            writer.write_text("verdict.json", "{}")
            writer.finish("whole")

    with pytest.raises(GputopError, match=r"cannot write verdict.json to .*no space left on device; free some space"):
        take()

    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    paths = []
    for _ in range(3):
        with create(tmp_path, "window") as writer:
            paths.append(writer.finish("same").name)

    assert paths == ["same", "same-2", "same-3"]


def opened(path):
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def test_records_are_added_whole_and_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "rank0.gtw").write_bytes(b"GPUTOPW1")
    os.mkfifo(tmp_path / "rank1.gtw")
    with create(tmp_path / "out", "window") as writer:
        writer.add("rank0.gtw", opened(tmp_path / "rank0.gtw"))
        with pytest.raises(GputopError, match=r"cannot write rank1\.gtw"):
            writer.add("rank1.gtw", opened(tmp_path / "rank1.gtw"))
        path = writer.finish("x")

    assert {p.name: p.read_bytes() for p in path.iterdir()} == {"rank0.gtw": b"GPUTOPW1"}


def test_without_second_names_records_are_copied(tmp_path, monkeypatch):
    def refuse(*_args, **_more):
        raise OSError(errno.EXDEV, "another file system")

    (tmp_path / "rank0.gtw").write_bytes(b"GPUTOPW1" * 1000)
    monkeypatch.setattr(os, "link", refuse)
    with create(tmp_path / "out", "window") as writer:
        writer.add("rank0.gtw", opened(tmp_path / "rank0.gtw"))
        path = writer.finish("x")

    assert (path / "rank0.gtw").read_bytes() == b"GPUTOPW1" * 1000
    assert (path / "rank0.gtw").stat().st_nlink == 1


def test_a_folder_that_is_exchanged_for_a_link_meanwhile_leads_nowhere(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with create(tmp_path / "out", "window") as writer:
        unfinished = tmp_path / "out" / ".window.bundle.partial"
        unfinished.rename(tmp_path / "moved")
        unfinished.symlink_to(elsewhere)
        writer.write_text("capture.json", "{}")

    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a\x1b[2J", "x" * 300, "-rf"])
def test_no_name_leads_out_of_a_bundle(tmp_path, name):
    with create(tmp_path, "window") as writer:
        with pytest.raises(GputopError, match="no name of a file") as failure:
            writer.write_text(name, "x")
        with pytest.raises(GputopError):
            writer.finish(name)

    assert "\x1b" not in failure.value.sentence()
    assert list(tmp_path.iterdir()) == []


def test_a_name_says_what_it_is():
    name = bundle_name(
        "/models/meta-llama/Llama-3.1_8B", "NVIDIA H200", "decode", "32running", "abc123", "20261129T193000Z"
    )

    assert name == "Llama-3.1-8B_H200_decode_32running_abc123_20261129T193000Z"


def test_what_is_not_known_is_named_so_and_nothing_foreign_gets_in():
    name = bundle_name("../../\x1b[2J$(rm -rf /)", None, None, None, None, "20261129T193000Z")

    assert name.split("_")[1:5] == ["unknown-gpu", "unknown-phase", "unknown-shape", "unknown-commit"]
    assert bundle_write._NAME.fullmatch(name)
    assert bundle_name("x/", None, None, None, None, "t").startswith("x_")
