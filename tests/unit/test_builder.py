"""Rows become sorted columns, and device work finds the call that issued it."""

from __future__ import annotations

import numpy as np
import pytest

from gputop_llm.timeline.builder import Columns, Interner, TimelineBuilder
from gputop_llm.timeline.model import CpuOps, DeviceOps, HostCalls, Kind, Origin, Process, Ranges, Thread

ORIGIN = Origin(format="nsys", files=("capture.sqlite",))


def op(start, end, *, process=0, correlation=0, stream=7, device=0):
    row = dict.fromkeys(DeviceOps.__dataclass_fields__, 0)
    row |= {"start": start, "end": end, "kind": int(Kind.KERNEL), "device": device, "stream": stream}
    row |= {"process": process, "correlation": correlation, "launch": -1, "graph": -1, "graph_node": -1}
    return row


def built(ops, calls, threads=(0,)):
    """A timeline of ops (dicts) and calls (start, end, thread, correlation); `threads` are their processes."""
    builder = TimelineBuilder()
    builder.threads += [Thread(tid=i, process=process) for i, process in enumerate(threads)]
    builder.processes += [Process(pid=p) for p in sorted(set(threads))]
    for row in ops:
        builder.ops.append(*(row[name] for name in DeviceOps.__dataclass_fields__))
    for start, end, thread, correlation in calls:
        builder.calls.append(start, end, builder.intern("cudaLaunchKernel"), thread, correlation)
    return builder.build(ORIGIN, 0, 100)


def test_an_empty_builder_makes_an_empty_timeline():
    timeline = built([], [])

    assert (len(timeline.ops), len(timeline.calls), len(timeline.ranges)) == (0, 0, 0)
    assert timeline.ops.start.dtype == np.int64
    assert timeline.ops.kind.dtype == np.uint8
    assert timeline.window_ns == 100


def test_rows_are_sorted_by_start_whatever_the_order_they_came_in():
    timeline = built([op(30, 40), op(10, 20), op(20, 30)], [])

    assert timeline.ops.start.tolist() == [10, 20, 30]
    assert timeline.ops.end.tolist() == [20, 30, 40]


def test_rows_of_equal_start_keep_their_order():
    timeline = built([op(10, 20, stream=1), op(5, 6, stream=2), op(10, 15, stream=3)], [])

    assert timeline.ops.stream.tolist() == [2, 1, 3]


def test_launches_point_at_the_sorted_call():
    timeline = built([op(50, 60, correlation=2), op(70, 80, correlation=1)], [(20, 25, 0, 1), (10, 15, 0, 2)])

    assert timeline.calls.correlation.tolist() == [2, 1]
    assert timeline.ops.launch.tolist() == [0, 1]


def test_the_same_correlation_in_two_processes_joins_within_each():
    ops = [op(50, 60, process=0, correlation=9), op(55, 65, process=1, correlation=9)]
    timeline = built(ops, [(10, 15, 1, 9), (20, 25, 0, 9)], threads=(0, 1))

    assert [timeline.calls.thread[row] for row in timeline.ops.launch] == [0, 1]


def test_correlation_zero_joins_nothing():
    timeline = built([op(50, 60, correlation=0)], [(10, 15, 0, 0)])

    assert timeline.ops.launch.tolist() == [-1]


def test_work_without_a_call_has_no_launch():
    timeline = built([op(50, 60, correlation=5), op(70, 80, correlation=7)], [(10, 15, 0, 6)])

    assert timeline.ops.launch.tolist() == [-1, -1]


def test_the_earliest_of_nested_calls_with_one_correlation_is_the_launch():
    # cudaLaunchKernel calls cuLaunchKernel: both carry the correlation.
    timeline = built([op(50, 60, correlation=5)], [(12, 14, 0, 5), (10, 15, 0, 5)])

    assert timeline.calls.start[timeline.ops.launch[0]] == 10


def test_many_rows_may_share_one_launch():
    timeline = built([op(50 + i, 51 + i, correlation=5) for i in range(18)], [(10, 15, 0, 5)])

    assert set(timeline.ops.launch.tolist()) == {0}


