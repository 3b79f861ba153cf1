"""What analyses share: uses of calls, nesting, listing of gaps, node-level distortion, names."""

from __future__ import annotations

import numpy as np
import pytest

from gputop_llm.timeline.model import CopyKind, Memory, Ranges
from gputop_llm.verdict.apis import Api, use_of
from gputop_llm.verdict.distortion import Distortion
from gputop_llm.verdict.facts import share, span
from gputop_llm.verdict.nesting import nest
from tests.support.synth import Simulation
from tests.support.timelines import KINETO_EAGER, NSYS_EAGER, NSYS_VLLM, made, only, recorded


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("cudaLaunchKernel", Api.LAUNCH),
        ("cudaLaunchKernelExC", Api.LAUNCH),
        ("cuLaunchKernelEx", Api.LAUNCH),
        ("hipExtModuleLaunchKernel", Api.LAUNCH),
        ("cudaLaunchHostFunc", Api.OTHER),
        ("cudaGraphLaunch", Api.GRAPH_LAUNCH),
        ("hipGraphLaunch", Api.GRAPH_LAUNCH),
        ("cudaGraphInstantiate", Api.OTHER),
        ("cudaEventSynchronize", Api.SYNC),
        ("cuStreamSynchronize", Api.SYNC),
        ("hipDeviceSynchronize", Api.SYNC),
        ("cudaStreamWaitEvent", Api.OTHER),
        ("cudaEventQuery", Api.OTHER),
        ("cudaMemcpy", Api.BLOCKING_COPY),
        ("cudaMemcpyAsync", Api.ASYNC_COPY),
        ("cuMemcpyDtoHAsync", Api.ASYNC_COPY),
        ("hipMemcpyWithStream", Api.BLOCKING_COPY),
        ("cudaMemcpyPeerAsync", Api.ASYNC_COPY),
        ("cudaMalloc", Api.ALLOC),
        ("cudaFree", Api.ALLOC),
        ("cudaHostAlloc", Api.ALLOC),
        ("cudaMallocAsync", Api.ASYNC_ALLOC),
        ("cudaFreeAsync", Api.ASYNC_ALLOC),
        ("cudaMemsetAsync", Api.MEMSET),
        ("cudaFuncGetAttributes", Api.OTHER),
    ],
)
def test_api_names_tell_their_use(name, use):
    assert use_of(name) is use


def test_only_copies_into_pageable_memory_block_among_the_asynchronous():
    simulation = Simulation()
    host = simulation.host()
    host.copy(7, 1_000, 8, CopyKind.DTOH, Memory.DEVICE, Memory.PAGEABLE)
    host.copy(7, 1_000, 8, CopyKind.DTOH, Memory.DEVICE, Memory.PINNED)
    host.copy(7, 1_000, 8, CopyKind.HTOD, Memory.PAGEABLE, Memory.DEVICE)
    assert made(simulation.schedule()).uses.tolist() == [Api.BLOCKING_COPY, Api.ASYNC_COPY, Api.ASYNC_COPY]


def test_gaps_are_listed_from_a_length_that_suits_the_capture():
    eager = recorded(NSYS_EAGER).idle[0]
    serving = recorded(NSYS_VLLM).idle[0]
    # Tens of µs in decode, where a threshold in ms would list nothing at all.
    assert eager.listing_threshold_ns() == pytest.approx(11_808, rel=0.01)
    assert serving.listing_threshold_ns() == pytest.approx(41_792, rel=0.01)
    longest = serving.longest(3)
    assert (serving.gaps.length[longest] > 29_000_000).all()
    for idle in (eager, serving):
        listed = idle.gaps.length >= idle.listing_threshold_ns()
        assert idle.gaps.length[listed].sum() >= 0.9 * idle.idle_ns


def test_the_innermost_interval_is_found_past_its_finished_siblings():
    start = np.array([0, 10, 12, 20, 20, 60])
    end = np.array([100, 20, 15, 50, 40, 60])
    zeros = np.zeros(6, dtype=np.int32)
    nested = nest(Ranges(start, end, zeros, zeros), 0)
    assert nested.parent.tolist() == [-1, 0, 1, 0, 3, 0]
    moments = np.array([5, 11, 13, 17, 25, 45, 55, 99, 100, -1])
    assert nested.innermost(moments).tolist() == [0, 1, 2, 1, 4, 3, 0, 0, -1, -1]
    assert nested.last_inside().tolist() == [6, 3, 3, 5, 5, 6]


def test_of_two_that_begin_together_the_longer_one_is_around_the_other():
    zeros = np.zeros(2, dtype=np.int32)
    nested = nest(Ranges(np.array([5, 5]), np.array([6, 9]), zeros, zeros), 0)
    assert nested.rows.tolist() == [1, 0]
    assert nested.parent.tolist() == [-1, 0]


def test_a_thread_without_rows_has_no_innermost():
    nothing = np.empty(0, dtype=np.int64)
    none = np.empty(0, dtype=np.int32)
    assert nest(Ranges(nothing, nothing, none, none), 0).innermost(np.array([1])).tolist() == [-1]


def test_distortion_grows_with_the_share_of_nodes_and_never_promises_more_than_all():
    assert Distortion(88.0, 0.75).low_by_pct(30.0) == pytest.approx(22.5)
    assert Distortion(88.0, 0.75).low_by_pct(95.0) == pytest.approx(5.0)


@pytest.mark.parametrize("recorder", ["native", "kineto", "nsys"])
def test_replays_recorded_node_by_node_are_noticed_whoever_recorded(recorder):
    nodes, whole = Simulation(node_mode=True), Simulation()
    for simulation in (nodes, whole):
        host = simulation.host()
        for _ in range(5):
            host.replay(7, 1, [("gemm", 10_000), ("norm", 2_000)])
    assert made(nodes.schedule(), recorder).distortion.node_pct == 100.0
    assert made(whole.schedule(), recorder).distortion is None


def test_a_bare_client_distorts_least():
    simulation = Simulation(node_mode=True)
    simulation.host().replay(7, 1, [("gemm", 10_000), ("norm", 2_000)])
    schedule = simulation.schedule()
    low_by = [made(schedule, recorder).distortion.low_by_pct(20.0) for recorder in ("native", "kineto", "nsys")]
    assert low_by == sorted(low_by)


def test_engines_are_known_by_their_processes_and_ranges():
    assert recorded(NSYS_VLLM).engine == "vllm"
    assert recorded(KINETO_EAGER).engine is None
    simulation = Simulation()
    host = simulation.host()
    with host.range("step[DECODE bs=32]"):
        host.launch(7, 1_000, "gemm")
    assert made(simulation.schedule()).engine == "sglang"


def test_threads_are_named_inertly():
    simulation = Simulation()
    host = simulation.host(name="evil\x1b[31m")
    host.launch(7, 1_000, "gemm")
    context = made(simulation.schedule())
    assert "\x1b" not in context.thread_label(0)
    assert context.thread_label(-1) == "an unknown thread"
    assert only(context.coverage).device == 0


def test_durations_and_shares_keep_the_digits_that_matter():
    assert [span(ns) for ns in (200, 2_126, 531_000, 8_200_000, 421e6, 1.07e9, 0, None)] == [
        "0.20 µs",
        "2.1 µs",
        "531 µs",
        "8.2 ms",
        "421 ms",
        "1.07 s",
        "0 µs",
        "–",
    ]
    assert [share(pct) for pct in (52.24, 9.4, 0.07, None)] == ["52 %", "9.4 %", "0.1 %", "–"]
