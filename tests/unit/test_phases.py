"""Prefill and decode apart on the device, and decode that prefill holds up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.finding import Weight
from gputop_llm.model.pace import EnginePace, PaceSample
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import Device, Kind, Origin, Process, Thread
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict import interference, phases
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.kernel_names import Family
from gputop_llm.verdict.step_marks import Phase
from tests.support import recorded
from tests.support.captures import CAPTURES

_DECODE = "execute_context_0(0)_generation_32(32)"
_PREFILL = "execute_context_1(512)_generation_0(0)"
_MIXED = "execute_context_1(512)_generation_32(32)"
_NORM, _SAMPLES = "void vllm::rms_norm_kernel<c10::BFloat16>(...)", "_gumbel_sample_kernel"


def _engine(plan: list[tuple[str, int]], lead: int = 0) -> Context:
    """A host that launches one kernel for each annotated step at once; the device runs them one after the other.

    `lead` is how far the host is ahead: ranges then end long before their kernels begin.
    """
    builder = TimelineBuilder()
    builder.processes.append(Process(1))
    builder.threads.append(Thread(1, 0))
    builder.devices.append(Device(0))
    at = lead
    for n, (name, time) in enumerate(plan):
        host = n * 10 if lead else at
        builder.ranges.append(host, host + 5, builder.intern(name), 0)
        builder.calls.append(host + 1, host + 2, builder.intern("cudaLaunchKernel"), 0, n + 1)
        row = (at + 3, at + time, Kind.KERNEL, 0, 7, 0, builder.intern("gemm"))
        builder.ops.append(*row, n + 1, -1, -1, -1, 0, 0, 0, 0, 1, 32)
        at += time
    return Context(builder.build(Origin("native", ()), 0, at))


def _phases(name: str, device: int = 0) -> phases.Phases:
    return next(p for p in phases.analyse(recorded.context(name)) if p.device == device)


def test_prefill_and_decode_of_the_eager_loop_have_their_own_time_and_mix():
    found = _phases(recorded.EAGER)
    decode, prefill = found.phases
    assert (decode.phase, decode.steps, prefill.phase, prefill.steps) == (Phase.DECODE, 386, Phase.PREFILL, 6)
    assert not found.inferred
    assert decode.busy_ns == pytest.approx(299.5e6, rel=0.01)
    assert prefill.busy_ns == pytest.approx(40.9e6, rel=0.01)
    # The large tiles belong to prefill alone.
    assert prefill.families[0][0] is Family.GEMM
    assert found.sampling_kernels == 392


def test_phases_of_vllm_without_annotations_are_labelled_inferred():
    context = recorded.context(recorded.VLLM_GRAPHS)
    found = _phases(recorded.VLLM_GRAPHS)
    assert found.inferred
    assert {p.label: p.steps for p in found.phases} == {"decode": 372, "prefill or mixed": 6}
    (note,) = phases.findings((found,), context)
    assert note.headline.startswith("Phases (inferred)")
    assert note.confidence.startswith("medium")


def test_the_graph_launch_of_an_annotated_decode_is_all_decode():
    (decode,) = _phases(recorded.AMD_DECODE, 2).phases
    assert (decode.phase, decode.kernels, decode.families[0][0]) == (Phase.DECODE, 425, Family.MOE_GEMM)


def test_no_phase_is_claimed_where_nothing_tells_steps_apart():
    for name in (recorded.VLLM_NODES, recorded.QWEN, recorded.TRAINING, recorded.VIDEO):
        assert phases.analyse(recorded.context(name)) == ()
        assert interference.analyse(recorded.context(name)) == ()


def test_vllm_prefill_holds_up_decode_and_its_host_part_is_named():
    context = recorded.context(recorded.VLLM_GRAPHS)
    (found,) = interference.findings(interference.analyse(context), context)
    assert (found.id, found.weight) == ("prefill-delays-decode", Weight.FINDING)
    assert found.headline.startswith("Prefill holds up decode (inferred): 6 of 378")
    assert found.recoverable_pct == pytest.approx(18.98, rel=0.01)
    assert "host's part" in found.cause


def test_a_loop_that_prefills_between_batches_is_not_accused():
    context = recorded.context(recorded.EAGER)
    (result,) = interference.analyse(context)
    assert not result.proven
    assert interference.findings((result,), context) == []


def test_prefill_between_decode_steps_delays_by_its_whole_time_and_mixed_steps_by_what_they_take_more():
    plan = [(_DECODE, 100)] * 6 + [(_PREFILL, 700)] + [(_DECODE, 100)] * 3 + [(_MIXED, 450)] + [(_DECODE, 100)] * 2
    (result,) = interference.analyse(_engine(plan))
    assert result.delays.tolist() == [700, 350]
    assert (result.decodes, result.prefills, result.usual_ns, result.proven) == (12, 2, 100, True)
    assert result.usuals == 10, "neither the mixed step nor the last, whose end isn't known"
    (found,) = interference.findings((result,), _engine(plan))
    assert found.weight is Weight.SEVERE
    assert found.recoverable_pct == pytest.approx(100 * 1050 / 2250)
    assert found.advice[0].flags["vllm"].startswith("--max-num-batched-tokens")


def test_prefill_before_the_first_decode_delays_nothing():
    (result,) = interference.analyse(_engine([(_PREFILL, 700)] + [(_DECODE, 100)] * 8))
    assert result.delays.tolist() == []
    assert interference.findings((result,), _engine([(_DECODE, 100)] * 8)) == []


@given(
    st.lists(st.tuples(st.sampled_from([_DECODE, _PREFILL]), st.integers(5, 90)), min_size=1, max_size=30),
    st.booleans(),
)
def test_kernels_belong_to_the_range_that_launched_them_however_late_they_run(plan, ahead):
    context = _engine(plan, lead=1_000 if ahead else 0)
    (found,) = phases.analyse(context)
    truth = {
        phase: sum(time - 3 for name, time in plan if name == text)
        for phase, text in ((Phase.DECODE, _DECODE), (Phase.PREFILL, _PREFILL))
    }
    assert {p.phase: p.busy_ns for p in found.phases} == {p: ns for p, ns in truth.items() if ns}


def _unmarked(plan: list[tuple[int, int]]) -> list[Phase]:
    """The phases of steps of which nothing but kernels is known: blocks of the norm in each, and time of the rest."""
    builder = TimelineBuilder()
    builder.processes.append(Process(1))
    builder.devices.append(Device(0))
    at = 0
    for blocks, time in plan:
        for name, end, grid in ((_NORM, 5, blocks), ("gemm", time - 5, 1), (_SAMPLES, time, 1)):
            start = {_NORM: 0, "gemm": 5, _SAMPLES: time - 5}[name]
            row = (at + start, at + end, Kind.KERNEL, 0, 7, 0, builder.intern(name))
            builder.ops.append(*row, -1, -1, -1, -1, 0, 0, 0, 0, grid, 32)
        at += time
    marks = Context(builder.build(Origin("native", ()), 0, at)).marks[0]
    return [Phase(phase) for phase in marks.phase]


def test_a_long_step_whose_norms_have_many_times_the_usual_rows_is_prefill():
    plan = [(32, 100)] * 10 + [(4096, 2500)] + [(32, 100)] * 10
    # The step before the first end of one is in none.
    assert _unmarked(plan) == [Phase.DECODE] * 9 + [Phase.PREFILL] + [Phase.DECODE] * 10


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param([(32, 100)] * 10 + [(0, 2500)] + [(32, 100)] * 10, id="grids that nobody told"),
        pytest.param([(32, 100)] * 10 + [(32, 2500)] + [(32, 100)] * 10, id="as many rows as ever, but slow"),
        pytest.param([(32, 100)] * 10 + [(4096, 110)] + [(32, 100)] * 10, id="more rows in the usual time"),
        pytest.param([(32, 100)] * 10 + [(64, 2500)] + [(32, 100)] * 10, id="twice the batch"),
        pytest.param([(8, 100)] * 15 + [(64, 200)] * 5, id="a batch that grew"),
    ],
)
def test_a_step_is_not_called_prefill_for_less(plan):
    assert set(_unmarked(plan)) == {Phase.UNKNOWN}


def test_what_is_inferred_from_kernels_alone_is_what_annotations_tell():
    timeline = recorded.timeline(recorded.EAGER)
    bare = Context(replace(timeline, ranges=timeline.ranges.take(slice(0, 0)))).marks[0]
    told = recorded.context(recorded.EAGER).marks[0]
    assert (told.source, bare.source) == ("annotation", "inferred")
    assert int((bare.phase == Phase.PREFILL).sum()) == int((told.phase == Phase.PREFILL).sum()) == 6


def _running(*requests: float | None) -> EnginePace:
    """An engine that said so before, amid and after a capture."""
    return EnginePace(tuple(PaceSample(at, running=one) for at, one in enumerate(requests)), 0, len(requests) - 1)


def test_prefill_of_long_prompts_is_told_from_a_record_without_annotations_where_the_engine_says_that_requests_ran():
    context = Context(read_capture([CAPTURES / "lab/prefill-blocks.cause.gtw.xz"]))
    (found,) = phases.analyse(context)
    assert found.inferred
    assert {p.label: p.steps for p in found.phases} == {"decode": 511, "prefill or mixed": 17}

    results = interference.analyse(context)
    (told,) = interference.findings(results, context, _running(32, 32, 32))
    assert (told.id, told.weight) == ("prefill-delays-decode", Weight.SEVERE)
    assert told.headline.startswith("Prefill holds up decode (inferred): 17 of 528 steps that decode")
    assert told.recoverable_pct == pytest.approx(41.0, abs=0.1)
    assert "32 requests or more ran throughout" in told.confidence


@pytest.mark.parametrize("pace", [None, _running(32, 1, 32), _running(32, None, 32), _running(1, 1, 1)])
def test_without_requests_that_ran_throughout_prefill_only_may_hold_up_decode(pace):
    context = Context(read_capture([CAPTURES / "lab/prefill-blocks.cause.gtw.xz"]))
    (note,) = interference.findings(interference.analyse(context), context, pace)
    assert (note.weight, note.recoverable_pct) == (Weight.NOTE, None)
    assert note.headline.startswith("Prefill may hold up decode")


def test_what_ran_before_or_after_a_capture_only_is_not_known_of_it():
    assert _running(3, 2, 5).fewest_running == 2
    assert EnginePace((PaceSample(0, running=9), PaceSample(3, running=4)), 1, 2).fewest_running == 4
    assert EnginePace((PaceSample(0, running=9),), 1, 2).fewest_running is None
    assert EnginePace((PaceSample(3, running=9),), 1, 2).fewest_running is None
