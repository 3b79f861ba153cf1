"""Allocator calls are a finding only where they keep coming after warm-up, and cost the device something."""

from __future__ import annotations

import pytest

from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict import allocator, host
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.idle import Began
from tests.support.captures import CAPTURES
from tests.support.synth import Simulation
from tests.support.timelines import KINETO_VLLM_CPU, SMOKE, fact, made, only, recorded


def judged(context):
    results = allocator.analyse(context)
    return results, allocator.findings(results, context)


def steps(count: int, allocates, name: str = "cudaMalloc"):
    """Steps of five short kernels; `allocates(step)` says whether one allocates and frees."""
    simulation = Simulation()
    host = simulation.host()
    for step in range(count):
        if allocates(step):
            host.alloc(50_000, name)
        for _ in range(5):
            host.launch(7, 10_000, "gemm")
        if allocates(step):
            host.alloc(30_000, "cudaFree")
    return simulation.schedule()


def test_allocations_in_each_step_are_named_and_costed():
    results, found = judged(made(steps(60, lambda step: True)))
    finding = only(found)
    assert finding.id == "allocator-in-hot-path"
    assert "cudaMalloc" in finding.headline
    # 240 of 300 launches are the hot path; two calls for five launches.
    assert only(results).per_1000_launches == pytest.approx(400, rel=0.05)
    assert fact(finding, "idle in or after allocator calls").value == finding.recoverable_pct > 30.0
    assert any("expandable_segments" in advice.text for advice in finding.advice)


def test_allocations_during_warm_up_are_none():
    results, found = judged(made(steps(60, lambda step: step < 5)))
    assert not found
    assert only(results).calls == 0
    assert only(results).outside == 10


def test_a_single_burst_later_on_is_none():
    results, found = judged(made(steps(60, lambda step: step in (30, 31))))
    assert only(results).calls == 4
    assert not only(results).recurring
    assert not found


def test_pinned_allocations_are_advised_against_as_such():
    _, found = judged(made(steps(60, lambda step: True, "cudaHostAlloc")))
    assert any("pinned buffers" in advice.text for advice in only(found).advice)


@pytest.mark.parametrize("capture", [KINETO_VLLM_CPU, SMOKE])
def test_one_off_allocations_of_real_programs_are_none(capture):
    assert not judged(recorded(capture))[1]


def test_what_a_free_drained_is_the_free_s_and_not_the_host_s():
    """empty_cache() in each step on an H200: the twin without it needs 41.9 % less time for a token."""
    context = Context(read_capture([CAPTURES / "lab/allocator.cause.gtw.xz"]))
    finding = only(judged(context)[1])
    assert finding.headline.startswith(
        "Allocator in the hot path: 38 % of the window the GPU waits because of cudaFree"
    )
    assert finding.recoverable_pct == pytest.approx(38.1, abs=0.1)
    assert not host.findings(host.analyse(context), context)


def test_a_host_that_is_late_anyway_gets_no_part_of_its_gaps_excused():
    simulation = Simulation()
    host_thread = simulation.host()
    for _ in range(60):
        host_thread.alloc(50_000, "cudaMalloc")
        for _ in range(5):
            host_thread.run(100_000)
            host_thread.launch(7, 10_000, "gemm")
    idle = made(simulation.schedule()).idle[0]
    assert idle.began_ns[Began.ALLOC] > 0
    assert idle.began_ns[Began.AFTER_ALLOC] == 0
