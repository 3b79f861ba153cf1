"""The operator table: self and total apart, on host and device."""

from __future__ import annotations

import pytest

from gputop_llm.verdict import operators
from tests.support.synth import Simulation
from tests.support.timelines import (
    KINETO_EAGER,
    KINETO_VLLM_CPU,
    NSYS_VLLM,
    QWEN,
    fact,
    made,
    only,
    recorded,
)


def judged(context):
    result = operators.analyse(context)
    return result, {f.id: f for f in operators.findings(result, context)}


def named(rows, name):
    return only(op for op in rows if op.name == name)


def nested():
    """aten::linear around aten::mm (which launches), and an aten::to that holds another aten::to."""
    simulation = Simulation()
    host = simulation.host()
    for size in ("[[8, 16], [16, 4]]", "[[8, 16], [16, 4]]", "[[1, 16], [16, 4]]"):
        with host.op("aten::linear", size):
            host.run(10_000)
            with host.op("aten::mm", size):
                host.run(5_000)
                host.launch(7, 30_000, "gemm", call_ns=4_000)
            host.run(1_000)
        with host.op("aten::to"):
            host.run(2_000)
            with host.op("aten::to"):
                host.launch(7, 1_000, "cast", call_ns=4_000)
    return simulation.schedule()


def test_self_leaves_out_what_total_holds():
    result, _ = judged(made(nested()))
    linear, mm = named(result.by_name, "aten::linear"), named(result.by_name, "aten::mm")
    assert (linear.calls, linear.self_cpu_ns, linear.total_cpu_ns) == (3, 3 * 11_000, 3 * 20_000)
    assert (linear.self_device_ns, linear.total_device_ns) == (0, 90_000)
    assert (mm.self_cpu_ns, mm.total_cpu_ns) == (3 * 9_000, 3 * 9_000)
    assert (mm.self_device_ns, mm.total_device_ns) == (90_000, 90_000)
    assert mm.mean_cpu_ns == 9_000.0


def test_an_operator_within_one_of_its_name_counts_once_in_the_total():
    to = named(judged(made(nested()))[0].by_name, "aten::to")
    assert (to.calls, to.total_cpu_ns, to.self_cpu_ns) == (6, 3 * 6_000, 3 * 6_000)
    assert (to.self_device_ns, to.total_device_ns) == (3_000, 3_000)


def test_shapes_are_kept_apart_where_recorded():
    result, _ = judged(made(nested()))
    rows = {(op.name, op.shapes): op.calls for op in result.by_shapes}
    assert rows == {
        ("aten::linear", "[[8, 16], [16, 4]]"): 2,
        ("aten::linear", "[[1, 16], [16, 4]]"): 1,
        ("aten::mm", "[[8, 16], [16, 4]]"): 2,
        ("aten::mm", "[[1, 16], [16, 4]]"): 1,
    }
    assert all(op.shapes is None for op in result.by_name)


def test_the_operator_that_makes_most_of_the_devices_work_is_named():
    _, found = judged(made(nested()))
    finding = found["one-operator-dominates"]
    assert finding.headline.startswith("aten::mm makes 97 %")
    assert finding.recoverable_pct is None


def test_operators_slower_on_the_host_than_on_the_device_read_as_launch_bound():
    simulation = Simulation()
    host = simulation.host()
    for _ in range(50):
        with host.op("aten::add"):
            host.run(20_000)
            host.launch(7, 2_000, "add")
    _, found = judged(made(simulation.schedule()))
    assert "launch-bound" in found["operators-slower-on-host"].headline


def test_the_table_of_eager_decode():
    context = recorded(KINETO_EAGER)
    result, found = judged(context)
    mm = result.by_name[0]
    assert (mm.name, mm.calls) == ("aten::mm", 2_435)
    assert mm.device_pct == pytest.approx(46.2, abs=0.1)
    assert result.linked_pct == pytest.approx(100.0, abs=0.01)
    assert sum(op.calls for op in result.by_name) == 65_882
    # 46 % is no majority.
    assert list(found) == ["operators-slower-on-host"]
    assert fact(found["operators-slower-on-host"], "GPU busy").value == pytest.approx(63.5, abs=0.1)


def test_kernels_of_graph_replays_hang_on_no_operator():
    result, found = judged(recorded(KINETO_VLLM_CPU))
    assert result.linked_pct == pytest.approx(6.6, abs=0.1)
    assert result.shaped_pct == pytest.approx(6.6, abs=0.1)
    assert "one-operator-dominates" not in found


def test_a_gpu_bound_model_has_no_operator_slower_on_the_host():
    result, found = judged(recorded(QWEN))
    assert not found
    assert result.by_name[0].name == "aten::mul"


def test_without_operators_there_is_no_table():
    assert judged(recorded(NSYS_VLLM)) == (None, {})
