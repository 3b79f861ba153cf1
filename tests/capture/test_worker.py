"""One capture from its plan to its folder, in a process of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from gputop_llm.capture import run as run_module
from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.lock import held_by
from gputop_llm.timeline import native_format as form
from tests.capture.support import capture, last_of, plan_for, processes_of
from tests.support.real_processes import until


def rows(path):
    """Kernel rows in a record, and whether it has its end."""
    data = path.read_bytes()
    assert data.startswith(form.MAGIC)
    at, kernels, ended = len(form.MAGIC), 0, False
    while at < len(data):
        kind, length = form.CHUNK_HEADER.unpack_from(data, at)
        at += form.CHUNK_HEADER.size + length
        kernels += length // np.dtype(form.KERNEL_ROW).itemsize if kind == form.Chunk.KERNELS else 0
        ended = kind == form.Chunk.END
    return kernels, ended


def test_a_window_is_recorded_and_put_where_it_was_said(target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_BEFORE_S", "1.2")
    plan = plan_for(target, folder=captures)
    files = target.open_files()
    with capture(plan, frames=['{"seq":1}', '{"seq":2}']) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.details.get("bundle_error")) == ("done", None)
    (path,) = captures.iterdir()
    assert ended.path == str(path)
    assert {found.name for found in path.iterdir()} == {
        f"rank0_pid{target.pid}.gtw", "capture.json", "engine.jsonl", "frames.jsonl", "environment.json",
        "verdict.json", "verdict.md",
    }  # fmt: skip
    kernels, whole = rows(path / f"rank0_pid{target.pid}.gtw")
    assert kernels > 0
    assert whole
    facts = json.loads((path / "capture.json").read_text())
    assert facts["outcome"] == "done"
    assert facts["ranks"][0]["whole"]
    assert facts["touched_mono_ns"] < facts["starts_mono_ns"] < facts["ended_mono_ns"]
    samples = [json.loads(line) for line in (path / "engine.jsonl").read_text().splitlines()]
    assert samples[-1]["generation_tokens"] > samples[0]["generation_tokens"] > 0
    assert (path / "frames.jsonl").read_text() == '{"seq":1}\n{"seq":2}\n'
    assert path.stat().st_mode & 0o777 == 0o700
    assert until(lambda: not processes_of(captures))
    assert target.serves()
    assert until(lambda: target.open_files() <= files)


def test_frames_that_a_late_worker_has_no_room_for_are_left_out_and_cancel_nothing(
    target, captures, tmp_path, monkeypatch
):
    monkeypatch.setenv("GPUTOP_TEST_NOT_BEFORE", str(tmp_path / "now"))
    monkeypatch.setattr(run_module, "_FRAMES_WITHIN_S", 0.1)
    frame = json.dumps({"seq": "x" * 90_000})
    with capture(plan_for(target, folder=captures), frames=[frame] * 40) as run:
        run.frame(frame)
        (tmp_path / "now").touch()
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("done", "")
    frames = (Path(ended.path) / "frames.jsonl").read_text().splitlines()
    assert 0 < len(frames) < 41
    assert set(map(len, frames)) == {len(frame) - 1}, "each is whole"


def test_all_ranks_are_recorded_at_the_same_time(a_target, captures):
    ranks = [a_target("good") for _ in range(3)]
    plan = plan_for(*ranks, folder=captures)
    with capture(plan) as run:
        ended = last_of(run)

    assert ended.outcome == "done"
    starts = []
    for rank in plan.ranks:
        data = (Path(ended.path) / rank.file).read_bytes()
        at = data.index(form.CHUNK_HEADER.pack(form.Chunk.STARTED, form.STARTED.size)) + form.CHUNK_HEADER.size
        starts.append(form.STARTED.unpack_from(data, at)[2])
    assert max(starts) - min(starts) < 0.5 * plan.window_s * 1e9


def test_nothing_is_done_when_a_client_refuses(a_target, captures):
    target = a_target("refuse")
    with capture(plan_for(target, folder=captures)) as run:
        ended = last_of(run)

    assert ended.outcome == "refused"
    assert "no CUPTI is loaded in this process" in ended.why
    assert list(captures.iterdir()) == []
    assert target.serves()


def test_a_rank_that_refuses_keeps_the_others_from_recording(a_target, captures):
    ranks = [a_target("good"), a_target("refuse")]
    files = ranks[0].open_files()
    with capture(plan_for(*ranks, folder=captures)) as run:
        assert last_of(run).outcome == "refused"

    assert list(captures.iterdir()) == []
    assert until(lambda: ranks[0].open_files() <= files)


def test_what_is_no_record_is_refused(a_target, captures):
    target = a_target("garbage")
    with capture(plan_for(target, folder=captures)) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("failed", "what it sends is no record")
    assert list(captures.iterdir()) == []


def test_cancelling_ends_the_window_at_once_and_keeps_it(target, captures):
    plan = plan_for(target, folder=captures, seconds=60.0)
    with capture(plan) as run:
        for told in run.follow():
            if told.stage == "recording" and told.records_bytes > 10_000:
                run.cancel()
        ended = run.ended

    assert ended.outcome == "cancelled"
    kernels, whole = rows(Path(ended.path) / plan.ranks[0].file)
    assert kernels > 0
    assert whole
    assert target.serves()


def test_a_capture_that_is_cancelled_before_its_window_leaves_nothing(target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_BEFORE_S", "60")
    with capture(plan_for(target, folder=captures)) as run:
        for told in run.follow():
            if told.stage == "preflight":
                run.cancel()
        ended = run.ended

    assert ended.outcome == "cancelled"
    assert list(captures.iterdir()) == []


def test_a_second_capture_that_is_refused_harms_the_first_in_nothing(target, captures):
    plan = plan_for(target, folder=captures, seconds=60.0)
    with capture(plan) as first:
        for told in first.follow():
            if told.stage == "recording" and told.records_bytes > 10_000:
                break
        # The same plan, so the same name.
        with capture(plan) as second:
            refused = last_of(second)
        first.cancel()
        ended = last_of(first)

    assert (refused.outcome, refused.path) == ("refused", None)
    assert (ended.outcome, ended.details.get("bundle_error")) == ("cancelled", None)
    assert rows(Path(ended.path) / plan.ranks[0].file)[1]


def test_a_folder_that_is_there_already_is_left_alone(target, captures):
    plan = plan_for(target, folder=captures)
    first = CaptureFolder(captures, plan.name)
    first.make()
    os.write(first.open_record("rank0_pid7.gtw"), b"something")
    with capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.path) == ("failed", None)
    assert (first.path / "rank0_pid7.gtw.part").read_bytes() == b"something"


def test_a_cancel_ends_the_making_of_a_verdict_and_keeps_the_record(target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_LONG_VERDICT", "1")
    with capture(plan_for(target, folder=captures)) as run:
        for told in run.follow():
            if told.text == "making the verdict":
                assert until(lambda: held_by(os.environ["GPUTOP_TEST_LOCK"]) is None), "others wait for a verdict"
                run.cancel()
        ended = run.ended

    assert ended.outcome == "done"
    assert "cancelled" in ended.details["bundle_error"]
    assert rows(Path(ended.path) / f"rank0_pid{target.pid}.gtw")[1]


@pytest.mark.parametrize("stage", ["finishing", "recovering"])
def test_whoever_waits_is_told_where_the_record_of_a_failure_is(stage, target, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_BUG", stage)
    with capture(plan_for(target, folder=captures)) as run:
        ended = last_of(run)

    (kept,) = captures.iterdir()
    assert (ended.outcome, ended.why, ended.path) == ("failed", "RuntimeError: a bug", str(kept))
    assert ended.todo == "what was recorded until then is kept"


def test_no_secret_is_written_even_where_no_bundle_is_made(target, captures, monkeypatch):
    secret = "sesame-open-you"
    monkeypatch.setenv("GPUTOP_TEST_BUG", "recovering")
    frame = json.dumps({"seq": 1, "targets": [{"title": f"vllm serve m --api-key {secret}", "rate": None}]})
    plan = plan_for(target, folder=captures, argv=("bash", "-c", f"vllm serve m --api-key {secret}"))
    with capture(plan, frames=[frame]) as run:
        assert last_of(run).outcome == "failed"

    (kept,) = captures.iterdir()
    assert json.loads((kept / "frames.jsonl").read_text())["targets"][0]["title"] == "vllm serve m --api-key ***"
    assert [file.name for file in kept.iterdir() if secret.encode() in file.read_bytes()] == []


def test_the_lock_is_free_afterwards(target, captures, monkeypatch):
    for _ in range(2):
        with capture(plan_for(target, folder=captures)) as run:
            assert last_of(run).outcome == "done"
        assert held_by(os.environ["GPUTOP_TEST_LOCK"]) is None
