"""Whatever a program does, its record reads as it was; whatever is done to a record, reading ends in a sentence."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_llm.errors import GputopError
from gputop_llm.timeline import intervals, native_chunks
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.launch_shape import packed_of
from gputop_llm.timeline.model import Kind, Timeline
from gputop_llm.timeline.read_native import read_native
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.idle import Cause
from tests.support import synth_truth as truth
from tests.support.nsys_figures import decode
from tests.support.synth import Simulation
from tests.support.synth_native import CUPTI_NS, REALTIME_NS, chunk, ended, hello, started, to_native
from tests.support.synth_random import schedules

any_schedule = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
NOWHERE = -(10**18)


def read(schedule, **more):
    """The ranks of a schedule, each from a record of its own."""
    with tempfile.TemporaryDirectory() as folder:
        count = max(len(schedule.processes), 1)
        paths = [to_native(schedule, Path(folder) / f"rank{n}.gtw", process=n, **more) for n in range(count)]
        return read_native(paths)


def open_window(schedule):
    """A window without length can't be recorded."""
    return schedule if schedule.end > schedule.start else replace(schedule, end=schedule.start + 1)


def rows(table, timeline):
    return sorted(
        (int(start) - REALTIME_NS, int(end) - REALTIME_NS, timeline.name(int(name)))
        for start, end, name in zip(table.start, table.end, table.name_id, strict=True)
    )


def work(timeline):
    ops = timeline.ops
    columns = (
        ops.start - REALTIME_NS,
        ops.kind,
        ops.device,
        ops.stream,
        ops.process,
        ops.graph,
        ops.graph_node,
        ops.bytes,
    )
    columns += (ops.copy_kind, ops.src_memory, ops.dst_memory, ops.grid, ops.block)
    return sorted(zip(*(column.tolist() for column in columns), strict=True))


@any_schedule
@given(schedules(node_mode=True).map(open_window), st.booleans(), st.booleans())
def test_every_row_comes_back_on_either_clock(schedule, tsc, names_last):
    timeline = read(schedule, tsc=tsc, names_last=names_last)

    assert (timeline.start, timeline.end) == (REALTIME_NS + schedule.start, REALTIME_NS + schedule.end)
    assert rows(timeline.ops, timeline) == sorted((op.start, op.end, op.name) for op in schedule.ops)
    assert work(timeline) == sorted(
        (
            *(op.start, int(op.kind), op.device, op.stream, op.process, op.graph or -1, op.node or -1, op.bytes),
            *(int(op.copy), int(op.src), int(op.dst)),
            *((packed_of(op.grid), packed_of(op.block)) if op.kind is Kind.KERNEL else (0, 0)),
        )
        for op in schedule.ops
    )
    assert rows(timeline.calls, timeline) == sorted((call.start, call.end, call.name) for call in schedule.calls)
    assert [thread.name for thread in timeline.threads] == sorted(
        {f"thread 0x{0xABC00000 + call.thread:x}" for call in schedule.calls}
    )
    assert timeline.origin.node_level == any(op.node for op in schedule.ops)


@any_schedule
@given(schedules(node_mode=True).map(open_window))
def test_launches_are_those_of_the_program(schedule):
    timeline = read(schedule)

    found = sorted(
        (
            int(ops.start) - REALTIME_NS,
            NOWHERE if ops.launch < 0 else int(timeline.calls.start[ops.launch]) - REALTIME_NS,
        )
        for ops in (timeline.ops.take(row) for row in range(len(timeline.ops)))
    )
    assert found == sorted(
        (op.start, NOWHERE if op.call is None else schedule.calls[op.call].start) for op in schedule.ops
    )


