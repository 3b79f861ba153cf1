"""Compressed captures: unpacked, bounded, and never left behind."""

from __future__ import annotations

import gzip
import lzma
import random
import tempfile
from functools import partial
from pathlib import Path

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline import unpack
from gputop_llm.timeline.unpack import head, unpacked

#: Like JSON, it shrinks to a third.
TEXT = "".join(random.Random(7).choices("0123456789,:{}", k=2_500_000)).encode()
PACKERS = {"gz": gzip.compress, "xz": partial(lzma.compress, preset=0)}


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files that must be empty in the end."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def packed(folder, kind, content=TEXT):
    path = folder / f"capture.{kind}"
    path.write_bytes(PACKERS[kind](content))
    return path


def refusal(path, **more):
    with pytest.raises(GputopError) as caught, unpacked(path, **more):
        pass
    return caught.value.sentence()


def test_a_plain_file_is_given_as_it_is(tmp_path):
    path = tmp_path / "capture.json"
    path.write_bytes(b"{}")

    with unpacked(path) as plain:
        assert plain == path


@pytest.mark.parametrize("kind", PACKERS)
def test_a_compressed_file_is_unpacked_and_removed(tmp_path, kind):
    with unpacked(packed(tmp_path, kind)) as plain:
        assert plain.read_bytes() == TEXT
    assert not plain.exists()


@pytest.mark.parametrize("kind", PACKERS)
def test_the_temporary_file_goes_also_when_reading_fails(tmp_path, kind):
    with pytest.raises(ZeroDivisionError), unpacked(packed(tmp_path, kind)) as plain:
        raise ZeroDivisionError
    assert not plain.exists()


@pytest.mark.parametrize("kind", PACKERS)
def test_the_name_does_not_decide(tmp_path, kind):
    path = packed(tmp_path, kind).rename(tmp_path / "...json")

    with unpacked(path) as plain:
        assert plain.read_bytes() == TEXT


@pytest.mark.parametrize("kind", PACKERS)
def test_parts_packed_one_after_the_other_are_one(tmp_path, kind):
    path = tmp_path / "capture"
    path.write_bytes(PACKERS[kind](TEXT) + PACKERS[kind](b"end"))

    with unpacked(path) as plain:
        assert plain.read_bytes() == TEXT + b"end"


@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("share", [0.001, 0.5, 0.99999])
def test_a_cut_file_is_refused(tmp_path, kind, share):
    path = packed(tmp_path, kind)
    path.write_bytes(path.read_bytes()[: max(int(path.stat().st_size * share), 8)])

    assert any(word in refusal(path) for word in ("ends too early", "damaged"))


@pytest.mark.parametrize("kind", PACKERS)
def test_a_flipped_byte_is_refused(tmp_path, kind):
    path = packed(tmp_path, kind)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)

    assert "cannot unpack" in refusal(path)


@pytest.mark.parametrize("kind", PACKERS)
def test_a_bomb_is_stopped(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(unpack, "_RATIO_FROM_BYTES", 1 << 20)

    assert "times its own size" in refusal(packed(tmp_path, kind, bytes(8 << 20)))


@pytest.mark.parametrize("kind", PACKERS)
def test_more_than_the_limit_is_refused(tmp_path, kind):
    assert "holds more than" in refusal(packed(tmp_path, kind), limit_bytes=2_000_000)


def test_a_dictionary_beyond_reason_is_refused(tmp_path, monkeypatch):
    # The header asks for the memory: 256 KB and more after `xz -0`.
    monkeypatch.setattr(unpack, "_XZ_MEMORY_BYTES", 1 << 16)

    assert "damaged" in refusal(packed(tmp_path, "xz"))


@pytest.mark.parametrize("kind", PACKERS)
def test_a_full_disk_is_respected(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(unpack, "_SPARE_BYTES", 1 << 60)

    assert "has no room" in refusal(packed(tmp_path, kind))


@pytest.mark.parametrize("kind", PACKERS)
def test_unpacking_can_be_cancelled(tmp_path, kind):
    assert "was cancelled" in refusal(packed(tmp_path, kind), cancelled=lambda: True)


@pytest.mark.parametrize("kind", PACKERS)
def test_progress_follows_the_compressed_file(tmp_path, kind):
    told: list[float] = []
    with unpacked(packed(tmp_path, kind), told.append):
        pass

    assert told == sorted(told)
    assert told[-1] == 1.0


def test_the_first_bytes_are_given_as_far_as_there_are_any(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"abc")

    assert head(path) == b"abc"
    assert head(path, 2) == b"ab"


def test_a_path_with_a_zero_byte_is_refused():
    with pytest.raises(GputopError, match="cannot read"):
        head(Path("a\0b"))
