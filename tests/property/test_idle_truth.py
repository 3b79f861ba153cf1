"""For any schedule the reported coverage, gap causes, delays and overlaps equal what really happened."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gputop_llm.timeline.model import CopyKind, Kind, Memory
from gputop_llm.verdict import allocator, copies, gil, host, launch, operators, sync
from gputop_llm.verdict import idle as idles
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.idle import Began
from gputop_llm.verdict.waited_for import WaitedFor
from tests.support import synth_truth as truth
from tests.support.synth import Op, Schedule
from tests.support.synth_random import schedules
from tests.support.synth_timeline import timeline_of

_CAUSES = {
    "sync": Cause.SYNC,
    "alloc": Cause.ALLOC,
    "launch": Cause.LAUNCH,
    "os": Cause.OS_BLOCKED,
    "framework": Cause.FRAMEWORK,
    "host_code": Cause.HOST_CODE,
    "unattributed": Cause.UNATTRIBUTED,
    "submitted": Cause.SUBMITTED,
    "rank": Cause.RANK,
    "no_request": Cause.NO_REQUEST,
}
any_schedule = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def how_gaps_began(schedule: Schedule, device: int) -> dict[Began, int]:
    """By kind of beginning, the length of all such gaps."""
    gaps = truth.gaps(schedule, device)
    ways, launching = [], set()
    for low, high in gaps:
        later = [op for op in schedule.ops if op.device == device and op.start == high and op.end > high]
        known = bool(later) and high != schedule.end
        if known and later[0].call is not None:
            launching.add(schedule.calls[later[0].call].thread)
        ways.append(how_one_began(schedule, device, low, high, later))
    waits = [c for c in schedule.calls if c.use == "alloc" and c.thread in launching]
    taken: set[int] = set()
    left = 0
    for number, (low, high) in enumerate(gaps):
        if ways[number] is Began.ALLOC:
            # What is left of an earlier call's time is not this one's.
            mine = [c for c in waits if c.start < high and id(c) not in taken]
            taken |= {id(c) for c in mine}
            left = sum(c.end - c.start - sum(max(0, min(c.end, b) - max(c.start, a)) for a, b in gaps) for c in mine)
        elif ways[number] is Began.DRY:
            left -= high - low
            if left >= 0 and Began.ALLOC in ways[:number]:
                ways[number] = Began.AFTER_ALLOC
    found: Counter[Began] = Counter()
    for way, (low, high) in zip(ways, gaps, strict=True):
        found[way] += high - low
    return dict(found)


def how_one_began(schedule: Schedule, device: int, low: int, high: int, later: list[Op]) -> Began:
    if 2 * truth.gap_by_cause(schedule, device, low, high).get("rank", 0) > high - low:
        return Began.RANK
    if high == schedule.end or not later:
        return Began.END
    if later[0].call is None:
        return Began.UNKNOWN
    launched = schedule.calls[later[0].call]
    inside = {c.use for c in schedule.calls if c.thread == launched.thread and c.start <= low < c.end}
    if launched.end <= low:
        return Began.QUEUED
    if "sync" in inside:
        return Began.SYNC
    return Began.ALLOC if "alloc" in inside else Began.DRY


@any_schedule
@given(schedules())
def test_coverage_is_the_union_of_all_activity(schedule):
    context = Context(timeline_of(schedule))
    found = {c.device: c.busy_ns for c in context.coverage}
    expected = {d: truth.busy_ns(schedule, d) for d in schedule.devices}
    assert found == {d: ns for d, ns in expected.items() if ns}
    for covered in context.coverage:
        intervals = [*zip(*covered.busy, strict=True), *zip(*covered.gaps, strict=True)]
        assert sum(int(b - a) for a, b in intervals) == schedule.end - schedule.start
        assert covered.kernel_busy_ns == truth.total(truth.covered(schedule, truth.is_kernel(covered.device)))


@any_schedule
@given(schedules(), st.lists(st.integers(0, 3_000), max_size=6))
def test_each_idle_nanosecond_has_the_cause_that_really_held(schedule, lengths):
    # By turns with and without a request in flight.
    edges = [schedule.start + at for at in accumulate(lengths)]
    without = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False) if a < b]
    given_times = np.array(without, dtype=np.int64).reshape(-1, 2).T
    context = Context(timeline_of(schedule), no_request=(given_times[0], given_times[1]))
    for device, idle in context.idle.items():
        found = {cause: ns for cause, ns in idle.total_ns.items() if ns}
        assert found == {_CAUSES[c]: ns for c, ns in truth.idle_by_cause(schedule, device, without).items()}
        assert sum(found.values()) == idle.idle_ns


@any_schedule
@given(schedules())
def test_large_captures_are_cut_into_stretches_without_a_trace(schedule):
    context = Context(timeline_of(schedule))
    assert context.idle is not None, "worked out before the stretches are made short"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idles, "_CHUNK", 2)
        patch.setattr(idles, "_BLOCK", 3)
        for covered in context.coverage:
            cut = idles.idle(context.timeline, covered, context.uses, WaitedFor(context, None))
            for cause in Cause:
                whole = context.idle[covered.device].gaps.by_cause.of(cause)
                assert cut.gaps.by_cause.of(cause).tolist() == whole.tolist()
            assert cut.began_ns == context.idle[covered.device].began_ns


@any_schedule
@given(schedules())
def test_each_gap_began_as_it_really_did(schedule):
    context = Context(timeline_of(schedule))
    for device, idle in context.idle.items():
        found = {way: ns for way, ns in idle.began_ns.items() if ns}
        assert found == how_gaps_began(schedule, device)
        assert sum(found.values()) == idle.idle_ns


@any_schedule
@given(schedules())
def test_launch_figures_claim_only_what_is_known(schedule):
    context = Context(timeline_of(schedule))
    for result in launch.analyse(context):
        first = {}
        for op in schedule.ops:
            if op.device == result.device and op.call is not None and op.kind in (Kind.KERNEL, Kind.GRAPH):
                first.setdefault(op.call, op)
        delays = sorted(op.start - schedule.calls[op.call].end for op in first.values())
        assert result.delays == len(delays)
        if delays:
            low, middle, high = result.delay_ns
            assert delays[0] <= low <= middle <= high <= delays[-1]
        else:
            assert result.delay_ns is None
        began = how_gaps_began(schedule, result.device)
        assert result.run_ns + result.break_ns == began.get(Began.DRY, 0)
        assert sum(result.run_causes.values()) == result.run_ns
        assert sum(result.break_causes.values()) == result.break_ns
        assert result.queued_ns == began.get(Began.QUEUED, 0)
        by_graph = [op for op in schedule.ops if op.device == result.device and op.graph is not None]
        assert result.rows_by_graph == sum(op.start < schedule.end and op.end > schedule.start for op in by_graph)


@any_schedule
@given(schedules())
def test_a_sync_is_charged_with_the_gaps_that_begin_in_it_and_no_more_than_it_waited(schedule):
    context = Context(timeline_of(schedule))
    for result in sync.analyse(context):
        began = how_gaps_began(schedule, result.device)
        assert result.caused_ns == began.get(Began.SYNC, 0) == sum(result.causes.values())
        assert result.caused_ns == sum(call.caused_ns for call in result.by_api)
        assert result.bound_ns <= min(result.caused_ns, result.waited_ns)
        assert result.waited_busy_ns <= result.waited_ns


@any_schedule
@given(schedules())
def test_copies_overlap_kernels_as_they_really_did(schedule):
    context = Context(timeline_of(schedule))
    for result in copies.analyse(context):
        device = result.device
        rows = [op for op in schedule.ops if truth.is_copy(device)(op)]
        inside = [op for op in rows if op.start < schedule.end and op.end > schedule.start]
        assert sum(g.count for g in result.groups) == len(inside)
        assert sum(g.bytes for g in result.groups) == sum(op.bytes for op in inside)

        def leaves(op, device=device):
            return truth.is_copy(device)(op) and op.copy not in (CopyKind.DTOD, CopyKind.HTOH)

        busy = truth.total(truth.covered(schedule, leaves))
        assert result.transfer_ns == busy
        assert result.exposed_ns == busy - truth.overlapped_ns(schedule, leaves, truth.is_kernel(device))
        for group in result.groups:
            assert group.hidden_ns <= group.time_ns
        pageable = sum(Memory.PAGEABLE in (op.src, op.dst) and op.copy is not CopyKind.HTOH for op in inside)
        named = sum(g.count for g in result.groups if g.memory == "pageable" and g.direction != "host to host")
        assert named == pageable


@any_schedule
@given(schedules())
def test_operators_account_for_their_own_time_and_for_what_they_launched(schedule):
    context = Context(timeline_of(schedule))
    result = operators.analyse(context)
    if not schedule.cpu_ops:
        assert result is None
        return
    assert sum(op.calls for op in result.by_name) == len(schedule.cpu_ops)
    assert sum(op.self_cpu_ns for op in result.by_name) == sum(s.end - s.start for s in schedule.cpu_ops)
    inside = [op for op in schedule.ops if op.name == "inside" and op.call is not None]
    expected = sum(max(0, min(op.end, schedule.end) - max(op.start, schedule.start)) for op in inside)
    assert sum(op.self_device_ns for op in result.by_name) == expected
    assert sum(op.calls for op in result.by_shapes) == sum(s.shapes is not None for s in schedule.cpu_ops)
    for op in (*result.by_name, *result.by_shapes):
        assert op.self_cpu_ns <= op.total_cpu_ns
        assert op.self_device_ns <= op.total_device_ns


@pytest.mark.parametrize("family", [launch, sync, copies, allocator, host, operators, gil])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedule=schedules())
def test_no_finding_promises_more_than_the_window(family, schedule):
    context = Context(timeline_of(schedule))
    for finding in family.findings(family.analyse(context), context):
        assert finding.recoverable_pct is None or 0.0 <= finding.recoverable_pct <= 100.0
        assert "\x1b" not in finding.headline
        for fact in finding.facts:
            if fact.unit == "%" and fact.value is not None:
                assert -1e-9 <= fact.value <= 100.0 + 1e-9
