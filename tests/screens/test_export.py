"""Saving a screen: whole or not at all, never over another file, and with one sentence when it can't be."""

from __future__ import annotations

import os
import stat

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.tui.export import save
from tests.support import frames
from tests.support.screen_text import screen_lines, screen_text


def test_a_second_file_of_the_same_second_gets_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = save("one", "txt", frames.AT_S), save("two", "txt", frames.AT_S)
    assert first.read_text() == "one"
    assert second.read_text() == "two"
    assert second.name == "gputop-llm-20261129T160846Z-2.txt"
    assert sorted(os.listdir(tmp_path)) == sorted([first.name, second.name])


def test_a_folder_that_can_t_be_written_falls_back_to_the_programs_own(tmp_path, monkeypatch):
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.chdir("/proc")
    assert save("text", "txt", frames.AT_S).parent == state / "gputop-llm"


async def test_when_nothing_can_be_written_one_sentence_says_so(running, tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    monkeypatch.chdir("/proc")
    with pytest.raises(GputopError):
        save("text", "txt", frames.AT_S)
    async with running(frames.one_gpu_loaded(), (120, 40)) as it:
        await it.press("x")
        assert "▲ cannot save the screen: /proc: " in screen_lines(it.app)[-1]


def test_what_is_saved_is_for_its_owner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert stat.S_IMODE(save("text", "txt", frames.AT_S).stat().st_mode) == 0o600


async def test_the_text_holds_the_whole_page_also_what_is_out_of_view(running, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with running(frames.one_gpu_loaded()) as it:
        await it.press("3")
        assert "num_gpu_blocks" not in screen_text(it.app)
        await it.press("x")
        (file,) = tmp_path.iterdir()
        assert "num_gpu_blocks            137333" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("key", ["1", "2", "3", "4", "t", "question_mark"])
async def test_every_screen_can_be_saved(running, tmp_path, monkeypatch, key):
    monkeypatch.chdir(tmp_path)
    async with running(frames.eight_gpus()) as it:
        await it.press(key, "x")
        (file,) = tmp_path.iterdir()
        lines = file.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("vLLM 0.24.0")
        assert len(lines) > 5
