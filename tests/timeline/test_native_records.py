"""What a native record says of itself: its window, its clocks, what is lost; and what of that a reader is told."""

from __future__ import annotations

import gzip
import lzma
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline import native_chunks
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.read import form_of, read_capture
from gputop_llm.timeline.read_native import read_native
from tests.support.bundles import steps_schedule
from tests.support.synth import Simulation
from tests.support.synth_native import (
    CUPTI_NS,
    MONOTONIC_NS,
    REALTIME_NS,
    TSC,
    chunk,
    ended,
    hello,
    started,
    to_native,
)

SCHEDULE = steps_schedule(steps=3)


@pytest.fixture
def record(tmp_path):
    return to_native(SCHEDULE, tmp_path / "rank0_pid4000.gtw")


def body():
    """The chunks between the beginning and the end of a record of SCHEDULE."""
    with tempfile.TemporaryDirectory() as folder:
        content = to_native(SCHEDULE, Path(folder) / "x.gtw").read_bytes()
    return content[len(form.MAGIC + hello() + started(0)) : -len(ended(0))]


def read(tmp_path, *pieces):
    path = tmp_path / "made.gtw"
    path.write_bytes(form.MAGIC + b"".join(pieces))
    return read_native([path])


def warnings(timeline):
    return " | ".join(timeline.origin.warnings)


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, lzma.compress], ids=["plain", "gz", "xz"])
def test_a_record_is_told_by_its_content(record, pack):
    path = record.with_name("whatever.txt")
    path.write_bytes(pack(record.read_bytes()))

    assert form_of(path) == "native"
    timeline = read_capture([path])
    assert (timeline.origin.format, timeline.origin.window_from) == ("native", "record")
    assert timeline.origin.tool == "native CUPTI window (CUPTI 130000)"
    assert timeline.origin.warnings == ()
    assert [process.pid for process in timeline.processes] == [4000]


def test_what_was_not_recorded_is_said(tmp_path):
    timeline = read(tmp_path, hello(), started(0, kinds=form.Kinds.KERNELS), ended(1000))

    assert set(timeline.origin.missing) == {
        *("cpu_ops", "ranges", "os_waits", "device_names", "launches", "calls", "device_activity")
    }
    assert "did not record API calls" in timeline.origin.missing["calls"]


def test_ranks_share_the_clock_of_their_node_and_the_window_that_all_have(tmp_path):
    schedule = steps_schedule(steps=3, ranks=2)
    late = replace(schedule, start=schedule.start + 500_000)
    paths = [to_native(schedule, tmp_path / "a.gtw"), to_native(late, tmp_path / "b.gtw", process=1)]

    timeline = read_native(paths)

    assert (timeline.start, timeline.end) == (REALTIME_NS + late.start, REALTIME_NS + schedule.end)
    assert [(p.pid, p.rank) for p in timeline.processes] == [(4000, 0), (4001, 1)]
    assert [device.number for device in timeline.devices] == [0, 1]


def test_the_same_ordinal_of_two_processes_is_never_taken_for_one_gpu(tmp_path):
    simulation = Simulation()
    for rank in range(2):
        simulation.host(simulation.process(4000 + rank), device=0).launch(7 + rank, 1000, "gemm")
    schedule = simulation.schedule(idle_after_ns=1000)
    paths = [to_native(schedule, tmp_path / f"{n}.gtw", process=n) for n in range(2)]

    timeline = read_native(paths)

    assert [(d.number, d.name) for d in timeline.devices] == [(0, None), (1, "device 0 of PID 4001")]
    assert "several processes name a GPU 0" in warnings(timeline)


def test_records_that_share_no_moment_are_refused(tmp_path):
    simulation = Simulation(start=10**12)
    simulation.host().launch(7, 1000, "gemm")
    paths = [to_native(SCHEDULE, tmp_path / "a.gtw"), to_native(simulation.schedule(), tmp_path / "b.gtw")]

    with pytest.raises(GputopError, match="share no moment"):
        read_native(paths)


def test_times_of_the_processors_counter_are_recognised_row_by_row(tmp_path):
    row = native_chunks.ROWS[form.Chunk.KERNELS]
    rows = np.zeros(2, dtype=row)
    rows["start"] = [CUPTI_NS + 1000, TSC + 2 * 5000]
    rows["end"] = [CUPTI_NS + 3000, TSC + 2 * 8000]
    timeline = read(tmp_path, hello(), started(0), chunk(form.Chunk.KERNELS, rows.tobytes()), ended(10**9))

    assert (timeline.ops.start - REALTIME_NS).tolist() == [1000, 5000]
    assert (timeline.ops.end - REALTIME_NS).tolist() == [3000, 8000]


def test_a_clock_that_cupti_was_given_by_another_client_is_converted(tmp_path):
    """cuptiGetTimestamp then tells that clock as well."""
    row = native_chunks.ROWS[form.Chunk.KERNELS]
    rows = np.zeros(1, dtype=row)
    rows["start"], rows["end"] = 7_000_000_000, 7_000_000_400
    timeline = read(
        tmp_path,
        hello(),
        started(0, at=(6_000_000_000, REALTIME_NS, MONOTONIC_NS, 6_000_000_000)),
        chunk(form.Chunk.KERNELS, rows.tobytes()),
        ended(0, at=(8_000_000_000, REALTIME_NS + 10**9, MONOTONIC_NS + 10**9, 8_000_000_000)),
    )

    assert (timeline.ops.start - REALTIME_NS).tolist() == [500_000_000]
    assert (timeline.ops.end - timeline.ops.start).tolist() == [200]


