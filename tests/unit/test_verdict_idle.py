"""Whose time an idle gap is: the thread that launches the next work, until its launch has returned."""

from __future__ import annotations

import numpy as np

from gputop_llm.verdict.causes import CAUSE_LABELS, Cause
from gputop_llm.verdict.idle import Began
from tests.support.synth import Simulation
from tests.support.timelines import NSYS_VLLM, OFFLOAD, made, only, recorded


def idle_of(simulation: Simulation, idle_after_ns: int = 0):
    return made(simulation.schedule(idle_after_ns)).idle[0]


def times(idle):
    return {cause: ns for cause, ns in idle.total_ns.items() if ns}


def test_the_thread_that_launches_the_next_work_answers_for_the_gap():
    simulation = Simulation()
    process = simulation.process()
    first, second = simulation.host(process), simulation.host(process)
    first.launch(7, 10_000, "a", call_ns=4_000, after_ns=5_000)
    # The first thread sleeps through the gap; the second one allocates, then launches.
    first.sleep(200_000)
    second.now = 20_000
    second.alloc(50_000)
    second.launch(13, 10_000, "b", call_ns=4_000, after_ns=5_000)
    idle = idle_of(simulation, 0)
    gap = int(np.argmax(idle.gaps.began == Began.DRY)) + 1
    assert (idle.gaps.start[gap], idle.gaps.end[gap]) == (15_000, 75_000)
    assert idle.gaps.thread[gap] == 1
    assert idle.gaps.by_cause.of(Cause.ALLOC)[gap] == 50_000
    assert idle.gaps.by_cause.of(Cause.OS_BLOCKED)[gap] == 0


def test_time_after_the_launch_has_returned_is_not_the_hosts():
    simulation = Simulation()
    host = simulation.host()
    host.launch(7, 10_000, "a", call_ns=4_000, after_ns=9_000)
    assert times(idle_of(simulation)) == {Cause.LAUNCH: 4_000, Cause.SUBMITTED: 5_000}


def test_gaps_between_the_nodes_of_a_replay_are_not_the_hosts():
    simulation = Simulation(node_mode=True, node_gap_ns=700)
    host = simulation.host()
    host.replay(7, 1, [("gemm", 5_000)] * 10, call_ns=6_000, after_ns=6_000)
    host.run(1_000_000)
    idle = idle_of(simulation)
    assert idle.began_ns[Began.QUEUED] == 9 * 700
    assert idle.total_ns[Cause.SUBMITTED] == 9 * 700


def test_work_whose_launch_is_not_recorded_leaves_its_gap_unexplained():
    simulation = Simulation()
    host = simulation.host()
    host.launch(7, 10_000, "a")
    host.sync()
    host.run(100_000)
    host.launch(7, 10_000, "b", seen=False)
    idle = idle_of(simulation)
    assert idle.gaps.by_cause.of(Cause.UNATTRIBUTED)[-1] == idle.gaps.length[-1] > 100_000
    assert idle.gaps.began[-1] == Began.UNKNOWN


def test_after_the_last_work_it_is_the_usual_thread():
    simulation = Simulation()
    host = simulation.host()
    host.launch(7, 10_000, "a", call_ns=4_000, after_ns=5_000)
    host.sleep(300_000, "poll")
    idle = idle_of(simulation)
    assert idle.gaps.began.tolist() == [Began.DRY, Began.END]
    assert idle.gaps.by_cause.of(Cause.OS_BLOCKED)[-1] == 304_000 - 15_000


def test_gaps_longer_than_two_seconds_are_kept_exactly():
    simulation = Simulation()
    host = simulation.host()
    host.launch(7, 10_000, "a", call_ns=4_000, after_ns=5_000)
    host.sleep(5_000_000_000)
    host.launch(7, 10_000, "b", call_ns=4_000, after_ns=5_000)
    assert idle_of(simulation).total_ns[Cause.OS_BLOCKED] == 5_000_000_000 - 11_000


def test_shares_sum_to_the_idle_time_of_each_device():
    for name in (NSYS_VLLM, OFFLOAD):
        context = recorded(name)
        for covered in context.coverage:
            idle = context.idle[covered.device]
            assert sum(idle.total_ns.values()) == sum(idle.began_ns.values()) == covered.idle_ns
            by_cause = np.stack([idle.gaps.by_cause.of(cause) for cause in Cause])
            assert (by_cause.sum(axis=0) == idle.gaps.length).all()
            assert (by_cause >= 0).all()


def test_a_vllm_step_is_idle_because_of_its_host():
    idle = recorded(NSYS_VLLM).idle[0]
    assert 100 * idle.began_ns[Began.DRY] / idle.idle_ns > 97.0
    # Without operators in the record the host's part can't be told further.
    assert idle.share_pct(Cause.UNATTRIBUTED) > 80.0
    assert idle.share_pct(Cause.SYNC) < 0.1


def test_every_cause_has_words():
    assert set(CAUSE_LABELS) == set(Cause)
    assert only({type(label) for label in CAUSE_LABELS.values()}) is str
