"""Whatever a program does, its export reads as it was; whatever is done to an export, reading it ends in a sentence."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_llm.errors import GputopError
from gputop_llm.timeline import intervals
from gputop_llm.timeline.nsys_ids import translated
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support import synth_truth as truth
from tests.support.nsys_figures import decode
from tests.support.synth_nsys import GRAPH_SCHEMAS, SCHEMAS, to_nsys_sqlite
from tests.support.synth_random import schedules

NOWHERE = -(10**18)
MACHINES = st.sampled_from((0, 1, 0x8001, 0xFFFF))


def read(schedule, schema, **more):
    with tempfile.TemporaryDirectory() as folder:
        return read_nsys([to_nsys_sqlite(schedule, Path(folder) / "capture.sqlite", schema, **more)])


def rows(table, timeline, first):
    """Start, end, name of each row as a set of rows in the schedule's time."""
    return sorted(
        (int(start) + first, int(end) + first, timeline.name(int(name)))
        for start, end, name in zip(table.start, table.end, table.name_id, strict=True)
    )


@settings(deadline=None, max_examples=60)
@given(schedules(), st.sampled_from(GRAPH_SCHEMAS), MACHINES)
def test_every_row_comes_back(schedule, schema, machine):
    timeline = read(schedule, schema, machine=machine, emit_nvtx=True)

    for table, wanted in (
        (timeline.ops, schedule.ops),
        (timeline.calls, schedule.calls),
        (timeline.cpu_ops, schedule.cpu_ops),
        (timeline.os_waits, schedule.waits),
    ):
        assert rows(table, timeline, schedule.start) == sorted((row.start, row.end, row.name) for row in wanted)


@settings(deadline=None, max_examples=60)
@given(schedules(node_mode=True), st.sampled_from(SCHEMAS), MACHINES)
def test_launches_are_those_of_the_program_in_every_schema(schedule, schema, machine):
    timeline = read(schedule, schema, machine=machine)

    found = sorted(
        (int(ops.start), NOWHERE if ops.launch < 0 else int(timeline.calls.start[ops.launch]))
        for ops in (timeline.ops.take(row) for row in range(len(timeline.ops)))
    )
    wanted = sorted(
        (op.start - schedule.start, NOWHERE if op.call is None else schedule.calls[op.call].start - schedule.start)
        for op in schedule.ops
    )
    assert found == wanted


@settings(deadline=None, max_examples=60)
@given(schedules(), st.sampled_from(GRAPH_SCHEMAS))
def test_the_union_of_work_in_the_window_is_the_busy_time(schedule, schema):
    timeline = read(schedule, schema)

    assert timeline.window_ns == (schedule.end - schedule.start if schedule.ops else timeline.window_ns)
    for device in schedule.devices:
        ops = timeline.ops.take(timeline.ops.device == device)
        covered = intervals.union(*intervals.clip(ops.start, ops.end, timeline.start, timeline.end))
        assert intervals.length(*covered) == truth.busy_ns(schedule, device)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_end_in_a_timeline_or_a_sentence(data):
    with tempfile.TemporaryDirectory() as folder:
        path = to_nsys_sqlite(decode(), Path(folder) / "capture.sqlite")
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 8))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.sampled_from((len(content), len(content) - 1, len(content) // 2)))])
        # Any other exception fails the test.
        with suppress(GputopError):
            timeline = read_nsys([path])
            assert (timeline.ops.end >= timeline.ops.start).all()


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 100), max_size=50))
def test_numbers_are_translated_one_by_one_and_asked_for_once(numbers):
    asked = []

    def lookup(number):
        asked.append(number)
        return hash(number) % 1000

    found = translated(np.array(numbers, dtype=np.int64), lookup)

    assert found.tolist() == [hash(number) % 1000 for number in numbers]
    assert sorted(asked) == sorted(set(numbers))
