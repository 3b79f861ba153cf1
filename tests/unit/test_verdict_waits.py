"""Idle time that is not the host's: another rank isn't there yet, or no request is in flight. Claimed on proof only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.model import Kind
from gputop_llm.verdict.assemble import judge
from gputop_llm.verdict.causes import Cause
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.idle import Began
from tests.support.synth import Simulation, Span
from tests.support.synth_timeline import timeline_of
from tests.support.timelines import made

MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def steps(host, count=10, name="gemm", kernel_ns=3 * MS):
    for _ in range(count):
        host.launch(7, kernel_ns, name, call_ns=5_000, after_ns=5_000)
        host.sync()


def times(context, device=0):
    return {cause: ns for cause, ns in context.idle[device].total_ns.items() if ns}


def served(wait="poll", name="VLLM::EngineCore", meanwhile=lambda simulation, process, host: None):
    """Steps, 100 ms in which the engine waits, and steps again."""
    simulation = Simulation()
    process = simulation.process(name=name)
    host = simulation.host(process)
    steps(host)
    meanwhile(simulation, process, host)
    host.sleep(100 * MS, wait)
    steps(host)
    return simulation


# No request in flight.


@pytest.mark.parametrize("wait", ["poll", "epoll_wait", "pthread_cond_timedwait", "sem_clockwait", "recvmsg"])
def test_an_engine_that_waits_for_input_while_nothing_moves_has_no_request(wait):
    context = made(served(wait).schedule(0))
    assert times(context)[Cause.NO_REQUEST] == 100 * MS
    assert Cause.OS_BLOCKED not in times(context)
    assert context.idle[0].began_ns[Began.NO_REQUEST] >= 100 * MS


@pytest.mark.parametrize("wait", ["nanosleep", "read", "fsync", "usleep"])
def test_a_sleep_or_a_file_is_no_wait_for_requests(wait):
    context = made(served(wait).schedule(0))
    assert times(context)[Cause.OS_BLOCKED] == 100 * MS
    assert Cause.NO_REQUEST not in times(context)


def test_a_program_that_is_no_engine_has_no_requests():
    assert Cause.NO_REQUEST not in times(made(served(name="python3").schedule(0)))


def test_it_is_not_claimed_while_another_thread_works():
    def scheduler(simulation, process, host):
        # Wakes every 10 ms and works for 9 of them: Python that nothing records, seen by the waits it is not in.
        other = simulation.host(process)
        other.now = host.now
        for _ in range(11):
            other.sleep(1 * MS, "poll")
            other.run(9 * MS)

    context = made(served(meanwhile=scheduler).schedule(0))
    found = times(context)
    assert found[Cause.NO_REQUEST] + found[Cause.OS_BLOCKED] == 100 * MS
    assert found[Cause.NO_REQUEST] <= 11 * MS


def test_without_os_waits_it_is_not_claimed():
    context = made(replace(served().schedule(0), waits=()))
    assert Cause.NO_REQUEST not in times(context)
    assert times(context)[Cause.UNATTRIBUTED] >= 100 * MS


def test_an_annotation_of_the_engine_tells_it():
    simulation = Simulation()
    host = simulation.host()
    steps(host)
    began = host.now
    host.run(80 * MS)
    ended = host.now
    steps(host)
    schedule = simulation.schedule(0)
    schedule = replace(schedule, ranges=(Span("executor: wait for new requests", 0, began, ended),))
    assert times(made(schedule))[Cause.NO_REQUEST] == 80 * MS


def test_whoever_took_the_capture_may_know_it():
    simulation = Simulation()
    host = simulation.host()
    steps(host)
    began = host.now
    host.run(80 * MS)
    steps(host)
    timeline = timeline_of(simulation.schedule(0))
    # Overlapping, out of order, and beyond the window.
    starts = np.array([began + 40 * MS, began + 10 * MS, timeline.end + 5])
    ends = np.array([began + 60 * MS, began + 50 * MS, timeline.end + 9])
    context = Context(timeline, no_request=(starts, ends))
    assert times(context)[Cause.NO_REQUEST] == 50 * MS
    assert sum(times(context).values()) == context.idle[0].idle_ns


def test_work_in_a_time_without_requests_stays_work():
    simulation = Simulation()
    host = simulation.host()
    steps(host, count=20)
    timeline = timeline_of(simulation.schedule(0))
    everything = (np.array([timeline.start]), np.array([timeline.end]))
    found = times(Context(timeline, no_request=everything))
    without = times(Context(timeline))
    assert {cause: found[cause] for cause in (Cause.SYNC, Cause.LAUNCH)} == {
        cause: without[cause] for cause in (Cause.SYNC, Cause.LAUNCH)
    }
    assert found.get(Cause.NO_REQUEST, 0) == without.get(Cause.UNATTRIBUTED, 0)


def test_a_device_without_requests_is_healthy_for_its_load():
    verdict = judge(made(served().schedule(0)).timeline)
    (finding,) = [f for f in verdict.findings if f.id == "no-request-in-flight"]
    assert finding.weight is Weight.NOTE
    assert finding.recoverable_pct is None
    assert verdict.healthy
    assert verdict.headline.startswith("healthy for its load")
    assert "no request was in flight" in verdict.headline
    assert not {"host-bound", "gpu-idle"} & {f.id for f in verdict.findings}


# Another rank.


def two_ranks(late_ns, wait="poll", name=NCCL):
    """Two ranks that share collectives; the first has nothing to do while the second works on for `late_ns`."""
    simulation = Simulation()
    first, second = (simulation.host(simulation.process(), device=device) for device in (0, 1))
    for host in (first, second):
        steps(host, name=name)
    first.sleep(late_ns, wait)
    second.launch(7, late_ns - 1 * MS, "gemm", call_ns=5_000, after_ns=5_000)
    second.sync()
    second.now = first.now = max(first.now, second.now)
    for host in (first, second):
        steps(host, name=name)
    return simulation


def test_a_rank_that_waits_for_input_while_another_one_works_waits_for_that_rank():
    context = made(two_ranks(50 * MS).schedule(0))
    assert times(context, 0)[Cause.RANK] == pytest.approx(49 * MS, abs=100_000)
    assert Cause.RANK not in times(context, 1)
    finding = next(f for f in judge(context.timeline).findings if f.id == "rank-wait")
    assert finding.subject == "GPU 0"
    assert finding.recoverable_pct == pytest.approx(
        100 * context.idle[0].began_ns[Began.RANK] / context.timeline.window_ns
    )
    assert finding.recoverable_pct > 40


@pytest.mark.parametrize(("wait", "name"), [("poll", "gemm"), ("nanosleep", NCCL)], ids=["replicas", "a sleep"])
def test_replicas_and_sleeps_wait_for_no_rank(wait, name):
    context = made(two_ranks(50 * MS, wait, name).schedule(0))
    assert Cause.RANK not in times(context, 0)
    assert times(context, 0)[Cause.OS_BLOCKED] == 50 * MS


@pytest.mark.parametrize("name", ["gloo:broadcast", "c10d::barrier", "MPI:MPI_Allreduce", "MPI_Wait"])
def test_a_collective_that_blocks_the_host_waits_for_a_rank(name):
    simulation = Simulation()
    host = simulation.host()
    steps(host)
    with host.op(name):
        host.run(30 * MS)
    steps(host)
    assert times(made(simulation.schedule(0)))[Cause.RANK] == 30 * MS


@pytest.mark.parametrize("name", ["c10d::allreduce_", "nccl:all_reduce", "aten::copy_"])
def test_an_operator_that_only_launches_does_not(name):
    simulation = Simulation()
    host = simulation.host()
    steps(host)
    with host.op(name):
        host.run(30 * MS)
    steps(host)
    found = times(made(simulation.schedule(0)))
    assert Cause.RANK not in found
    assert found[Cause.FRAMEWORK] == 30 * MS


def late_start(name, wait_ns, before=()):
    """A free device does not begin what was submitted long ago."""
    simulation = Simulation()
    host = simulation.host()
    for kernel, late in (*before, (name, wait_ns)):
        host.launch(7, 2 * MS, "gemm", call_ns=5_000, after_ns=5_000)
        host.launch(7, 2 * MS, kernel, call_ns=5_000, after_ns=2 * MS + late)
        host.sync()
    return made(simulation.schedule(0))


def test_a_collective_that_does_not_begin_on_a_free_device_waits_for_a_rank():
    assert times(late_start(NCCL, 5 * MS))[Cause.RANK] == pytest.approx(5 * MS, abs=20_000)
    assert Cause.RANK not in times(late_start("gemm", 5 * MS))
    assert Cause.RANK not in times(late_start(NCCL, 10_000))


def test_where_other_work_starts_late_too_the_record_lacks_something_and_no_rank_is_blamed():
    context = late_start(NCCL, 5 * MS, before=(("gemm", 4 * MS), ("gemm", 4 * MS)))
    assert Cause.RANK not in times(context)
    assert times(context)[Cause.SUBMITTED] > 12 * MS


def test_collectives_inside_of_replays_tell_nothing():
    simulation = Simulation(node_mode=True, node_gap_ns=50_000)
    host = simulation.host()
    host.replay(7, 1, [("gemm", 100_000), (NCCL, 100_000)] * 10, call_ns=6_000, after_ns=6_000)
    host.sync()
    context = made(simulation.schedule(0))
    assert Kind.GRAPH not in context.timeline.ops.kind
    assert Cause.RANK not in times(context)
