"""What is told of a capture that ended: its stored verdict, and what is missing of it."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from gputop_llm.capture.bundling import bundled
from gputop_llm.capture.plan import Plan
from gputop_llm.capture.progress import Progress
from gputop_llm.commands.capture import printed
from gputop_llm.errors import ExitCode
from gputop_llm.timeline import read
from gputop_llm.tui.draw import plain
from gputop_llm.tui.panels.capture_words import ended_lines
from tests.support.bundles import capture_folder

PLAN = Plan("vllm m", "k", "vllm", (), 0.5, 1, "/x", "x", 0.0)
AS_TEXT = Namespace(json=False, demo=None)
FAILURE = "cannot read the record: reading it was cancelled"


@pytest.fixture
def folder(tmp_path):
    return capture_folder(tmp_path / "captures" / "window")


def test_the_stored_verdict_is_printed_and_not_worked_out_again(folder, capsys, monkeypatch):
    path = bundled(folder)
    monkeypatch.setattr(read, "read_capture", None)

    assert printed(PLAN, Progress("ended", outcome="done", path=str(path)), AS_TEXT) == ExitCode.OK
    told = capsys.readouterr()
    headline = json.loads((path / "verdict.json").read_text())["headline"]
    assert " ".join(told.out.split()).startswith(" ".join(headline.split()))
    assert told.err == f"kept in {path}\n"


def test_without_a_stored_verdict_it_is_worked_out_and_why_is_said(folder, capsys):
    ended = Progress("ended", outcome="done", path=str(folder), details={"bundle_error": FAILURE})

    assert printed(PLAN, ended, AS_TEXT) == ExitCode.OK
    told = capsys.readouterr()
    assert len(told.out) > 200
    assert told.err == f"kept in {folder}\nit holds no verdict: {FAILURE}\n"


def test_what_of_a_bundle_is_damaged_is_said(folder, capsys):
    path = bundled(folder)
    (path / "verdict.json").write_text("{")
    printed(PLAN, Progress("ended", outcome="done", path=str(path)), AS_TEXT)

    told = capsys.readouterr()
    assert "verdict.json is damaged and was not used" in told.err
    assert len(told.out) > 200


def test_the_display_says_where_the_record_is_and_why_there_is_no_verdict():
    ended = Progress("ended", outcome="failed", path="/c/one", what="w", details={"bundle_error": FAILURE})

    text = plain(ended_lines(ended, 100))
    assert "/c/one" in text
    assert FAILURE in text
