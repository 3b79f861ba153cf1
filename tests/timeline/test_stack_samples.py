"""Stacks beside a record: read as they are, joined to its threads, never trusted."""

from __future__ import annotations

import json

import pytest

from gputop_llm.timeline.read import read_capture
from gputop_llm.timeline.stack_samples import samples_name
from tests.support.synth import Simulation
from tests.support.synth_native import REALTIME_NS, to_native

THREAD = 0x7F00_0000_2000
SAMPLES = {
    "schema": 1,
    "threads": [[THREAD, 77, "MainThread"], [5, 78, "other"]],
    "calls": [["step", "vllm/a.py", 3], ["run", "vllm/a.py", 9], ["poll", "zmq/poll.py", 1]],
    "stacks": [[0, 1], [1], [2]],
    "moments_us": [0, 4000, 9000],
    "changes": [[0, 0, 0], [0, 1, 2], [2, 0, 1]],
    "rate_hz": 200,
    "zero_realtime_ns": REALTIME_NS,
    "zero_error_ns": 200_000,
    "samples_per_thread": 5.0,
    "errors": 0,
    "cpu_s": 0.001,
}


@pytest.fixture
def record(tmp_path):
    simulation = Simulation()
    worker = simulation.host(simulation.process(name="python3"))
    for _ in range(5):
        worker.launch(7, 20_000, "gemm")
        worker.run(2_000_000)
    return to_native(simulation.schedule(), tmp_path / "rank0_pid7.gtw")


def beside(record, told):
    path = record.with_name(samples_name(record.name))
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    return path


def own_thread(record):
    """The half of a thread's ID that the record has."""
    (thread,) = read_capture([record]).threads
    return int(thread.name.removeprefix("thread 0x"), 16)


def test_samples_are_on_the_records_clock_and_name_its_threads(record):
    told = {**SAMPLES, "threads": [[0x7F00_0000_0000 + own_thread(record), 77, "MainThread"], [5, 78, "other"]]}
    beside(record, told)

    timeline = read_capture([record])

    (samples,) = timeline.samples
    assert samples.time.tolist() == [REALTIME_NS, REALTIME_NS + 4_000_000, REALTIME_NS + 9_000_000]
    assert samples.threads.tolist() == [0, -1]
    # What isn't written is as it was.
    assert samples.at.tolist() == [[0, 2], [0, 2], [1, 2]]
    assert samples.calls[0] == "step (vllm/a.py:3)"
    assert samples.error_ns == 200_000 + 200_000
    assert (timeline.threads[0].name, timeline.threads[0].tid) == ("MainThread", 77)


def test_a_record_without_samples_has_none(record):
    timeline = read_capture([record])

    assert timeline.samples == ()
    assert timeline.origin.warnings == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 2},
        {"changes": [[9, 0, 0]]},
        {"changes": [[0, 0, -1]]},
        {"stacks": [[7]]},
        {"moments_us": [5, 1]},
        {"moments_us": ["x"]},
        {"moments_us": [1 << 70]},
        {"threads": [[1]]},
        {"zero_realtime_ns": None},
        {"calls": [[]]},
    ],
)
def test_damaged_samples_are_told_and_leave_the_record_as_it_is(record, changed):
    beside(record, {**SAMPLES, **changed})

    timeline = read_capture([record])

    assert timeline.samples == ()
    assert timeline.origin.warnings == ("rank0_pid7.stacks.json is damaged: its Python stacks were not used",)
    assert len(timeline.ops) == 5


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"schema":1}'])
def test_what_is_no_samples_is_told(record, text):
    beside(record, text)

    assert len(read_capture([record]).origin.warnings) == 1


def test_a_link_is_not_followed(record, tmp_path):
    (tmp_path / "elsewhere.json").write_text(json.dumps(SAMPLES))
    record.with_name(samples_name(record.name)).symlink_to(tmp_path / "elsewhere.json")

    timeline = read_capture([record])

    assert timeline.samples == ()
    assert "was not read" in timeline.origin.warnings[0]


def test_names_are_shown_inert(record):
    beside(record, {**SAMPLES, "calls": [["\x1b[2J", "a\nb", 3], ["run", "", 0], ["x" * 999, "", 0]]})

    (samples,) = read_capture([record]).samples
    assert samples.calls[0] == "\\x1b[2J (a\\nb:3)"
    assert all(len(call) <= 200 for call in samples.calls)
