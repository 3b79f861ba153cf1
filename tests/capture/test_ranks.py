"""One window in both ranks of a tensor-parallel engine, injected and recorded by the real client."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from gputop_llm.capture.inject import mapped_clients
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, EndReason
from tests.capture.native.hosting import Record
from tests.capture.support import capture, kill, last_of, plan_for, reach_stage
from tests.support.real_processes import until

WINDOW_S = 0.5
#: How much longer than the other the second rank multiplies, of 5 ms that a step takes.
LATE_US = 1500


@pytest.fixture
def two_ranks(unprepared):
    """Two processes on two GPUs that meet in an all-reduce in each step; the second one is always late."""
    return unprepared(FAKE_RANK="0 0"), unprepared(FAKE_RANK=f"1 {LATE_US}")


def records(path, plan):
    return [Record((path / rank.file).read_bytes()) for rank in plan.ranks]


def finding(verdict, name):
    return next(found for found in verdict["findings"] if found["id"] == name)


def fact(found, name):
    return next(fact for fact in found["facts"] if fact["name"] == name)


def test_both_ranks_begin_together_and_the_verdict_names_who_is_late(two_ranks, captures):
    plan = plan_for(*two_ranks, folder=captures, seconds=WINDOW_S)
    with capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.details.get("bundle_error")) == ("done", None), ended
    path = Path(ended.path)
    began = [form.STARTED.unpack(record.one(Chunk.STARTED))[2] for record in records(path, plan)]
    # The window's moment is for both; what lies between is how late a busy machine wakes one of them.
    assert abs(began[0] - began[1]) < 50e6
    assert min(began) >= json.loads((path / "capture.json").read_text())["starts_mono_ns"]
    verdict = json.loads((path / "verdict.json").read_text())
    exposed = finding(verdict, "comm-exposed")
    assert fact(exposed, "exposed, of the window")["value"] == pytest.approx(50, abs=5)
    assert fact(exposed, "arrival skew, median")["value"] == pytest.approx(LATE_US, rel=0.01)
    late = finding(verdict, "rank-straggler")
    assert late["headline"].startswith("GPU 1 is the straggler: last in 100 % of ")
    assert late["recoverable_pct"] == pytest.approx(30, abs=3)
    assert all(rank.serves() for rank in two_ranks)


def test_when_one_rank_can_not_be_reached_nothing_is_done_to_the_other(two_ranks, captures):
    first, second = two_ranks
    os.kill(second.pid, signal.SIGSTOP)
    try:
        with capture(plan_for(*two_ranks, folder=captures, url=False)) as run:
            ended = last_of(run)
    finally:
        os.kill(second.pid, signal.SIGCONT)

    assert ended.outcome == "refused"
    assert f"PID {second.pid} (VLLM::Worker_TP1) is stopped" in ended.why
    assert [mapped_clients(rank.pid) for rank in two_ranks] == [(), ()]
    assert list(captures.iterdir()) == []
    assert first.serves()


def test_the_record_of_a_rank_is_kept_when_the_other_one_dies_in_the_window(two_ranks, captures):
    first, second = two_ranks
    files = first.open_files()
    plan = plan_for(*two_ranks, folder=captures, seconds=30.0)
    with capture(plan) as run:
        reach_stage(run, "recording")
        # By its tokens: steps of at least a fifth of a second.
        enough = first.tokens() + 20 * 32
        assert until(lambda: first.tokens() > enough)
        kill(second.pid)
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("incomplete", f"PID {second.pid} (VLLM::Worker_TP1) has ended")
    kept = Record((Path(ended.path) / plan.ranks[0].file).read_bytes())
    assert kept.end["reason"] == EndReason.STOPPED
    assert kept.end["records"] == kept.row_count > 0
    assert first.serves()
    assert until(lambda: first.open_files() == files)
