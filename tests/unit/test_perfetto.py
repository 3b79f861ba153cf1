"""A timeline written as a trace for Perfetto reads back as the same timeline."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from gputop_llm.errors import GputopError
from gputop_llm.report.perfetto import write_perfetto
from gputop_llm.timeline.model import Kind
from gputop_llm.timeline.read import read_capture
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.verdict.coverage import coverage
from tests.support.captures import CAPTURES
from tests.support.timelines import AMD, KINETO_EAGER, KINETO_VLLM_CPU, NSYS_VLLM, OFFLOAD, TRAINING, recorded

COLUMNS = ("start", "end", "device", "stream", "bytes", "copy_kind", "graph", "grid")


def again(timeline, path, *window):
    write_perfetto(path, timeline, *window)
    return read_kineto([path])


def launched(timeline):
    """The name of the call that launched each row."""
    names, calls = timeline.strings, timeline.calls
    return [names[calls.name_id[row]] if row >= 0 else None for row in timeline.ops.launch.tolist()]


@pytest.mark.parametrize("name", [NSYS_VLLM, KINETO_EAGER, KINETO_VLLM_CPU, OFFLOAD, AMD])
def test_what_is_written_reads_back_the_same(name, tmp_path):
    before = recorded(name).timeline
    after = again(before, tmp_path / "out.json.gz")
    inside = (before.ops.end >= before.start) & (before.ops.start <= before.end)
    ops = before.ops.take(inside)

    assert len(after.ops) == len(ops) > 0
    for column in COLUMNS:
        wanted = getattr(ops, column)
        if column in ("start", "end"):
            wanted = np.clip(wanted, before.start, before.end)
        assert np.array_equal(getattr(after.ops, column), wanted), column
    copies = ops.kind == Kind.COPY
    for column in ("src_memory", "dst_memory"):
        assert np.array_equal(getattr(after.ops, column)[copies], getattr(ops, column)[copies]), column
    assert [launch for launch, kept in zip(launched(before), inside, strict=True) if kept] == launched(after)
    assert [c.busy_ns for c in coverage(after)] == [c.busy_ns for c in coverage(before)]
    assert [(d.number, d.name) for d in after.devices if d.name] == [
        (d.number, d.name) for d in before.devices if d.name
    ]


def test_a_part_of_the_window_is_cut_at_its_edges(tmp_path):
    whole = recorded(OFFLOAD).timeline
    low = whole.start + whole.window_ns // 4
    high = low + whole.window_ns // 8
    part = again(whole, tmp_path / "part.json", (low, high))

    assert (part.start, part.end) == (low, high)
    assert part.ops.start.min() >= low
    assert part.ops.end.max() <= high
    assert 0 < len(part.ops) < len(whole.ops)


def test_the_file_is_json_that_names_its_tracks(tmp_path):
    path = tmp_path / "out.json.gz"
    write_perfetto(path, recorded(NSYS_VLLM).timeline)
    said = json.loads(gzip.decompress(path.read_bytes()))
    names = {event["args"]["name"] for event in said["traceEvents"] if event["name"] == "process_name"}

    assert "GPU 0 NVIDIA H200" in names
    assert all(
        isinstance(event["pid"], int)
        for event in said["traceEvents"]
        if event["cat" if "cat" in event else "ph"] == "kernel"
    )


def test_copies_read_as_copies_and_kernels_as_kernels(tmp_path):
    before = recorded(KINETO_EAGER).timeline
    after = again(before, tmp_path / "out.json")

    for kind in (Kind.KERNEL, Kind.COPY, Kind.MEMSET):
        assert int((after.ops.kind == kind).sum()) == int((before.ops.kind == kind).sum())


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    timeline = recorded(KINETO_EAGER).timeline
    with pytest.raises(GputopError, match="cannot write"):
        write_perfetto(tmp_path / "no" / "such.json", timeline)
    calls = iter([False, False, True])
    with pytest.raises(GputopError, match="cancelled"):
        write_perfetto(tmp_path / "out.json", timeline, cancelled=lambda: next(calls))

    assert list(tmp_path.iterdir()) == []


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(GputopError, match="not a regular file"):
        write_perfetto(pipe, recorded(KINETO_EAGER).timeline)

    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_an_older_file_of_that_name_is_replaced_as_a_whole(tmp_path):
    path = Path(tmp_path / "out.json")
    path.write_text("old")
    write_perfetto(path, recorded(KINETO_EAGER).timeline)

    assert json.loads(path.read_text())["traceEvents"]
    assert path.stat().st_mode & 0o777 != 0o600


@pytest.mark.parametrize("name", [NSYS_VLLM, KINETO_VLLM_CPU, TRAINING, OFFLOAD])
def test_every_event_has_what_the_format_asks_and_events_of_a_track_nest(name, tmp_path):
    write_perfetto(tmp_path / "out.json", read_capture([CAPTURES / name]))
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    tracks = defaultdict(list)
    for event in events:
        # Neither begin and end nor flows: there is nothing that must be paired.
        assert event["ph"] in ("X", "M")
        assert isinstance(event["name"], str)
        assert isinstance(event["ts"], int | float)
        assert {"pid", "tid"} <= event.keys()
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
        else:
            assert event["dur"] >= 0
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, -(start + round(event["dur"] * 1000))))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    gpus = {event["pid"] for event in events if event.get("cat") == "kernel"}
    assert {track for track in tracks if track[0] in gpus} <= named
    for rows in tracks.values():
        around = []
        for start, end in sorted(rows):
            while around and around[-1] <= start:
                around.pop()
            assert not around or -end <= around[-1]
            around.append(-end)
