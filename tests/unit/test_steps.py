"""Engine steps: found by annotation, replay or what repeats; how long they take and why some are slow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.builder import TimelineBuilder
from gputop_llm.timeline.model import Device, Kind, Origin, Process, Thread
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict import step_marks, steps
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.step_marks import Phase, phase_of
from tests.support import recorded
from tests.support.captures import field_case


def _steps(name: str, device: int = 0) -> steps.Steps:
    return next(s for s in steps.analyse(recorded.context(name)) if s.device == device)


def _phase(found: steps.Steps, phase: Phase) -> steps.PhaseSteps:
    return next(p for p in found.by_phase if p.phase is phase)


def _replayed(names: list[tuple[str, int, int]], kind: Kind = Kind.KERNEL, graphs: list[int] | None = None) -> Context:
    """A device that runs (name, start, end) on one stream."""
    builder = TimelineBuilder()
    builder.processes.append(Process(1))
    builder.devices.append(Device(0))
    for position, (name, start, end) in enumerate(names):
        graph = graphs[position] if graphs else -1
        builder.ops.append(start, end, kind, 0, 7, 0, builder.intern(name), 0, -1, graph, -1, 0, 0, 0, 0, 1, 32)
    return Context(builder.build(Origin("native", ()), 0, max(end for *_, end in names) + 1))


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", Phase.PREFILL),
        ("execute_context_0(0)_generation_32(32)", Phase.DECODE),
        ("execute_context_2(512)_generation_30(30)", Phase.MIXED),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", Phase.DECODE),
        ("step[DECODE bs=32]", Phase.DECODE),
        ("step[EXTEND bs=15 toks=15360]", Phase.PREFILL),
        ("step[TARGET_VERIFY bs=32]", Phase.DECODE),
        ("decode", Phase.DECODE),
        ("Prefill step 12", Phase.PREFILL),
        ("ProfilerStep#6", Phase.UNKNOWN),
        ("decode_attention_layer", None),
        ("[Executor] _forward_step 7: 0 ctx reqs, 0 ctx tokens, 8 gen reqs", Phase.DECODE),
        ("TensorRT-LLM:[Executor] _forward_step 7: 2 ctx reqs, 8 gen reqs", Phase.MIXED),
        ("execute_context_" + "9" * 5000 + "(1)_generation_0(0)", None),
        ("aten::linear, op_id = 7", None),
    ],
)
def test_annotations_of_engines_tell_the_phase(name, phase):
    assert phase_of(name) is phase


def test_nvtx_ranges_are_projected_on_the_device_and_prefill_is_kept_apart_from_decode():
    found = _steps(recorded.EAGER)
    decode, prefill = _phase(found, Phase.DECODE), _phase(found, Phase.PREFILL)
    assert (found.source, decode.steps, prefill.steps) == ("annotation", 386, 6)
    assert decode.p50_ns == pytest.approx(4.597e6, rel=0.01)
    assert prefill.p50_ns == pytest.approx(7.282e6, rel=0.01)
    assert (decode.kernels, decode.launches, decode.copied_bytes) == (219, 219, 0)
    # A prefill works ninefold as long as a decode step: one mean over both would tell nothing.
    assert prefill.busy_ns / decode.busy_ns == pytest.approx(8.8, rel=0.02)


def test_steps_of_the_vllm_record_are_told_by_its_sampling_and_labelled_inferred():
    context = recorded.context(recorded.VLLM_GRAPHS)
    found = _steps(recorded.VLLM_GRAPHS)
    assert (found.source, found.anchor) == ("inferred", "_gumbel_sample_kernel")
    decode, prefill = _phase(found, Phase.DECODE), _phase(found, Phase.PREFILL)
    assert (decode.steps, prefill.steps) == (372, 6)
    assert decode.p50_ns == pytest.approx(2.197e6, rel=0.01)
    note = steps.findings((found,), context)[0]
    assert "(inferred)" in note.headline
    assert note.recoverable_pct is None


def test_both_recorders_of_the_eager_loop_see_the_same_step():
    nsys, kineto = _steps(recorded.EAGER), _steps(recorded.EAGER_KINETO)
    assert kineto.inferred
    assert _phase(kineto, Phase.PREFILL).steps == 1
    assert _phase(kineto, Phase.DECODE).kernels == _phase(nsys, Phase.DECODE).kernels
    assert _phase(kineto, Phase.DECODE).busy_ns == pytest.approx(_phase(nsys, Phase.DECODE).busy_ns, rel=0.01)


def test_a_profiler_step_is_as_long_as_on_the_device_not_as_on_the_host():
    # The host's row is 47.2 ms long: it begins with a sync that drains the step before.
    assert _steps(recorded.QWEN).main.p50_ns == pytest.approx(34.9e6, rel=0.01)


def test_all_kernels_of_one_graph_launch_belong_to_the_annotated_step():
    found = _steps(recorded.AMD_DECODE, 2)
    assert found.main.phase is Phase.DECODE
    assert found.main.kernels == 425


def test_slow_decode_steps_are_told_apart_by_what_they_have_more_of():
    context = recorded.context(recorded.EAGER)
    found = _steps(recorded.EAGER)
    assert found.slow is not None
    assert found.slow.steps == 39
    assert found.slow.idle_ns == pytest.approx(found.slow.slow_ns - found.slow.usual_ns, rel=0.01)
    finding = steps.findings((found,), context)[-1]
    assert (finding.id, finding.weight) == ("slow-steps", Weight.FINDING)
    assert "idle time" in finding.cause
    assert finding.recoverable_pct == pytest.approx(100 * found.slow.over_ns / context.timeline.window_ns)


def test_steps_of_unknown_phase_promise_nothing():
    context = recorded.context(recorded.VIDEO)
    assert all(f.recoverable_pct is None for f in steps.findings(steps.analyse(context), context))


def test_launches_are_unknown_where_the_record_lacks_them():
    assert _steps(recorded.VIDEO).main.launches is None


def test_one_kernel_again_and_again_makes_no_step():
    assert steps.analyse(recorded.context(recorded.FOUR_GPUS)) == ()


def test_what_one_graph_replay_runs_again_and_again_is_no_step():
    layers = read_capture([field_case(28) / "trace.json"])

    assert steps.analyse(Context(layers)) == ()


def test_whole_replays_alone_are_the_steps_and_graphs_that_take_turns_are_one_round():
    alone = _replayed([("", n * 10, n * 10 + 8) for n in range(12)], Kind.GRAPH, [5] * 12)
    turns = _replayed([("", n * 10, n * 10 + 8) for n in range(12)], Kind.GRAPH, [5, 6, 7] * 4)
    assert [(s.source, len(s.start)) for s in steps.analyse(alone)] == [("graph replays", 11)]
    assert [(s.source, len(s.start), s.main.p50_ns) for s in steps.analyse(turns)] == [("graph replays", 3, 30)]


@given(st.integers(2, 12), st.integers(4, 20), st.integers(1, 4))
def test_the_period_of_a_repeating_sequence_is_found(layers, rounds, per_layer):
    cycle = ["embed"] + [f"k{i}" for i in range(per_layer)] * layers + ["head"]
    names = [(name, n * 10, n * 10 + 7) for n, name in enumerate(cycle * rounds)]
    (found,) = steps.analyse(_replayed(names))
    assert set(found.time.tolist()) == {10 * len(cycle)}


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.floats(0.01, 1))
def test_quantiles_are_values_that_occurred(values, part):
    ordered = np.sort(np.array(values, dtype=np.int64))
    found = steps.nearest_rank(ordered, part)
    assert found in values
    assert sum(v <= found for v in values) >= part * len(values) - 1e-6


def test_ranges_inside_of_a_step_do_not_split_it():
    builder = TimelineBuilder()
    builder.processes.append(Process(1))
    builder.threads.append(Thread(1, 0))
    builder.devices.append(Device(0))
    for n in range(4):
        builder.ranges.append(n * 100, n * 100 + 90, builder.intern("decode"), 0)
        builder.ranges.append(n * 100 + 10, n * 100 + 50, builder.intern("prefill"), 0)
        builder.calls.append(n * 100 + 20, n * 100 + 25, builder.intern("cudaLaunchKernel"), 0, n + 1)
        builder.ops.append(
            n * 100 + 30,
            n * 100 + 40,
            Kind.KERNEL,
            0,
            7,
            0,
            builder.intern("gemm"),
            n + 1,
            -1,
            -1,
            -1,
            0,
            0,
            0,
            0,
            1,
            32,
        )
    marks = step_marks.marks(Context(builder.build(Origin("native", ()), 0, 400)), 0)
    assert marks is not None
    assert marks.phase.tolist() == [Phase.DECODE] * 4


def test_the_detailed_annotations_of_vllm_name_the_engine():
    assert recorded.context(recorded.AMD_DECODE).engine == "vllm"
