"""The window of a capture, and several captures on one clock."""

from __future__ import annotations

import shutil

import pytest

from gputop_llm.errors import GputopError
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.nsys_figures import decode
from tests.support.nsys_files import changed
from tests.support.synth import Simulation
from tests.support.synth_nsys import to_nsys_sqlite

# The window.


def test_without_a_record_the_window_is_that_of_device_activity(tmp_path):
    schedule = decode()
    timeline = read_nsys([to_nsys_sqlite(schedule, tmp_path / "a.sqlite", window=False)])

    assert timeline.start == min(op.start for op in schedule.ops)
    assert timeline.end == max(op.end for op in schedule.ops)
    assert timeline.origin.window_from == "activity"


def test_times_that_an_export_shifted_keep_their_window(tmp_path):
    schedule = decode()
    path = to_nsys_sqlite(schedule, tmp_path / "a.sqlite")
    shift = 1_795_973_173_815_006_931
    changed(
        path,
        f"UPDATE META_DATA_EXPORT SET value = '{shift}' WHERE name = 'EXPORT_CONFIG_TIME_SHIFT'",
        *(
            f"UPDATE {table} SET start = start + {shift}, end = end + {shift}"
            for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_RUNTIME")
        ),
    )
    timeline = read_nsys([path])

    assert (timeline.start, timeline.window_ns) == (shift, schedule.end - schedule.start)
    assert timeline.origin.window_from == "record"


def test_a_window_that_holds_none_of_the_events_is_not_believed(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    changed(path, "UPDATE META_DATA_EXPORT SET value = '-99000000000' WHERE name = 'EXPORT_CONFIG_TIME_SHIFT'")
    timeline = read_nsys([path])

    assert timeline.origin.window_from == "activity"
    assert any("holds none of the events" in warning for warning in timeline.origin.warnings)


def test_an_export_of_chosen_times_does_not_use_the_window_of_the_whole(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    changed(path, "INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PARAM_TIMES_TO_EXPORT', '1s/2s')")

    assert read_nsys([path]).origin.window_from == "activity"


def test_the_profilers_own_work_is_told_without_what_is_cudas(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    columns = "(start INTEGER, end INTEGER, overheadType INTEGER)"
    changed(
        path,
        f"CREATE TABLE CUPTI_ACTIVITY_KIND_OVERHEAD {columns}",
        "INSERT INTO CUPTI_ACTIVITY_KIND_OVERHEAD VALUES (0, 10000, 3), (5000, 20000, 4), (0, 90000, 8)",
    )
    (warning,) = read_nsys([path]).origin.warnings

    assert "took 0.0 ms of the window" in warning
    assert f"({100 * 20_000 / read_nsys([path]).window_ns:.1f} %)" in warning


# Several files.


def rank(tmp_path, number, begins_ns, **more):
    simulation = Simulation()
    host = simulation.host(simulation.process(pid=50 + number, visible=(number,)), device=number)
    for _ in range(10):
        host.launch(7, 3000, "ncclDevKernel_AllReduce_Sum")
    utc = 1_790_000_000_000_000_000 + begins_ns
    return to_nsys_sqlite(simulation.schedule(20_000), tmp_path / f"rank{number}.sqlite", utc_ns=utc, **more)


def test_ranks_are_put_on_one_clock(tmp_path):
    paths = [rank(tmp_path, n, begins_ns=n * 5000, environment=(f'RANK="{n}"', 'API_KEY="secret"')) for n in (0, 1)]
    timeline = read_nsys(paths)

    first, second = (timeline.ops.take(timeline.ops.device == n).start for n in (0, 1))
    assert (second - first).tolist() == [5000] * 10
    assert [(p.pid, p.rank) for p in timeline.processes] == [(50, 0), (51, 1)]
    # Both were recording only from the second's beginning to the first's end.
    alone = read_nsys(paths[:1])
    assert (timeline.start, timeline.end) == (5000, alone.end)
    assert timeline.origin.files == tuple(map(str, paths))
    assert "secret" not in repr(timeline)


def test_gpus_of_two_files_are_the_same_only_by_their_uuid(tmp_path):
    first, second = rank(tmp_path, 0, 0), rank(tmp_path, 1, 0)
    other_host = tmp_path / "other.sqlite"
    shutil.copy(first, other_host)
    changed(other_host, "UPDATE TARGET_INFO_GPU SET uuid = 'GPU-elsewhere'")

    assert [d.number for d in read_nsys([first, second]).devices] == [0, 1]
    assert [d.number for d in read_nsys([first, other_host]).devices] == [0, 1]
    assert [d.number for d in read_nsys([first, first]).devices] == [0]


def test_captures_of_different_times_are_not_mixed(tmp_path):
    paths = [rank(tmp_path, 0, 0), rank(tmp_path, 1, 10**12)]

    with pytest.raises(GputopError, match="share no moment"):
        read_nsys(paths)


def test_captures_without_a_clock_begin_together_and_that_is_said(tmp_path):
    paths = [rank(tmp_path, 0, 0), rank(tmp_path, 1, 10**12)]
    changed(paths[1], "DROP TABLE TARGET_INFO_SESSION_START_TIME")
    timeline = read_nsys(paths)

    assert timeline.start == 0
    assert any("do not tell when they began" in warning for warning in timeline.origin.warnings)


# Progress.


def test_progress_grows_to_one(tmp_path):
    told: list[float] = []
    read_nsys([rank(tmp_path, 0, 0), rank(tmp_path, 1, 0)], told.append)

    assert told == sorted(told)
    assert told[-1] == 1.0
    assert all(0 <= share <= 1 for share in told)
