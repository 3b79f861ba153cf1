"""A native window with Python stacks: which line the host was at while the GPU idled, in the bundle and its verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop_llm.store.bundle import expanded
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict import host_lines
from gputop_llm.verdict.context import Context
from tests.capture.native.hosting import built
from tests.capture.support import capture, last_of, plan_for, serving


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture
def unprepared(native, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_LIBRARY", str(native.client))
    with serving(tmp_path, cupti=native.cupti) as target:
        yield target


def test_idle_gaps_are_joined_to_the_python_line_of_the_thread_that_launches(unprepared, captures):
    plan = plan_for(unprepared, folder=captures, seconds=1.0, route="native", options={"stacks": True})
    with capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.details.get("bundle_error")) == ("done", None)
    path = Path(ended.path)
    (sampled,) = json.loads((path / "capture.json").read_text())["stacks"]
    assert "error" not in sampled
    assert (path / sampled["file"]).is_file()
    files, _ = expanded([path])
    context = Context(read_capture(files))
    (device,) = context.idle
    lines = host_lines.lines_of(context, device)
    assert lines is not None
    # Each step is a sleep of 10 ms and then a few launches.
    assert lines.top.call.startswith("make_tokens (")
    assert "serving.py:" in lines.top.call
    assert "make_tokens" in context.thread_label(lines.thread)
    verdict = json.loads((path / "verdict.json").read_text())
    told = [fact["name"] for finding in verdict["findings"] for fact in finding["facts"]]
    assert any(name.startswith("at make_tokens (") for name in told)
    assert unprepared.serves()


def test_without_being_asked_nothing_is_sampled(unprepared, captures):
    with capture(plan_for(unprepared, folder=captures)) as run:
        path = Path(last_of(run).path)

    assert not list(path.glob("*.stacks.json"))
    assert "stacks" not in json.loads((path / "capture.json").read_text())
