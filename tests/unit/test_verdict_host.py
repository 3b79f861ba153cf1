"""The host's threads, long gaps of a late host, signs of contention."""

from __future__ import annotations

import random

import pytest

from gputop_llm.verdict import gil, host
from tests.support.synth import Simulation, Span
from tests.support.timelines import (
    KINETO_EAGER,
    KINETO_VLLM_CPU,
    NSYS_VLLM,
    OFFLOAD,
    SMOKE,
    TRAINING,
    fact,
    made,
    only,
    recorded,
)


def judged(context):
    result = host.analyse(context)
    return result, host.findings(result, context)


def bursts(wait=None, name: str = "python3"):
    """Twenty bursts of ten launches with 5 ms between, in which the thread is in `wait` (an OS call) or in Python."""
    simulation = Simulation()
    worker = simulation.host(simulation.process(name=name))
    for _ in range(20):
        for _ in range(10):
            with worker.op("aten::mm"):
                worker.launch(7, 20_000, "gemm")
        if wait:
            worker.sleep(5_000_000, wait)
        else:
            with worker.range("schedule"):
                worker.run(5_000_000)
    return simulation.schedule()


def test_vllm_idles_between_steps_while_its_host_is_elsewhere():
    result, found = judged(recorded(NSYS_VLLM))
    finding = only(found)
    assert finding.id == "host-bound"
    assert finding.recoverable_pct == pytest.approx(11.6, abs=0.1)
    assert result.longest_ns == pytest.approx(30.42e6, rel=1e-3)
    assert "--async-scheduling" in finding.advice[0].flags["vllm"]
    # No operators in the record: it can't say what the host did.
    assert "outside of any recorded call" in finding.cause
    assert finding.confidence.startswith("medium")


def test_with_operators_recorded_it_says_what_the_host_did():
    result, found = judged(recorded(KINETO_VLLM_CPU))
    finding = only(found)
    assert "in Python or other host code for 82 %" in finding.cause
    assert finding.confidence.startswith("low"), "node-level record"
    submitter = result.threads[0]
    assert submitter.label == "thread 624 (VLLM::EngineCor)"
    assert (submitter.devices, submitter.launches) == ((0,), 2_350)


def test_the_range_around_long_gaps_is_named():
    _, found = judged(made(bursts()))
    finding = only(found)
    assert "within schedule" in finding.cause
    assert fact(finding, "idle within range schedule").value == pytest.approx(finding.recoverable_pct, rel=0.01)


def test_a_host_that_waits_for_input_may_have_no_request():
    _, found = judged(made(bursts(wait="epoll_wait")))
    assert "perhaps no request was in flight" in only(found).cause


@pytest.mark.parametrize("capture", [KINETO_EAGER, OFFLOAD, TRAINING, SMOKE])
def test_no_host_bound_where_gaps_are_short_or_have_other_reasons(capture):
    assert not judged(recorded(capture))[1]


def test_threads_are_listed_with_what_they_do():
    result, _ = judged(recorded(TRAINING))
    by_label = {t.label: t for t in result.threads}
    assert [t.launches for t in result.threads[:2]] == sorted((t.launches for t in result.threads[:2]), reverse=True)
    waiting = by_label["thread 4515 (python3.8)"]
    assert waiting.sync_ns == pytest.approx(919e6, rel=0.01)
    assert all(t.sync_ns <= t.api_ns and t.work_ns <= t.window_ns for t in result.threads)


def contended(blocked_by_other: bool):
    """A submitting thread whose pauses are 200 µs when they begin while the other thread works, else 10 µs."""
    rng = random.Random(3)
    simulation = Simulation()
    process = simulation.process()
    submitter = simulation.host(process, name="engine")
    simulation.host(process, name="tokenizer")
    others = []
    at = 0
    for _ in range(300):
        work, rest = rng.randint(150_000, 250_000), rng.randint(150_000, 250_000)
        others.append(Span("tokenize", 1, at, at + work))
        at += work + rest
    for other in others:
        while submitter.now < other.start:
            with submitter.op("aten::mm"):
                submitter.run(8_000)
                submitter.launch(7, 2_000, "gemm")
            # A pause that begins as the other thread gets the lock lasts until that lets go.
            submitter.run(4_000)
        if blocked_by_other:
            submitter.now = max(submitter.now, other.end)
    schedule = simulation.schedule()
    if blocked_by_other:
        # The lock changes hands while the submitter is between operators.
        ends = sorted(op.end for op in schedule.cpu_ops)
        others = [Span(o.name, 1, max(e for e in ends if e <= max(o.start, ends[0])), o.end) for o in others]
    return type(schedule)(**{**schedule.__dict__, "cpu_ops": schedule.cpu_ops + tuple(others)})


def test_threads_that_stop_each_other_show_signs_of_the_interpreter_lock():
    context = made(contended(blocked_by_other=True))
    result = only(gil.analyse(context))
    assert result.takes_turns
    assert result.pause_with_ns > 5 * result.pause_alone_ns
    finding = only(gil.findings((result,), context))
    assert finding.confidence.startswith("low")
    assert "py-spy" in finding.next_capture
    assert "engine" in finding.headline
    assert "tokenizer" in finding.headline


def test_threads_that_work_side_by_side_show_none():
    context = made(contended(blocked_by_other=False))
    result = only(gil.analyse(context))
    assert not result.takes_turns
    assert not gil.findings((result,), context)


def test_waits_in_steps_of_the_switch_interval_are_a_sign():
    simulation = Simulation()
    submitter = simulation.host()
    for _ in range(60):
        with submitter.op("aten::mm"):
            submitter.run(800_000)
            submitter.launch(7, 2_000, "gemm")
        submitter.sleep(5_000_000, "pthread_cond_timedwait")
    context = made(simulation.schedule())
    finding = only(gil.findings(gil.analyse(context), context))
    assert "on a condition in steps of up to 6 ms" in finding.cause


@pytest.mark.parametrize("capture", [TRAINING, OFFLOAD, KINETO_VLLM_CPU, NSYS_VLLM])
def test_forward_and_backward_threads_and_lone_threads_show_no_signs(capture):
    context = recorded(capture)
    assert not gil.findings(gil.analyse(context), context)
