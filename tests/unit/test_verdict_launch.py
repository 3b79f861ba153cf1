"""Launch-bound, GPU-bound, or neither can be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict import launch
from gputop_llm.verdict.facts import span
from tests.support.synth import Simulation
from tests.support.timelines import (
    AMD,
    KINETO_EAGER,
    KINETO_VLLM,
    KINETO_VLLM_CPU,
    NO_KERNELS,
    NSYS_EAGER,
    NSYS_VLLM,
    OFFLOAD,
    QWEN,
    SMOKE,
    TRAINING,
    case,
    fact,
    made,
    only,
    recorded,
)


def judged(context):
    results = launch.analyse(context)
    return results, {f.id: f for f in launch.findings(results, context)}


def eager(process="python3", kernel_ns=2_000, pause_ns=10_000, launches=60):
    simulation = Simulation()
    host = simulation.host(simulation.process(name=process))
    for _ in range(launches):
        host.run(pause_ns)
        host.launch(7, kernel_ns, "gemm")
    return simulation.schedule()


@pytest.mark.parametrize(
    ("capture", "kernels", "per_s", "recoverable", "delay_us"),
    [(KINETO_EAGER, 16_151, 32_275, 86.55, 2.126), (NSYS_EAGER, 85_945, 42_186, 82.47, 2.035)],
)
def test_eager_decode_on_an_h200_is_launch_bound(capture, kernels, per_s, recoverable, delay_us):
    results, found = judged(recorded(capture))
    result = only(results)
    assert (result.kernels, result.mode, result.graph_time_pct) == (kernels, "eager", 0.0)
    assert result.calls_per_s == pytest.approx(per_s, rel=1e-3)
    assert result.short_pct == pytest.approx(80.0, abs=0.1)
    finding = only(found.values())
    assert (finding.id, finding.weight) == ("launch-bound", Weight.SEVERE)
    assert finding.recoverable_pct == pytest.approx(recoverable, abs=0.01)
    assert fact(finding, "queue delay, median").value == pytest.approx(delay_us, rel=1e-3)
    assert "eager" in finding.cause
    assert "--enforce-eager" in finding.advice[0].flags["vllm"]
    assert finding.confidence.startswith("high")


def test_vllm_with_graphs_waits_for_the_launches_around_its_replays():
    context = recorded(NSYS_VLLM)
    results, found = judged(context)
    result = only(results)
    assert (result.mode, result.replays, result.kernels) == ("graphs", 396, 8_220)
    # 448.9 ms in replays (their part before the window is not counted), 108.8 ms in kernels.
    assert result.graph_time_pct == pytest.approx(80.5, abs=0.1)
    finding = found["launch-bound"]
    assert finding.recoverable_pct == pytest.approx(34.8, abs=0.1)
    assert "graph launches" in finding.cause
    assert "--async-scheduling" in finding.advice[0].flags["vllm"]
    assert not any("--enforce-eager" in flag for advice in finding.advice for flag in advice.flags.values())
    # Long gaps, of a host that did something else, are not the launches' fault.
    assert result.pct(result.run_ns) + result.pct(result.break_ns) < 100.0 - context.main.busy_pct


@pytest.mark.parametrize("capture", [KINETO_VLLM, KINETO_VLLM_CPU])
def test_records_of_every_node_say_how_far_they_may_be_off(capture):
    context = recorded(capture)
    assert not context.timeline.origin.node_level
    assert context.distortion.node_pct > 85.0
    busy = context.busy_facts(context.main)[0]
    # The same load, recorded replay by replay, was 52.2 % busy.
    assert busy.value < 30.0
    assert busy.value + busy.plus_minus >= 50.4
    assert busy.value + busy.plus_minus <= 55.0
    _, found = judged(context)
    assert found["launch-bound"].confidence.startswith("low")
    assert fact(found["launch-bound"], "idle in runs of launches").plus_minus is not None


def test_work_that_waits_in_the_queue_is_no_launch_bound():
    results, found = judged(recorded(OFFLOAD))
    assert [r.device for r in results] == [0, 1]
    finding = only(found.values())
    assert (finding.id, finding.weight, finding.recoverable_pct) == ("not-launch-bound", Weight.NOTE, 0.0)
    assert fact(finding, "queue delay, median").value == pytest.approx(421_288, rel=1e-3)
    # 1,810 of both devices' kernels were launched before the record begins.
    assert finding.confidence.startswith("medium")


def test_a_small_model_that_keeps_the_gpu_busy_is_not_launch_bound():
    _, found = judged(recorded(QWEN))
    assert list(found) == ["not-launch-bound"]


def test_kernels_that_share_one_launch_are_counted_once_and_all():
    (result,), found = judged(recorded(AMD))
    assert (result.device, result.rows_by_graph, result.by_graph_launches) == (2, 421, 1)
    assert "421 of 434 device rows come from 1 graph launch" in found["not-launch-bound"].headline


def test_correlation_0_joins_nothing_and_claims_no_queue_delay():
    context = case(28, "trace.json")
    (result,), found = judged(context)
    assert context.main.device == result.device == 9
    assert context.main.busy_pct == pytest.approx(98.1)
    assert (result.rows_by_graph, result.by_graph_launches, result.kernels) == (18, 1, 19)
    # One launch with a known row: the collective's is not among them.
    assert result.delays == 1
    assert list(found) == ["not-launch-bound"]
    assert "18 of 19 device rows come from 1 graph launch" in found["not-launch-bound"].headline


def test_without_launches_nothing_is_claimed_of_them():
    context = case(22, "capture.sqlite")
    results, found = judged(context)
    assert [c.busy_pct for c in context.coverage] == pytest.approx([86.1] * 4)
    assert [r.device for r in results] == [0, 1, 2, 3]
    for result in results:
        assert (result.mode, result.delay_ns, result.calls_per_s) == (None, None, None)
    assert not found


def test_kernels_below_a_microsecond_keep_their_digits():
    context = case(26, "trace.json")
    result = only(launch.analyse(context))
    assert (result.short_pct, result.kernel_mean_ns) == (100.0, 200.0)
    assert span(result.kernel_mean_ns) == "0.20 µs"
    assert context.main.busy_pct == pytest.approx(10.18, abs=0.01)


def test_just_in_time_launches_of_old_and_new_exports():
    for name in ("old.sqlite", "future.sqlite"):
        result = only(launch.analyse(case(23, name)))
        assert result.delays == 10
        assert abs(result.delay_ns[1]) < 20_000


def test_replays_recorded_whole_count_as_graph_work():
    (result,), found = judged(recorded(SMOKE))
    assert (result.replays, result.rows_by_graph, result.kernels) == (2, 2, 3)
    assert not found


def test_a_capture_without_device_work_has_nothing_to_say():
    results, found = judged(recorded(NO_KERNELS))
    assert (results, found) == ((), {})


def test_idle_time_with_the_work_already_submitted_is_not_the_hosts():
    context = recorded(TRAINING)
    (result,), found = judged(context)
    assert result.run_ns + result.break_ns < 0.01 * result.window_ns
    finding = found["idle-though-submitted"]
    assert finding.recoverable_pct is None
    assert fact(finding, "idle with work submitted").value == pytest.approx(55.4, abs=0.1)
    assert fact(finding, "of it at graph replays").value == pytest.approx(89.7, abs=0.1)
    # The host sits in a copy and waits for a device that seems to do nothing: it works, unrecorded.
    assert fact(finding, "of it with the host waiting for the device").value == pytest.approx(69.4, abs=0.1)
    assert found["not-launch-bound"].weight is Weight.NOTE


def test_the_flag_that_makes_an_engine_eager_is_named():
    _, found = judged(made(eager("VLLM::EngineCore")))
    assert "--enforce-eager" in found["launch-bound"].cause
    _, found = judged(made(eager("sglang::scheduler_TP0")))
    assert "--disable-cuda-graph" in found["launch-bound"].cause


def test_long_kernels_launched_one_by_one_are_fine():
    _, found = judged(made(eager(kernel_ns=100_000)))
    assert list(found) == ["not-launch-bound"]


def test_lost_replays_forbid_a_verdict_on_idle_time():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(40):
        host.run(50_000)
        host.launch(7, 2_000, "sampler")
        host.replay(7, 1, [("gemm", 900_000)])
        host.sync(7)
    whole = simulation.schedule(idle_after_ns=1_000_000)
    lost = replace(whole, ops=tuple(op for op in whole.ops if op.kind is not Kind.GRAPH))
    assert "replays-not-recorded" not in judged(made(whole))[1]
    _, found = judged(made(lost))
    assert list(found) == ["replays-not-recorded"]
    assert "at least 37 of 40" in found["replays-not-recorded"].headline


def _launched(kept=lambda op, position: True, **moved):
    simulation = Simulation(start=10_000_000)
    host = simulation.host()
    for _ in range(60):
        host.run(400_000)
        host.launch(7, 600_000, "gemm")
        host.sync(7)
    whole = simulation.schedule(idle_after_ns=1_000_000)
    ops = (replace(op, start=op.start + moved.get("by", 0), end=op.end + moved.get("by", 0)) for op in whole.ops)
    return replace(whole, ops=tuple(op for position, op in enumerate(ops) if kept(op, position)))


def test_lost_kernels_forbid_a_verdict_on_idle_time():
    _, found = judged(made(_launched(lambda op, position: position >= 20)))
    assert list(found) == ["kernels-not-recorded"]
    assert "at least 20 of 60" in found["kernels-not-recorded"].headline
    assert "kernels-not-recorded" not in judged(made(_launched()))[1]


def test_kernels_that_were_still_queued_when_the_window_closed_are_not_lost():
    assert "kernels-not-recorded" not in judged(made(_launched(lambda op, position: position < 40)))[1]


def _two_ranks(kept):
    """60 launches on each of two ranks; the second one's come 10 ms later than the first one's."""
    simulation = Simulation()
    for device in range(2):
        host = simulation.host(device=device)
        host.run(10_000_000 * device)
        for _ in range(60):
            host.run(400_000)
            host.launch(7, 600_000, "gemm")
            host.sync(7)
    whole = simulation.schedule(idle_after_ns=1_000_000)
    nth = {op: i for device in range(2) for i, op in enumerate(op for op in whole.ops if op.device == device)}
    return judged(made(replace(whole, ops=tuple(op for op in whole.ops if kept(op.device, nth[op])))))[1]


@pytest.mark.parametrize("recorded_of_the_first", [0, 40])
def test_what_one_rank_had_queued_when_its_record_ended_is_not_lost_because_another_rank_went_on(recorded_of_the_first):
    found = _two_ranks(lambda rank, nth: rank == 1 or nth < recorded_of_the_first)
    assert "kernels-not-recorded" not in found


def test_kernels_that_one_of_two_ranks_lost_forbid_a_verdict():
    found = _two_ranks(lambda rank, nth: rank == 1 or nth >= 20)
    assert "at least 20 of 120" in found["kernels-not-recorded"].headline


def test_kernels_that_stand_under_the_number_of_the_launch_before_are_not_lost():
    whole = _launched()
    ops = tuple(replace(op, correlation=whole.ops[i - i % 2].correlation) for i, op in enumerate(whole.ops))
    assert "kernels-not-recorded" not in judged(made(replace(whole, ops=ops)))[1]


def test_launches_that_were_captured_into_a_graph_are_not_lost():
    lost = _launched(lambda op, position: position >= 20)
    capture = replace(lost.calls[0], name="cudaStreamBeginCapture", use="other", correlation=9999)
    assert "kernels-not-recorded" not in judged(made(replace(lost, calls=(*lost.calls, capture))))[1]


def test_kernels_before_their_own_launch_forbid_a_verdict_on_the_host():
    _, found = judged(made(_launched(by=-5_000_000)))
    assert list(found) == ["clocks-disagree"]
    assert "begin before the call that launched them (by 5.0 ms, median)" in found["clocks-disagree"].headline
    assert "clocks-disagree" not in judged(made(_launched(by=-50_000)))[1]


def test_one_finding_speaks_for_all_devices():
    simulation = Simulation()
    for device in range(4):
        host = simulation.host(device=device)
        for _ in range(60):
            host.run(10_000 * (device + 1))
            host.launch(7, 2_000, "gemm")
    _, found = judged(made(simulation.schedule()))
    finding = only(found.values())
    assert finding.id == "launch-bound"
    assert finding.subject in ("GPU 0", "GPU 1", "GPU 2", "GPU 3")
    assert "(GPU 0)" in fact(finding, "idle in runs of launches, mean of 4 devices").text
