"""Sync-bound: only idle time that a sync causes; waiting for a busy GPU is said to cost nothing."""

from __future__ import annotations

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.model import CopyKind, Memory
from gputop_llm.verdict import sync
from gputop_llm.verdict.causes import Cause
from tests.support.synth import Simulation
from tests.support.timelines import (
    KINETO_EAGER,
    NSYS_VLLM,
    OFFLOAD,
    QWEN,
    TRAINING,
    fact,
    made,
    only,
    recorded,
)


def judged(context):
    results = sync.analyse(context)
    return results, sync.findings(results, context)


def decode(host_ns: int, kernel_ns: int, steps: int = 50, readback=Memory.PINNED, name: str = "python3"):
    """Steps of one kernel whose token is read back, then `host_ns` of Python."""
    simulation = Simulation()
    host = simulation.host(simulation.process(name=name))
    for _ in range(steps):
        with host.range("decode"):
            host.launch(7, kernel_ns, "gemm")
            with host.op("aten::item"):
                host.copy(7, 2_000, 4, CopyKind.DTOH, Memory.DEVICE, readback)
                if readback is Memory.PINNED:
                    host.sync(7)
            host.run(host_ns)
    return simulation.schedule()


def test_a_readback_in_each_step_is_named_with_its_api_its_operator_and_its_cost():
    results, found = judged(made(decode(host_ns=80_000, kernel_ns=100_000)))
    result = only(results)
    assert (result.readbacks, result.small_readbacks, result.readback_bytes) == (50, 50, 4.0)
    finding = only(found)
    assert finding.id == "sync-bound"
    assert finding.weight is Weight.SEVERE
    assert "cudaStreamSynchronize, in aten::item" in finding.headline
    assert "median 4 bytes" in finding.cause
    assert ".item()" in finding.advice[0].text
    # A gap begins in all but the last of 50 syncs, which nothing follows.
    assert (result.caused_gaps, result.by_api[0].calls) == (49, 50)
    assert result.causes[Cause.HOST_CODE] == 49 * 80_000
    assert [(a.what, a.name) for a in result.around] == [("operator", "aten::item"), ("range", "decode")]


def test_a_sync_gives_back_no_more_than_the_host_waited_in_it():
    # The host needs 300 µs for a step and waits 10 µs: it could run ahead by no more than those.
    result = only(judged(made(decode(host_ns=300_000, kernel_ns=10_000)))[0])
    assert result.caused_ns > 49 * 300_000
    assert result.bound_ns == result.waited_ns < 50 * 15_000


def test_waiting_for_a_busy_gpu_costs_nothing_and_is_said():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(20):
        for _ in range(10):
            host.launch(7, 200_000, "gemm")
        host.sync(7, name="cudaEventSynchronize")
        host.run(2_000)
    results, found = judged(made(simulation.schedule()))
    finding = only(found)
    assert (finding.id, finding.weight, finding.recoverable_pct) == ("sync-waits-for-busy-gpu", Weight.NOTE, 0.0)
    assert "cudaEventSynchronize" in finding.headline
    assert "costs nothing" in finding.headline
    assert only(results).waited_busy_ns > 0.98 * only(results).waited_ns


def test_a_copy_into_pageable_memory_blocks_like_a_sync():
    context = made(decode(host_ns=80_000, kernel_ns=100_000, readback=Memory.PAGEABLE))
    results, found = judged(context)
    assert only(results).by_api[0].name == "cudaMemcpyAsync"
    assert only(results).readbacks == 50
    assert "cudaMemcpyAsync" in only(found).headline


def test_a_readback_that_is_looked_at_a_step_later_is_none():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(30):
        host.launch(7, 100_000, "gemm")
        host.copy(13, 2_000, 4, CopyKind.DTOH, Memory.DEVICE, Memory.PINNED)
        host.launch(7, 100_000, "gemm")
        host.sync(13)
    assert only(judged(made(simulation.schedule()))[0]).readbacks == 0


def test_an_engine_is_advised_by_its_flag():
    _, found = judged(made(decode(80_000, 100_000, name="VLLM::EngineCore")))
    assert any("--async-scheduling" in a.flags.get("vllm", "") for a in only(found).advice)


def test_long_waits_of_an_offloading_model_are_harmless():
    results, found = judged(recorded(OFFLOAD))
    finding = only(found)
    assert finding.id == "sync-waits-for-busy-gpu"
    assert fact(finding, "time in synchronising calls").value == pytest.approx(428.49, abs=0.01)
    assert fact(finding, "of it while the GPU worked").value == pytest.approx(99.4, abs=0.1)
    assert max(r.pct(r.caused_ns) for r in results) < 0.1


def test_a_device_synchronise_that_drains_the_step_before_costs_next_to_nothing():
    results, found = judged(recorded(QWEN))
    assert only(found).id == "sync-waits-for-busy-gpu"
    assert only(results).pct(only(results).caused_ns) < 1.0


@pytest.mark.parametrize("capture", [KINETO_EAGER, NSYS_VLLM])
def test_engines_that_hardly_sync_get_no_finding(capture):
    results, found = judged(recorded(capture))
    assert not found
    assert only(results).pct(only(results).bound_ns) < 1.0


def test_waits_for_a_device_that_seems_idle_are_neither_harmless_nor_a_sync_problem():
    results, found = judged(recorded(TRAINING))
    assert not found
    # 30 copies of up to 704 bytes into pageable memory, each waited for.
    assert only(results).readbacks == 30
