"""Windows in the session of a server that was started under a real nsys."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gputop_llm.capture.lock import held_by
from tests.capture.nsys.support import launched
from tests.capture.support import capture, kill, last_of, plan_for, processes_of, reach_stage
from tests.support.real_nsys import VERSIONS, real_nsys
from tests.support.real_processes import until

pytestmark = pytest.mark.real


@pytest.fixture(params=VERSIONS)
def server(request, tmp_path):
    """A server under nsys, of each version."""
    with launched(real_nsys(request.param), tmp_path) as started:
        started.version = VERSIONS[request.param]
        yield started


@pytest.fixture
def one_server(tmp_path):
    """A server under nsys."""
    with launched(real_nsys(), tmp_path) as started:
        yield started


def nsys_plan(server, captures, **changed):
    return plan_for(server, folder=captures, route="nsys-session", **changed)


def test_windows_are_repeated_and_the_session_is_ready_again(server, captures):
    for number in (1, 2):
        with capture(nsys_plan(server, captures, seconds=1.0, name=f"c{number}")) as run:
            ended = last_of(run)

        path = Path(ended.path)
        assert {"nsys.sqlite", "verdict.md", "capture.json", "environment.json"} <= {p.name for p in path.iterdir()}
        facts = json.loads((path / "capture.json").read_text())
        assert facts["nsys"]["version"].startswith(server.version)
        # On a busy machine nsys at times collects nothing of the OS runtime in a window: that is said.
        assert ended.outcome == ("done" if facts["nsys"]["events"] else "incomplete"), ended
        assert ended.outcome == "done" or "nsys saw no event" in ended.why
        assert facts["undo"] == []
        assert server.session().state == "Launched"
    assert server.serves()
    assert sorted(path.name for path in captures.iterdir() if path.name.startswith(".")) == []


def test_two_versions_side_by_side_do_not_meet(tmp_path, captures):
    with launched(real_nsys("trixie"), tmp_path) as one, launched(real_nsys("bookworm"), tmp_path) as other:
        for number, server in enumerate((one, other)):
            with capture(nsys_plan(server, captures, name=f"c{number}")) as run:
                reach_stage(run, "recording")
                beside = other if server is one else one
                assert beside.session().state == "Launched"
                ended = last_of(run)

            assert json.loads((Path(ended.path) / "capture.json").read_text())["nsys"]["path"] == str(server.tool.path)
            assert {one.session().state, other.session().state} == {"Launched"}
        assert one.serves()
        assert other.serves()


def test_nothing_of_the_environment_is_in_the_record(tmp_path, captures, monkeypatch):
    monkeypatch.setenv("ACME_API_TOKEN", "hunter2hunter2")
    with launched(real_nsys(), tmp_path) as server, capture(nsys_plan(server, captures)) as run:
        ended = last_of(run)

        assert (Path(ended.path) / "nsys.sqlite").stat().st_size > 0
        for path in Path(ended.path).iterdir():
            assert b"hunter2hunter2" not in path.read_bytes(), path
            assert b"ACME_API_TOKEN" not in path.read_bytes(), path


def test_cancelling_stops_the_collection_and_keeps_it(one_server, captures):
    with capture(nsys_plan(one_server, captures, seconds=60.0)) as run:
        reach_stage(run, "recording")
        run.cancel()
        ended = last_of(run)

    assert ended.outcome == "cancelled"
    assert (Path(ended.path) / "nsys.sqlite").stat().st_size > 0
    assert one_server.session().state == "Launched"
    assert one_server.serves()


def settled(server, captures):
    """Waits until nothing is at work and nsys collects no more; returns what is kept."""
    assert until(lambda: held_by(os.environ["GPUTOP_TEST_LOCK"]) is None, 30.0)
    assert until(lambda: not processes_of(captures), 60.0)
    assert until(lambda: server.session().state == "Launched", 30.0)
    assert server.serves()
    assert not list(captures.glob(".*"))
    return sorted(captures.iterdir())


@pytest.mark.parametrize("stage", ["preflight", "start", "recording", "finishing"])
def test_a_worker_that_is_killed_leaves_no_collection(stage, one_server, captures, monkeypatch):
    if stage != "recording":
        monkeypatch.setenv("GPUTOP_TEST_STALL", stage)
    with capture(nsys_plan(one_server, captures, seconds=60.0 if stage == "recording" else 0.3)) as run:
        reach_stage(run, stage)
        kill(run.pid)
        assert last_of(run).outcome == "failed"

    kept = settled(one_server, captures)
    assert [path.name.endswith("-incomplete") for path in kept] == ([] if stage in ("preflight", "start") else [True])
    for path in kept:
        assert (path / "nsys.sqlite").stat().st_size > 0


def test_a_session_in_which_somebody_collects_is_left_alone(one_server, captures, tmp_path):
    session = one_server.session().id
    one_server.tool.start(tmp_path / "theirs", [("--session", session)])
    with capture(nsys_plan(one_server, captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert "somebody else collects in the nsys session" in ended.why
    assert one_server.session().state == "Collection"
    one_server.tool.stop(session, 60.0)
    assert (tmp_path / "theirs.nsys-rep").stat().st_size > 0


def test_of_a_server_that_ends_in_the_window_what_was_collected_is_kept(one_server, captures):
    with capture(nsys_plan(one_server, captures, seconds=60.0)) as run:
        reach_stage(run, "recording")
        kill(one_server.pid)
        ended = last_of(run)

    assert (ended.outcome, "has ended" in ended.why) == ("incomplete", True), ended
    assert (Path(ended.path) / "nsys.sqlite").stat().st_size > 0


def test_a_window_is_ended_by_its_bytes(one_server, captures):
    with capture(nsys_plan(one_server, captures, seconds=60.0, max_bytes=1 << 20)) as run:
        ended = last_of(run)

    assert ended.outcome == "incomplete"
    assert "the most that this window may have" in ended.why
    assert one_server.session().state == "Launched"


def test_a_server_that_was_not_started_under_nsys_has_no_such_window(target, captures):
    with capture(nsys_plan(target, captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("refused", "it was not started under nsys")
    assert "gputop-llm run --nsys" in ended.todo
