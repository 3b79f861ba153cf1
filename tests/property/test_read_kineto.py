"""Whatever a program does, its trace reads as it was; whatever is done to a trace, reading it ends in a sentence."""

from __future__ import annotations

import gzip
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_llm.errors import GputopError
from gputop_llm.timeline import intervals
from gputop_llm.timeline.launch_shape import packed_of
from gputop_llm.timeline.model import Kind, Timeline
from gputop_llm.timeline.read_kineto import read_kineto
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from tests.support import synth_truth as truth
from tests.support.nsys_figures import decode
from tests.support.synth import Schedule, Simulation
from tests.support.synth_kineto import BASE_NS, to_kineto
from tests.support.synth_random import schedules

any_schedule = settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
NOWHERE = -(10**18)
#: It frames work that is there already: were it taken for work, the device would always be busy.
FRAME = (
    b'"traceEvents": [{"ph":"X","cat":"gpu_user_annotation","name":"step","pid":0,"tid":7,"ts":-9,"dur":9999999,'
    b'"args":{"device":0,"stream":7}}, '
)
CAUSES = {
    "sync": Cause.SYNC,
    "alloc": Cause.ALLOC,
    "launch": Cause.LAUNCH,
    "framework": Cause.FRAMEWORK,
    "host_code": Cause.HOST_CODE,
    "unattributed": Cause.UNATTRIBUTED,
    "submitted": Cause.SUBMITTED,
    "rank": Cause.RANK,
}


@st.composite
def written(draw: st.DrawFn) -> tuple[Schedule, dict[str, bool]]:
    """A schedule with a window, and the form of its traces: times in ns, or as before 2024 in whole µs."""
    decimals = draw(st.booleans())
    step_ns = 1 if decimals else 1000
    schedule = draw(schedules(node_mode=True, step_ns=step_ns))
    if not decimals:
        # A collective that waits for 20 µs waits for another rank: the truth knows of no such wait.
        schedule = replace(
            schedule,
            ops=tuple(replace(op, name=op.name.replace("ncclDevKernel_AllReduce_Sum", "gemm")) for op in schedule.ops),
        )
    # A window without length can't be recorded.
    schedule = replace(schedule, end=max(schedule.end, schedule.start + step_ns))
    return schedule, {"decimals": decimals, "gz": draw(st.booleans())}


def read(schedule: Schedule, **form: bool) -> Timeline:
    """The ranks of a schedule, each from a trace of its own."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for process in range(max(len(schedule.processes), 1)):
            path = to_kineto(schedule, Path(folder) / f"rank{process}", process=process, rank=process, **form)
            content = path.read_bytes()
            text = gzip.decompress(content) if form["gz"] else content
            text = text.replace(b'"traceEvents": [', FRAME if b'"ph"' in text else b'"traceEvents": [')
            path.write_bytes(gzip.compress(text) if form["gz"] else text)
            paths.append(path)
        return read_kineto(paths)


def rows(table, timeline):
    return sorted(
        (int(start) - BASE_NS, int(end) - BASE_NS, timeline.name(int(name)))
        for start, end, name in zip(table.start, table.end, table.name_id, strict=True)
    )


@any_schedule
@given(written())
def test_every_row_comes_back(case):
    schedule, form = case
    timeline = read(schedule, **form)

    assert (timeline.start, timeline.end) == (BASE_NS + schedule.start, BASE_NS + schedule.end)
    for table, wanted in (
        (timeline.ops, schedule.ops),
        (timeline.calls, schedule.calls),
        (timeline.cpu_ops, schedule.cpu_ops),
        (timeline.ranges, schedule.ranges),
    ):
        assert rows(table, timeline) == sorted((row.start, row.end, row.name) for row in wanted)
    ops = timeline.ops
    columns = (ops.start - BASE_NS, ops.kind, ops.device, ops.stream, ops.process, ops.bytes, ops.copy_kind, ops.grid)
    assert sorted(zip(*(column.tolist() for column in columns), strict=True)) == sorted(
        (op.start, int(op.kind), op.device, op.stream, op.process, op.bytes, int(op.copy), grid)
        for op in schedule.ops
        for grid in (packed_of(op.grid) if op.kind is Kind.KERNEL else 0,)
    )


@any_schedule
@given(written())
def test_launches_are_those_of_the_program(case):
    schedule, form = case
    timeline = read(schedule, **form)

    found = sorted(
        (
            int(ops.start) - BASE_NS,
            NOWHERE if ops.launch < 0 else int(timeline.calls.start[ops.launch]) - BASE_NS,
        )
        for ops in (timeline.ops.take(row) for row in range(len(timeline.ops)))
    )
    assert found == sorted(
        (op.start, NOWHERE if op.call is None else schedule.calls[op.call].start) for op in schedule.ops
    )


@any_schedule
@given(written())
def test_busy_time_overlap_and_causes_of_idle_time_are_the_true_ones(case):
    schedule, form = case
    context = Context(read(schedule, **form))
    seen = schedule.seen_by_kineto()

    busy = {covered.device: covered.busy_ns for covered in context.coverage}
    assert busy == {d: ns for d in schedule.devices if (ns := truth.busy_ns(schedule, d))}
    for covered in context.coverage:
        both = truth.overlapped_ns(schedule, truth.is_kernel(covered.device), truth.is_copy(covered.device))
        memsets = [op for op in schedule.ops if op.kind is Kind.MEMSET]
        assert memsets or covered.kernel_busy_ns + covered.copy_busy_ns - covered.busy_ns == both
        found = {cause: ns for cause, ns in context.idle[covered.device].total_ns.items() if ns}
        assert found == {CAUSES[cause]: ns for cause, ns in truth.idle_by_cause(seen, covered.device).items()}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_damaged_bytes_end_in_a_timeline_or_a_sentence(data):
    with tempfile.TemporaryDirectory() as folder:
        path = to_kineto(decode(Simulation(node_mode=True)), Path(folder) / "trace", gz=data.draw(st.booleans()))
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(0, 6))):
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + 1] = data.draw(st.sampled_from((b"", b"9", b"-", b"]", b"null", b"1e9", b"\\", b"\xff")))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
        # Any other exception fails the test.
        with suppress(GputopError):
            timeline = read_kineto([path])
            assert (timeline.ops.end >= timeline.ops.start).all()
            assert {int(n) for n in timeline.ops.device} <= {device.number for device in timeline.devices}
            covered = intervals.union(
                *intervals.clip(timeline.ops.start, timeline.ops.end, timeline.start, timeline.end)
            )
            assert intervals.length(*covered) <= timeline.window_ns
            judge(timeline)
