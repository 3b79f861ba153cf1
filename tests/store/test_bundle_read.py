"""A bundle opens anywhere and whatever is in it: no link is followed out, nothing is read beyond its bound."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.errors import GputopError
from gputop_llm.store import bundle
from gputop_llm.store.bundle_pace import pace_of
from gputop_llm.timeline.read import read_capture
from tests.support.bundles import BEGAN_NS, ENDED_NS, capture_folder, engine_lines, pace


def test_a_capture_of_several_ranks_opens_with_all_of_it(tmp_path):
    engine = pace(lambda at: 1000.0, itl=lambda at: 0.02, recovered=True)
    folder = capture_folder(
        tmp_path / "taken", ranks=11, answers=engine, frames=['{"seq": 1}', "no frame", '{"seq": 2}']
    )

    opened = bundle.read(folder)

    assert [path.name for path in opened.records] == [f"rank{n}_pid{4000 + n}.gtw" for n in range(11)]
    assert opened.pace == engine
    assert opened.capture["outcome"] == "done"
    assert [frame["seq"] for frame in opened.frames()] == [1, 2]
    assert opened.notes == ()
    assert len(read_capture(opened.records).processes) == 11


def test_a_bundle_without_the_engine_has_no_pace(tmp_path):
    opened = bundle.read(capture_folder(tmp_path / "taken"))

    assert (opened.pace, dict(opened.verdict)) == (None, {})


@pytest.mark.parametrize("target", ["/etc/passwd", "../secret", "missing"])
def test_links_are_not_followed(tmp_path, target):
    (tmp_path / "secret").write_text('{"secret": 1}\n')
    folder = capture_folder(tmp_path / "taken")
    for name in ("verdict.json", "engine.jsonl", "frames.jsonl", "rank1_pid1.gtw"):
        os.symlink(target, folder / name)

    opened = bundle.read(folder)

    assert dict(opened.verdict) == {}
    assert list(opened.frames()) == []
    assert [path.name for path in opened.records] == ["rank0_pid4000.gtw"]
    assert any("verdict.json was not read" in note for note in opened.notes)
    assert any("rank1_pid1.gtw is no plain file" in note for note in opened.notes)


def test_a_pipe_in_a_bundle_holds_nobody_up(tmp_path):
    folder = capture_folder(tmp_path / "taken")
    os.mkfifo(folder / "verdict.json")
    os.mkfifo(folder / "rank7_pid7.gtw")

    opened = bundle.read(folder)

    assert "verdict.json was not read: it is no plain file" in opened.notes
    assert len(opened.records) == 1


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    folder = capture_folder(tmp_path / "taken")
    with open(folder / "verdict.json", "wb") as file:
        file.truncate(1 << 40)

    assert any("more than 16 MiB" in note for note in bundle.read(folder).notes)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[1]", "nonsense", '{"a": NaN}', ""])
def test_damaged_json_is_left_out(tmp_path, text):
    folder = capture_folder(tmp_path / "taken")
    for name in ("capture.json", "engine.jsonl", "frames.jsonl"):
        (folder / name).write_text(text)

    opened = bundle.read(folder)

    assert opened.pace is None
    assert list(opened.frames()) == []


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: path.write_text(""), lambda path: None])
def test_what_is_no_bundle_is_a_sentence(tmp_path, make):
    make(tmp_path / "x")

    with pytest.raises(GputopError, match="cannot read"):
        bundle.read(tmp_path / "x")


def test_escapes_in_names_stay_inert(tmp_path):
    folder = tmp_path / "\x1b[2Jx"
    folder.mkdir()
    os.symlink("/etc/passwd", folder / "\x1b[31m.gtw")

    with pytest.raises(GputopError) as failure:
        bundle.read(folder)

    assert "\x1b" not in failure.value.sentence()


def test_only_a_single_bundle_tells_a_pace(tmp_path):
    engine = pace(lambda at: 1.0)
    one, two = (capture_folder(tmp_path / name, answers=engine) for name in ("one", "two"))

    assert bundle.expanded([one]) == ([one / "rank0_pid4000.gtw"], engine, ())
    assert bundle.expanded([one, two])[1] is None
    assert bundle.expanded([one / "rank0_pid4000.gtw"]) == ([one / "rank0_pid4000.gtw"], None, ())


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
FACTS = {"touched_mono_ns": BEGAN_NS, "ended_mono_ns": ENDED_NS}


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_an_engine_may_have_said_anything(data):
    (line, *_) = engine_lines(pace(lambda at: 1.0, itl=lambda at: 0.02).samples).splitlines()
    told = json.loads(line)
    for name in data.draw(st.sets(st.sampled_from(sorted(told)))):
        told[name] = data.draw(ANY_JSON)
    if isinstance(told["itl"], dict) and data.draw(st.booleans()):
        told["itl"][data.draw(st.sampled_from(["bounds", "counts"]))] = data.draw(ANY_JSON)
    found = pace_of({**FACTS, "recovered": data.draw(ANY_JSON)}, [told])

    if found is not None:
        (sample,) = found.samples
        assert sample.tokens is None or abs(sample.tokens) < 1e18
        assert sample.itl is None or list(sample.itl.counts) == sorted(sample.itl.counts)
        assert found.recovered in (True, False, None)
