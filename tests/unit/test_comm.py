"""Collectives: what compute hides, what it doesn't, who comes last; and streams that run side by side."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import Device, Kind, Origin, Process, Timeline
from gputop_llm.verdict import comm, streams
from gputop_llm.verdict.context import Context
from tests.support import recorded

_ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def _timeline(rows: list[tuple[int, int, str, int, int]], end: int) -> Timeline:
    """A timeline of (start, end, name, device, stream)."""
    builder = TimelineBuilder()
    builder.processes.append(Process(1))
    builder.devices += [Device(number) for number in sorted({row[3] for row in rows})]
    for start, stop, name, device, stream in rows:
        columns = (start, stop, Kind.KERNEL, device, stream, 0, builder.intern(name))
        builder.ops.append(*columns, 0, -1, -1, -1, 0, 0, 0, 0, 1, 32)
    return builder.build(Origin("native", ()), 0, end)


def _late(arrivals: list[list[int]], takes: int = 50, every: int = 10_000) -> Context:
    """Ranks that arrive at each collective at these times; it ends for all when the last one has been in it."""
    rows = []
    for number, times in enumerate(arrivals):
        end = number * every + max(times) + takes
        rows += [(number * every + at, end, _ALL_REDUCE, rank, 7) for rank, at in enumerate(times)]
    return Context(_timeline(rows, len(arrivals) * every))


def test_communication_inside_of_compute_is_not_exposed_and_belongs_to_its_own_device():
    context = recorded.context(recorded.FOUR_GPUS)
    result = comm.analyse(context)
    (only,) = result.devices
    assert (only.device, only.comm_ns, only.exposed_ns) == (0, 40_000_000, 0)
    (note,) = comm.findings(result, context)
    assert note.id == "comm-hidden"
    assert note.recoverable_pct == 0
    assert "40 ms" in note.headline


def test_a_stream_is_named_by_device_and_number():
    context = recorded.context(recorded.FOUR_GPUS)
    result = streams.analyse(context)
    assert [r.busy_ns for r in result] == [86_100_000] * 4
    assert [[s.number for s in r.streams] for r in result] == [[7, 20], [17], [17], [17]]
    assert [r.overlap_ns for r in result] == [40_000_000, 0, 0, 0]
    (note,) = streams.findings(result, context)
    assert "GPU 0 stream 20" in note.cause


def test_training_spends_its_communication_exposed():
    context = recorded.context(recorded.TRAINING)
    result = comm.analyse(context)
    assert result.devices[0].work_ns == pytest.approx(190.3e6, rel=0.01)
    assert result.devices[0].kernels == 80
    (found,) = comm.findings(result, context)
    assert found.id == "comm-exposed"
    assert found.recoverable_pct == pytest.approx(100 * result.devices[0].exposed_ns / context.timeline.window_ns)
    assert "all ranks" in str(found.next_capture)


@pytest.mark.parametrize("name", [recorded.VLLM_GRAPHS, recorded.EAGER, recorded.VIDEO])
def test_a_capture_without_collectives_has_nothing_to_say_of_them(name):
    context = recorded.context(name)
    assert comm.findings(comm.analyse(context), context) == []


def test_one_stream_gives_no_word_about_overlap():
    context = recorded.context(recorded.AMD_DECODE)
    assert streams.findings(streams.analyse(context), context) == []


def test_the_rank_that_comes_last_is_the_straggler():
    context = _late([[0, 10, 2_000, 5] for _ in range(20)])
    result = comm.analyse(context)
    assert result.skew is not None
    assert result.skew.straggler == 2
    assert result.skew.skew_ns == (2_000, 2_000, 2_000)
    assert result.skew.waited_ns == (40_000, 39_800, 0, 39_900)
    late = comm.findings(result, context)[-1]
    assert (late.id, late.subject) == ("rank-straggler", "GPU 2")
    assert late.recoverable_pct == pytest.approx(100 * (40_000 + 39_800 + 39_900) / 3 / 200_000)


def test_where_exposed_communication_is_mostly_waiting_for_one_rank_that_rank_is_the_finding():
    waiting, straggler = comm.findings(comm.analyse(late := _late([[0, 2_000]] * 20)), late)
    assert (straggler.id, straggler.weight) == ("rank-straggler", Weight.FINDING)
    assert (waiting.id, waiting.weight) == ("comm-exposed", Weight.NOTE)
    assert waiting.headline.endswith(", most of it waiting for GPU 1")
    transfer, _ = comm.findings(comm.analyse(late := _late([[0, 600]] * 20, takes=5_000)), late)
    assert (transfer.id, transfer.weight) == ("comm-exposed", Weight.SEVERE)


def test_ranks_that_take_turns_in_being_late_have_no_straggler():
    context = _late([[0 if rank != number % 4 else 2_000 for rank in range(4)] for number in range(20)])
    result = comm.analyse(context)
    assert result.skew is not None
    assert result.skew.straggler is None
    assert "rank-straggler" not in {f.id for f in comm.findings(result, context)}


def test_a_collective_cut_off_by_the_window_does_not_shift_the_others():
    rows = [(n * 1000 + at, n * 1000 + 500, _ALL_REDUCE, rank, 7) for n in range(20) for rank, at in ((0, 0), (1, 300))]
    context = Context(_timeline(rows[1:], 20_000))
    result = comm.analyse(context)
    assert result.skew is not None
    assert (result.skew.collectives, result.skew.straggler) == (19, 1)
    assert result.skew.skew_ns == (300, 300, 300)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 60), st.booleans()), min_size=1, max_size=25))
def test_exposed_is_what_no_compute_covers_nanosecond_by_nanosecond(rows):
    context = Context(_timeline([(s, s + d, _ALL_REDUCE if c else "gemm", 0, 20 if c else 7) for s, d, c in rows], 400))
    moments = [{c for s, d, c in rows if s <= at < s + d} for at in range(400)]
    result = comm.analyse(context)
    total = sum(c.comm_ns for c in result.devices), sum(c.exposed_ns for c in result.devices)
    assert total == (sum(True in m for m in moments), sum(m == {True} for m in moments))
    assert streams.analyse(context)[0].overlap_ns == sum(len(m) == 2 for m in moments)