def test_whole_columns_and_single_rows_make_one_table():
    columns = Columns(Ranges)
    columns.append(30, 40, 1, 0)
    columns.extend(start=np.array([10, 20]), end=np.array([15, 25]), name_id=np.array([2, 3]), thread=0)

    table = columns.freeze()

    assert table.start.tolist() == [10, 20, 30]
    assert table.name_id.tolist() == [2, 3, 1]
    assert table.thread.dtype == np.int32


def test_length_counts_rows_of_both_kinds():
    columns = Columns(Ranges)
    columns.append(30, 40, 1, 0)
    columns.extend(start=np.array([10, 20]), end=np.array([15, 25]), name_id=-1, thread=0)

    assert len(columns) == 3


def test_columns_cut_out_of_a_wider_array_keep_their_values():
    wide = np.arange(12).reshape(4, 3)
    columns = Columns(Ranges)
    columns.extend(start=wide[:, 0], end=wide[:, 1], name_id=wide[:, 2], thread=np.broadcast_to(np.int64(5), 4))

    table = columns.freeze()

    assert table.end.tolist() == [1, 4, 7, 10]
    assert table.thread.tolist() == [5, 5, 5, 5]


def test_a_value_that_all_rows_share_is_kept_once():
    columns = Columns(Ranges)
    columns.extend(start=np.array([20, 10, 30]), end=np.array([25, 15, 35]), name_id=np.array([1, 2, 1]), thread=5)

    table = columns.freeze()

    assert table.thread.tolist() == [5, 5, 5]
    assert (table.thread.dtype, table.thread.strides) == (np.int32, (0,))
    assert table.take(table.start > 10).thread.tolist() == [5, 5]


@pytest.mark.parametrize("names", [[7], [7, 8, 7], [7, 7, 8]])
def test_a_value_that_most_rows_share_does_not_stand_for_the_others(names):
    columns = Columns(Ranges)
    for start, name in enumerate(names):
        columns.append(start, start + 1, name, 0)

    assert columns.freeze().name_id.tolist() == names


def test_columns_of_unequal_length_are_refused():
    columns = Columns(Ranges)

    with pytest.raises(ValueError, match="3 values of end for 2 rows"):
        columns.extend(start=np.array([1, 2]), end=np.array([1, 2, 3]), name_id=-1, thread=0)


def test_a_column_that_the_table_lacks_is_refused():
    columns = Columns(Ranges)

    with pytest.raises(TypeError, match="colour"):
        columns.extend(start=np.array([1]), end=np.array([2]), name_id=-1, thread=0, colour=np.array([3]))


def test_a_missing_column_is_refused():
    with pytest.raises(KeyError, match="thread"):
        Columns(Ranges).extend(start=np.array([1]), end=np.array([2]), name_id=-1)


@pytest.mark.parametrize("rows", [1, 4095, 4096, 4097, 10_000])
def test_rows_appended_one_by_one_are_all_there(rows):
    columns = Columns(HostCalls)
    for i in range(rows):
        columns.append(i, i + 1, 0, 0, i)

    assert len(columns) == rows
    assert columns.freeze().correlation.tolist() == list(range(rows))


def test_tables_can_be_narrowed_to_chosen_rows():
    columns = Columns(CpuOps)
    for i in range(5):
        columns.append(i, i + 1, i, 0, -1, -1)
    table = columns.freeze()

    assert table.take(table.start >= 3).name_id.tolist() == [3, 4]


def test_strings_are_kept_once_and_none_is_minus_one():
    intern = Interner()

    assert [intern("a"), intern("b"), intern("a"), intern(None)] == [0, 1, 0, -1]
    assert intern.strings == ("a", "b")


def test_a_name_of_no_string_is_empty():
    builder = TimelineBuilder()
    builder.intern("gemm")
    timeline = builder.build(ORIGIN, 0, 1)

    assert timeline.name(0) == "gemm"
    assert timeline.name(-1) == ""
