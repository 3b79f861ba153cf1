"""A native window with Python stacks: which line the host was at while the GPU idled, in the bundle and its verdict."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.plan import Plan, PlannedRank
from gputop_llm.capture.stacks.taker import SampledTaker
from gputop_llm.capture.way import Setting
from gputop_llm.sources.procfs import ProcFs
from gputop_llm.store.bundle import expanded
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict import host_lines
from gputop_llm.verdict.context import Context
from tests.capture.native.hosting import built
from tests.capture.support import capture, last_of, plan_for, reach_stage, serving
from tests.support.real_processes import until


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
    files, _, _ = expanded([path])
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


class Records:
    """A way of capturing that has nothing to do."""

    starts_ns, bytes = 1, 2

    def __init__(self):
        self.done = []

    def __getattr__(self, name):
        return lambda: self.done.append(name) or {"ranks": []}


def test_samples_that_cannot_be_had_cost_the_capture_nothing(captures):
    with subprocess.Popen(["sleep", "60"]) as other:
        plan = replace(plan_of_nobody(captures), ranks=(PlannedRank(0, other.pid, 0, "sleep"),))
        folder = CaptureFolder(captures, plan.name)
        folder.make()
        deadlines, records = [], Records()
        nothing = lambda *_: None  # noqa: E731
        setting = Setting(plan, folder, {}, tuple, lambda: False, nothing, nothing, deadlines.append, nothing)
        taker = SampledTaker(setting, records)
        for step in (taker.prepare, taker.begin, taker.follow, taker.stop):
            step()
        facts = taker.facts()
        taker.close()
        folder.remove()
        other.kill()

    (told,) = facts["stacks"]
    assert told["error"].startswith("no Python stacks were sampled: it is no Python process")
    assert records.done == ["prepare", "begin", "follow", "stop", "facts", "close"]
    # Each step that may take long has a deadline of its own.
    assert len(deadlines) == 2


def plan_of_nobody(folder):
    return Plan("nobody", "key", "vllm", (), 0.1, 1 << 20, str(folder), "nobody", 0.0)


def test_a_cancelled_window_leaves_no_sampler_behind(unprepared, captures):
    with capture(plan_for(unprepared, folder=captures, seconds=60.0, route="native", options={"stacks": True})) as run:
        reach_stage(run, "recording")
        assert readers_of(unprepared.pid)
        run.cancel()
        last_of(run)

    assert until(lambda: not readers_of(unprepared.pid))
    assert unprepared.serves()


def readers_of(pid):
    """The py-spy processes that read a process."""
    proc, found = ProcFs(), []
    for one in proc.pids():
        with contextlib.suppress(OSError):
            argv = proc.argv(one)
            if argv and argv[0].endswith("/py-spy") and str(pid) in argv:
                found.append(one)
    return found