def test_clocks_that_were_read_far_apart_stretch_nothing(tmp_path):
    at = (CUPTI_NS + 10**9 + 20_000_000, REALTIME_NS + 10**9, MONOTONIC_NS + 10**9, TSC + 2 * 10**9)
    timeline = read(tmp_path, hello(), started(0), body(), ended(0, at=at))

    lengths = sorted((timeline.ops.end - timeline.ops.start).tolist())
    assert lengths == sorted(op.end - op.start for op in SCHEDULE.ops)
    assert "clocks were read 20.0 ms apart" in warnings(timeline)


def test_a_wall_clock_that_was_set_during_the_window_is_told_and_changes_no_length(tmp_path):
    at = (CUPTI_NS + 10**9, REALTIME_NS + 3600 * 10**9, MONOTONIC_NS + 10**9, TSC + 2 * 10**9)
    timeline = read(tmp_path, hello(), started(0), body(), ended(0, at=at))

    assert timeline.window_ns == 10**9
    assert "clock was set during the window" in warnings(timeline)


def test_a_cut_record_ends_with_its_last_work(record):
    content = record.read_bytes()
    record.write_bytes(content[: -len(ended(0))])

    timeline = read_native([record])

    assert timeline.end == max(REALTIME_NS + op.end for op in SCHEDULE.ops)
    assert timeline.origin.window_from == "activity"
    assert "cut before its end" in warnings(timeline)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (ended(10**9, reason=form.EndReason.STOPPED), "stopped before its time was up"),
        (ended(10**9, reason=form.EndReason.TOO_MANY_BYTES), "limit of bytes"),
        (ended(10**9, reason=form.EndReason.PROFILER_TOOK_OVER), "another profiler began"),
        (ended(10**9, dropped=12_345), "CUPTI dropped 12,345 records"),
        (ended(10**9, unreturned=2), "2 buffers of records never came back"),
        (ended(10**9) + b"more", "what follows its end was left out"),
    ],
)
def test_what_is_lost_is_told(tmp_path, end, says):
    assert says in warnings(read(tmp_path, hello(), started(0), body(), end))


def test_names_that_are_not_there_are_told_and_kernels_stay_apart(tmp_path):
    content = b"".join(
        chunk(kind, payload) for kind, payload in _chunks(body()) if kind not in (form.Chunk.NAME, form.Chunk.API_NAME)
    )
    timeline = read(tmp_path, hello(), started(0), content, ended(10**9))

    names = {timeline.name(int(i)) for i in timeline.ops.name_id}
    assert names == {"kernel 0x7f000000", "kernel 0x7f000001"}
    assert {timeline.name(int(i)) for i in timeline.calls.name_id} == {"runtime call 1", "runtime call 2"}
    assert "names of 2 kernels are not in the record" in warnings(timeline)


def _chunks(data):
    while data:
        kind, length = form.CHUNK_HEADER.unpack_from(data)
        yield kind, data[8 : 8 + length]
        data = data[8 + length :]


def test_chunks_of_an_unknown_kind_are_passed_over(tmp_path):
    timeline = read(tmp_path, hello(), chunk(999, b"x" * 100), started(0), body(), chunk(0, b""), ended(10**9))

    assert len(timeline.ops) == len(SCHEDULE.ops)
    assert timeline.origin.warnings == ()


@pytest.mark.parametrize(
    ("pieces", "says"),
    [
        ([], "it ends before recording began"),
        ([hello()], "it ends before recording began"),
        ([hello(version=7)], "its format is 7, and this program knows 1"),
        ([chunk(form.Chunk.REFUSED, form.REFUSED.pack(1, 0) + b"\x1b[2Jbusy")], r"refused: \\x1b\[2Jbusy"),
        ([hello(), started(0), ended(0)], "its window is empty"),
        ([hello(), started(0, at=(0, 0, 0, 0)), ended(0)], "clocks make no sense"),
    ],
)
def test_what_holds_no_window_is_a_sentence(tmp_path, pieces, says):
    with pytest.raises(GputopError, match=says):
        read(tmp_path, *pieces)


def test_a_chunk_of_giant_size_is_damage_and_takes_no_memory(tmp_path):
    giant = form.CHUNK_HEADER.pack(form.Chunk.KERNELS, 0xFFFF_FFFF)
    timeline = read(tmp_path, hello(), started(0), body(), giant, ended(10**9))

    assert len(timeline.ops) == len(SCHEDULE.ops)
    assert "it is damaged at byte" in warnings(timeline)


def test_a_record_beyond_what_a_window_may_send_is_not_read(tmp_path):
    path = tmp_path / "giant.gtw"
    with path.open("wb") as file:
        file.write(form.MAGIC)
        file.truncate(native_chunks.MAX_BYTES + 1)

    with pytest.raises(GputopError, match="is the limit of a window"):
        read_native([path])


def test_too_many_chunks_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(native_chunks, "MAX_CHUNKS", 20)
    timeline = read(tmp_path, hello(), started(0), body(), chunk(0, b"") * 100, ended(10**9))

    assert "more than 20 chunks" in warnings(timeline)


def test_reading_can_be_cancelled(record):
    with pytest.raises(GputopError, match="was cancelled"):
        read_native([record], cancelled=lambda: True)


def test_progress_goes_from_nothing_to_all(record):
    told = []
    read_native([record], told.append)

    assert told == sorted(told)
    assert told[-1] == 1.0
