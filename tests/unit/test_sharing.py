"""Consecutive readings keep what is equal in both once, and stay two readings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import EngineLive, EngineSeries, EngineWindow, GpuNode, GpuProcess, Latency
from gputop_llm.sampling.sharing import shared
from tests.support.fake_sources import a_gpu


def node(**changed) -> GpuNode:
    """Made anew each time, down to its texts and numbers."""
    processes = (GpuProcess(int("4711"), "".join("compute"), int("80000"), float("12.5"), None),)
    fields = {"name": "".join(("NVIDIA ", "H200")), "power_w": float("345.5"), "processes": processes}
    return GpuNode((a_gpu(0, **{**fields, "missing": {"fan_pct": "".join("none")}, **changed}),), driver="".join("580"))


def test_readings_that_are_equal_stay_two_with_one_set_of_parts():
    old, new = node(), node()
    made = shared(new, old)
    assert made == new
    assert made is not old
    assert made.gpus is old.gpus


def test_what_differs_is_new_and_all_else_is_the_old_one():
    old, new = node(), node(util_pct=99.0)
    made = shared(new, old)
    assert made == new
    was, now = old.gpus[0], made.gpus[0]
    assert now.util_pct == 99.0
    for name in ("name", "power_w", "processes", "missing"):
        assert getattr(now, name) is getattr(was, name)
        assert getattr(new.gpus[0], name) is not getattr(was, name)


@pytest.mark.parametrize(
    "changed",
    [
        {"processes": ()},
        {"processes": None},
        {"processes": (GpuProcess(1, "compute", 1, 1.0, None), GpuProcess(4711, "compute", 80000, 12.5, None))},
        {"missing": {}},
        {"missing": {"fan_pct": "none", "temp_c": "none"}},
        {"power_w": float("nan")},
        {"power_w": None},
        {"name": None},
    ],
)
def test_the_result_is_always_equal_to_the_new_reading(changed):
    for new, old in ((node(**changed), node()), (node(), node(**changed))):
        assert repr(shared(new, old)) == repr(new)


def test_a_number_keeps_its_kind():
    made = shared(node(power_w=345), node(power_w=345.0))
    assert type(made.gpus[0].power_w) is int


def test_one_object_in_several_places_stays_one():
    def window(running: float) -> EngineWindow:
        live = EngineLive("m", None, running=running, latency={"ttft": Latency(running, None, None, None, None)})
        return EngineWindow(live, (live,), (replace(live, rank="0"),))

    made = shared(window(3.0), window(2.0))
    assert made == window(3.0)
    assert made.models[0] is made.total
    assert made.ranks[0].latency is made.total.latency


def test_numbers_by_name_are_shared_one_by_one():
    old = EngineSeries("m", "0", counters={"steps": float("1000.5"), "preemptions": float("7.5")})
    new = EngineSeries("m", "0", counters={"steps": float("1001.5"), "preemptions": float("7.5")})
    made = shared(new, old)
    assert made == new
    assert made.counters["preemptions"] is old.counters["preemptions"]


@pytest.mark.parametrize("old", [None, 3, "text", GpuNode])
def test_without_a_reading_of_its_kind_before_it_stays_as_it_is(old):
    new = node()
    assert shared(new, old) is new
