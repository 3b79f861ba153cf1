"""A synthetic schedule as a timeline, without a file between."""

from __future__ import annotations

from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.launch_shape import packed_of
from gputop_llm.timeline.model import Device, Origin, Process, Thread, Timeline
from tests.support.synth import Op, Schedule


def timeline_of(schedule: Schedule, recorder: str = "native") -> Timeline:
    """The timeline that a perfect reader would make of the schedule."""
    builder = TimelineBuilder()
    builder.processes += [Process(p.pid, p.name) for p in schedule.processes]
    builder.threads += [Thread(t.tid, t.process, t.name) for t in schedule.threads]
    builder.devices += [Device(number) for number in schedule.devices]
    for call in schedule.calls:
        builder.calls.append(call.start, call.end, builder.intern(call.name), call.thread, call.correlation)
    for op in schedule.ops:
        builder.ops.append(*_row(op, builder))
    for span in schedule.cpu_ops:
        builder.cpu_ops.append(
            span.start, span.end, builder.intern(span.name), span.thread, builder.intern(span.shapes), -1
        )
    for span in schedule.ranges:
        builder.ranges.append(span.start, span.end, builder.intern(span.name), span.thread)
    for span in schedule.waits:
        builder.os_waits.append(span.start, span.end, builder.intern(span.name), span.thread)
    return builder.build(Origin(recorder, ()), schedule.start, schedule.end)


def _row(op: Op, builder: TimelineBuilder) -> tuple[int, ...]:
    return (
        op.start,
        op.end,
        int(op.kind),
        op.device,
        op.stream,
        op.process,
        builder.intern(op.name),
        op.correlation,
        -1,
        -1 if op.graph is None else op.graph,
        -1 if op.node is None else op.node,
        op.bytes,
        int(op.copy),
        int(op.src),
        int(op.dst),
        packed_of(op.grid),
        packed_of(op.block),
    )
