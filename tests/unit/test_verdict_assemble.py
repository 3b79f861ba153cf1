"""Healthy, findings or can't judge: the verdict on simulated programs whose truth is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.verdict.assemble import judge
from tests.support.synth import Simulation
from tests.support.synth_timeline import timeline_of

MS = 1_000_000


def gpu_bound(steps=100, kernel_ns=1 * MS, kernel="ampere_bf16_gemm_128x64"):
    """The host is far ahead: the GPU never waits."""
    simulation = Simulation()
    host = simulation.host()
    for _ in range(steps):
        host.launch(7, kernel_ns, kernel)
    host.sync(7)
    return simulation.schedule()


def late_host(steps=100, wait_ns=1 * MS, sync=False):
    """Each kernel of 1 ms is launched only after it should have been."""
    simulation = Simulation()
    host = simulation.host()
    for _ in range(steps):
        host.launch(7, 1 * MS, "ampere_bf16_gemm_128x64")
        if sync:
            host.sync(7)
            host.run(wait_ns)
        else:
            host.run(1 * MS + wait_ns)
    return simulation.schedule()


def replays(node_mode, steps=100, pause_ns=0, node_gap_ns=300):
    simulation = Simulation(node_mode=node_mode, node_gap_ns=node_gap_ns)
    host = simulation.host()
    for _ in range(steps):
        host.replay(7, 3, [("ampere_bf16_gemm_128x64", 20_000)] * 20)
        host.sync(7)
        host.run(pause_ns)
    return simulation.schedule()


def verdict_on(schedule, recorder="native"):
    return judge(timeline_of(schedule, recorder))


def test_a_gpu_that_never_waits_is_healthy_and_bound_by_its_family():
    verdict = verdict_on(gpu_bound())

    assert verdict.healthy is True
    assert verdict.headline == "healthy, GPU-bound in GEMM: 100 % busy"
    assert not [f for f in verdict.findings if f.weight > Weight.NOTE]


def test_a_gpu_that_is_bound_by_a_kernel_of_no_known_family_is_bound_by_that_kernel():
    assert verdict_on(gpu_bound(kernel="add_one")).headline == "healthy, GPU-bound in add_one: 100 % busy"


def test_a_gpu_that_is_bound_by_many_short_kernels_of_no_known_family_is_judged():
    simulation = Simulation()
    host = simulation.host()
    for i in range(60):
        host.launch(7, 900_000, f"gemm_{i}")
    for i in range(130):
        host.launch(7, 450_000, f"add_one_{i}")
    host.sync(7)

    headline = verdict_on(simulation.schedule()).headline
    assert headline == "healthy, GPU-bound in kernels of no known family and GEMM: 100 % busy"


@pytest.mark.parametrize("sync", [True, False])
def test_a_late_host_is_a_finding_of_the_idle_time_it_causes(sync):
    verdict = verdict_on(late_host(sync=sync))
    (row,) = verdict.tables["coverage"]

    assert verdict.healthy is False
    assert row["busy_pct"] == pytest.approx(50, abs=1)
    assert verdict.findings[0].recoverable_pct == pytest.approx(50, abs=2)


def test_idle_time_below_the_threshold_leaves_a_capture_healthy():
    assert verdict_on(late_host(wait_ns=50_000)).healthy is True
    assert verdict_on(late_host(wait_ns=200_000)).healthy is False


def test_idle_time_is_never_silent():
    schedule = late_host()
    blind = replace(schedule, calls=(), ops=tuple(replace(op, call=None, correlation=0) for op in schedule.ops))
    verdict = verdict_on(blind)

    assert verdict.findings[0].id == "gpu-idle"
    assert "launches are not in the record" in verdict.headline


def test_a_short_window_is_not_judged_unless_the_gpu_is_busy_throughout():
    short = verdict_on(late_host(steps=12, wait_ns=100_000 * 5))
    busy = verdict_on(gpu_bound(steps=15))

    assert (short.judged, short.healthy) == (False, None)
    assert "the window is too short" in short.headline
    assert busy.healthy is True
    assert any("the window is only" in note for note in busy.notes)


def test_a_handful_of_kernels_is_not_judged_however_long_the_window():
    verdict = verdict_on(late_host(steps=5, wait_ns=100 * MS))

    assert verdict.judged is False
    assert "too little GPU work: 5 kernels" in verdict.headline


def test_nothing_at_all_is_not_judged_and_is_no_idle_gpu():
    simulation = Simulation()
    simulation.host().run(MS)
    verdict = verdict_on(simulation.schedule())

    assert verdict.judged is False
    assert "no events were recorded" in verdict.headline
    assert verdict.tables == {}


def test_replays_that_are_not_in_the_record_make_it_useless():
    schedule = replays(node_mode=False, pause_ns=MS)
    verdict = verdict_on(replace(schedule, ops=schedule.ops[:12]), "nsys")

    assert verdict.judged is False
    assert "CUDA-graph launches is not in the record" in verdict.headline
    assert [f.id for f in verdict.findings] == ["replays-not-recorded"]


def _earlier(schedule, ns):
    """The same work by a device clock that is off."""
    return replace(schedule, ops=tuple(replace(op, start=op.start - ns, end=op.end - ns) for op in schedule.ops))


def _in_step(wait_ns, devices=1):
    """Each kernel of 1 ms is launched when the one before has ended, on the last device after a wait."""
    simulation = Simulation(start=10 * MS)
    for device in range(devices):
        host = simulation.host(device=device)
        for _ in range(60):
            host.launch(7, 1 * MS, "ampere_bf16_gemm_128x64")
            host.sync(7)
            host.run(wait_ns if device == devices - 1 else 0)
    return simulation.schedule()


def test_clocks_that_disagree_do_not_hide_that_a_gpu_was_busy_throughout():
    verdict = verdict_on(_earlier(_in_step(wait_ns=0), 150_000))

    assert "clocks-disagree" in [finding.id for finding in verdict.findings]
    assert (verdict.judged, verdict.healthy) == (True, True)
    assert verdict.headline.startswith("healthy, GPU-bound in GEMM")


@pytest.mark.parametrize("devices", [1, 2])
def test_clocks_that_disagree_forbid_a_verdict_where_some_gpu_was_idle(devices):
    verdict = verdict_on(_earlier(_in_step(wait_ns=1 * MS, devices=devices), 150_000))

    assert (verdict.judged, verdict.healthy) == (False, None)
    assert [finding.id for finding in verdict.findings] == ["clocks-disagree"]


def test_node_level_records_whose_error_spans_both_verdicts_are_not_judged():
    idle = replays(node_mode=True, node_gap_ns=15_000)
    verdict = verdict_on(idle, "kineto")

    assert verdict.judged is False
    assert "node by node" in verdict.headline
    assert "gputop-llm run --nsys, and capture it with --route nsys-session" in verdict.headline
    assert "--cuda-graph-trace=graph" in verdict.headline


def test_the_same_replays_recorded_whole_are_judged():
    assert verdict_on(replays(node_mode=False), "nsys").judged is True


def test_each_device_has_its_own_row_and_the_range_is_in_the_headline():
    simulation = Simulation()
    for device in range(2):
        host = simulation.host(device=device)
        for _ in range(100):
            host.launch(7, (100 - 4 * device) * 10_000, "gemm")
    verdict = verdict_on(simulation.schedule())

    assert [row["device"] for row in verdict.tables["coverage"]] == [0, 1]
    assert "96 to 100 %" in verdict.headline