@any_schedule
@given(schedules(node_mode=True).map(open_window))
def test_busy_time_and_causes_of_idle_time_are_the_true_ones(schedule):
    context = Context(read(schedule))
    seen = replace(schedule, cpu_ops=(), ranges=(), waits=())

    busy = {covered.device: covered.busy_ns for covered in context.coverage}
    assert busy == {d: ns for d in schedule.devices if (ns := truth.busy_ns(schedule, d))}
    for device, idle in context.idle.items():
        found = {cause: ns for cause, ns in idle.total_ns.items() if ns}
        named = {"sync": Cause.SYNC, "alloc": Cause.ALLOC, "launch": Cause.LAUNCH, "os": Cause.OS_BLOCKED}
        named |= {"framework": Cause.FRAMEWORK, "host_code": Cause.HOST_CODE, "submitted": Cause.SUBMITTED}
        named |= {"unattributed": Cause.UNATTRIBUTED}
        assert found == {named[cause]: ns for cause, ns in truth.idle_by_cause(seen, device).items()}


def check(timeline: Timeline) -> None:
    """What every timeline holds to, and that it can be judged."""
    assert (timeline.ops.end >= timeline.ops.start).all()
    assert (timeline.ops.launch < len(timeline.calls)).all()
    assert (timeline.ops.process < len(timeline.processes)).all()
    assert (timeline.calls.thread < len(timeline.threads)).all()
    assert {int(number) for number in np.unique(timeline.ops.device)} == {d.number for d in timeline.devices}
    assert (timeline.ops.name_id < len(timeline.strings)).all()
    assert (timeline.ops.bytes >= 0).all()
    assert (timeline.ops.grid >= 0).all()
    covered = intervals.union(*intervals.clip(timeline.ops.start, timeline.ops.end, timeline.start, timeline.end))
    assert intervals.length(*covered) <= timeline.window_ns
    judge(timeline)


def read_bytes(content: bytes) -> Timeline | None:
    """The timeline of a record; None if reading ended in a sentence. Any other exception fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "capture.gtw"
        path.write_bytes(content)
        with suppress(GputopError):
            timeline = read_native([path])
            check(timeline)
            return timeline
    return None


def recorded() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return to_native(decode(Simulation(node_mode=True)), Path(folder) / "capture.gtw").read_bytes()


RECORD = recorded()
#: Without what begins and ends it.
BODY = RECORD[len(form.MAGIC + hello() + started(0)) : -len(ended(0))]


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(RECORD)))
def test_a_record_cut_anywhere_gives_what_is_whole_and_says_so(length):
    timeline = read_bytes(RECORD[:length])

    if timeline is not None and length < len(RECORD):
        assert any("cut before its end" in warning for warning in timeline.origin.warnings)


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_end_in_a_timeline_or_a_sentence(data):
    content = bytearray(RECORD)
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    read_bytes(bytes(content))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_end_in_a_timeline_or_a_sentence(noise, after_start):
    read_bytes(form.MAGIC + (hello() + started(0) if after_start else b"") + noise)


@st.composite
def row_chunks(draw):
    """A chunk of rows with any bytes in them, or any but with times in the window."""
    kind = draw(st.sampled_from(sorted(native_chunks.ROWS)))
    stride = native_chunks.ROWS[kind].itemsize
    count = draw(st.integers(0, 3))
    rows = np.frombuffer(draw(st.binary(min_size=count * stride, max_size=count * stride)), native_chunks.ROWS[kind])
    if draw(st.booleans()):
        rows = rows.copy()
        rows["start"] = CUPTI_NS + rows["start"] % 1_000_000_000
        rows["end"] = rows["start"] + rows["end"] % 1_000_000
    return chunk(kind, rows.tobytes())


@settings(deadline=None, max_examples=200)
@given(st.lists(row_chunks(), max_size=4))
def test_rows_of_any_value_end_in_a_timeline_or_a_sentence(chunks):
    read_bytes(form.MAGIC + hello() + started(0) + b"".join(chunks) + ended(1_000_000_000))


U64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**62, 2**63, 2**64 - 1])
CLOCKS = st.tuples(U64, U64, U64, U64)


@settings(deadline=None, max_examples=200)
@given(CLOCKS, CLOCKS)
def test_clocks_of_any_value_end_in_a_timeline_or_a_sentence(began, finished):
    read_bytes(form.MAGIC + hello() + started(0, at=began) + BODY + ended(0, at=finished))
