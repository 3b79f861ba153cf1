"""Copies: volume, rate against the link, memory, and what no kernel hides."""

from __future__ import annotations

import pytest

from gputop_llm.model.finding import Weight
from gputop_llm.timeline.model import CopyKind, Device, Memory
from gputop_llm.verdict import copies
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.links import host_link, peer_link
from tests.support.synth import Simulation
from tests.support.synth_timeline import timeline_of
from tests.support.timelines import NSYS_VLLM, OFFLOAD, TRAINING, fact, made, only, recorded

PINNED_IN = (CopyKind.HTOD, Memory.PINNED, Memory.DEVICE)
PAGEABLE_IN = (CopyKind.HTOD, Memory.PAGEABLE, Memory.DEVICE)


def judged(context):
    results = copies.analyse(context)
    return results, {f.id: f for f in copies.findings(results, context)}


def test_a_gpu_busy_with_weights_from_the_host_is_transfer_bound():
    context = recorded(OFFLOAD)
    results, found = judged(context)
    assert [c.busy_pct for c in context.coverage] == pytest.approx([99.3, 99.3], abs=0.05)
    finding = only(found.values())
    assert (finding.id, finding.weight) == ("transfer-bound", Weight.SEVERE)
    assert fact(finding, "kernels at work").value == pytest.approx(2.3, abs=0.05)
    assert finding.recoverable_pct == pytest.approx(95.0, abs=0.1)
    into = [g for r in results for g in r.groups if (g.direction, g.memory) == ("host to device", "pinned")]
    assert sum(g.bytes for g in into) == pytest.approx(50.95e9, rel=1e-3)
    assert sum(g.time_ns for g in into) == pytest.approx(1_841.6e6, rel=1e-3)
    assert [g.per_s for g in into] == pytest.approx([27.7e9, 27.7e9], rel=5e-3)
    # The capture does not tell what GPUs these are, so nothing is said of the link.
    assert [g.link_pct for g in into] == [None, None]
    assert "--cpu-offload-gb" in finding.advice[0].flags["vllm"]


def test_the_copies_of_a_serving_engine_are_many_small_and_no_finding():
    results, found = judged(recorded(NSYS_VLLM))
    result = only(results)
    assert sum(g.count for g in result.groups) == 1_970
    assert sum(g.time_ns for g in result.groups) == pytest.approx(2.2e6, rel=0.02)
    assert result.readbacks == 758
    assert result.tiny == 1_587
    assert not found


def test_memory_kinds_are_kept_apart():
    result = only(judged(recorded(TRAINING))[0])
    by_kind = {(g.direction, g.memory): g.count for g in result.groups}
    assert by_kind["device to host", "pageable"] == 30
    assert by_kind["host to device", "pageable"] == 45
    assert by_kind["host to device", "pinned"] == 35
    assert by_kind["within the device", "device"] == 1_280


def test_copies_under_a_kernel_are_hidden_and_cost_nothing():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(10):
        host.launch(7, 1_000_000, "gemm")
        host.copy(13, 800_000, 20_000_000, *PINNED_IN)
        host.sync()
    results, found = judged(made(simulation.schedule()))
    group = only(only(results).groups)
    assert group.hidden_ns == group.time_ns == 8_000_000
    assert only(results).exposed_ns == 0
    assert not found


def test_copies_that_nothing_hides_are_a_finding_with_their_rate_against_the_link():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(10):
        host.copy(7, 100_000, 3_000_000, *PINNED_IN)
        host.launch(7, 900_000, "gemm")
    schedule = simulation.schedule()
    timeline = timeline_of(schedule)
    object.__setattr__(timeline, "devices", (Device(0, "NVIDIA A100-SXM4-80GB"),))
    results, found = judged(Context(timeline))
    assert list(found) == ["copies-exposed"]
    group = only(only(results).groups)
    assert group.per_s == pytest.approx(30e9)
    assert group.link_pct == pytest.approx(100 * 30 / 31.5)
    assert "PCIe 4.0 x16" in found["copies-exposed"].headline


def test_pageable_copies_are_told_from_pinned_ones():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(10):
        host.copy(7, 40_000, 200_000, *PAGEABLE_IN)
        host.launch(7, 900_000, "gemm")
    _, found = judged(made(simulation.schedule()))
    finding = found["pageable-copies"]
    assert finding.recoverable_pct == pytest.approx(100 * 40 / 940, rel=0.02)
    assert "pin" in finding.advice[0].text


def test_tiny_copies_cost_the_time_of_their_calls():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(50):
        host.launch(7, 2_000, "gemm")
        for _ in range(10):
            host.copy(7, 1_000, 8, *PINNED_IN, call_ns=6_000, after_ns=7_000)
        host.run(40_000)
    results, found = judged(made(simulation.schedule()))
    assert only(results).tiny == 500
    assert found["tiny-copies"].recoverable_pct > 40.0
    assert "500 copies" in found["tiny-copies"].headline


def test_copies_within_the_device_are_no_transfer():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(10):
        host.copy(7, 500_000, 1_000_000_000, CopyKind.DTOD, Memory.DEVICE, Memory.DEVICE)
        host.launch(7, 100_000, "gemm")
    results, found = judged(made(simulation.schedule()))
    assert only(results).transfer_ns == 0
    assert not found


@pytest.mark.parametrize(
    ("name", "link", "gb_per_s"),
    [
        ("NVIDIA H200", "PCIe 5.0 x16", 63.0),
        ("NVIDIA H100 80GB HBM3", "PCIe 5.0 x16", 63.0),
        ("NVIDIA A100-SXM4-80GB", "PCIe 4.0 x16", 31.5),
        ("NVIDIA L40S", "PCIe 4.0 x16", 31.5),
        ("NVIDIA GeForce RTX 3060", "PCIe 4.0 x16", 31.5),
        ("NVIDIA GeForce RTX 5060 Ti", "PCIe 5.0 x8", 31.5),
        ("NVIDIA GH200 480GB", "NVLink-C2C", 450.0),
        ("Tesla T4", "PCIe 3.0 x16", 15.75),
    ],
)
def test_links_are_known_by_the_devices_name(name, link, gb_per_s):
    found = host_link(name)
    assert (found.name, found.bytes_per_s) == (link, gb_per_s * 1e9)


def test_an_unknown_device_has_no_known_link():
    assert host_link(None) is None
    assert host_link("NVIDIA Unheard-of 1") is None
    assert peer_link("NVIDIA L4") is None
    assert peer_link("NVIDIA H200").bytes_per_s == 450e9
