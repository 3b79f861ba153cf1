"""Exports of every schema: the same rows, whatever the tables and columns are called."""

from __future__ import annotations

import pytest

from gputop_llm.timeline.model import Kind
from gputop_llm.timeline.nsys_nvtx import framework_operator
from gputop_llm.timeline.nsys_schema import api_name
from gputop_llm.timeline.read_nsys import read_nsys
from tests.support.nsys_figures import counts, decode, names
from tests.support.nsys_files import changed
from tests.support.synth import Simulation
from tests.support.synth_nsys import GRAPH_SCHEMAS, SCHEMAS, to_nsys_sqlite

# Synthetic files of every schema.


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_gives_the_same_rows(tmp_path, schema):
    schedule = decode(Simulation(node_mode=True))
    timeline = read_nsys([to_nsys_sqlite(schedule, tmp_path / "a.sqlite", schema)])

    ops = timeline.ops
    assert ops.start.tolist() == [op.start for op in schedule.ops]
    assert ops.end.tolist() == [op.end for op in schedule.ops]
    assert [timeline.name(i) for i in ops.name_id] == [op.name for op in schedule.ops]
    assert ops.bytes.tolist() == [op.bytes for op in schedule.ops]
    assert ops.copy_kind.tolist() == [op.copy for op in schedule.ops]
    assert ops.dst_memory.tolist() == [op.dst for op in schedule.ops]
    assert ops.graph.tolist() == [-1 if op.graph is None else op.graph for op in schedule.ops]
    assert ops.graph_node.tolist() == [-1 if op.node is None else op.node for op in schedule.ops]
    assert ops.launch.tolist() == [op.call for op in schedule.ops]
    assert timeline.origin.node_level
    assert timeline.origin.schema == schema
    assert [timeline.name(i) for i in timeline.calls.name_id] == [call.name for call in schedule.calls]
    assert names(timeline, "ranges") == {"step": 3}
    assert names(timeline, "os_waits") == {"poll": 3}


@pytest.mark.parametrize("schema", GRAPH_SCHEMAS)
def test_whole_replays_are_opaque_work(tmp_path, schema):
    timeline = read_nsys([to_nsys_sqlite(decode(), tmp_path / "a.sqlite", schema)])
    replays = timeline.ops.take(timeline.ops.kind == Kind.GRAPH)

    assert replays.graph.tolist() == [3, 3, 3]
    assert (replays.launch >= 0).all()
    assert not timeline.origin.node_level
    assert "graph_replays" not in timeline.origin.missing


def test_replays_that_an_old_export_leaves_out_are_said_to_be_missing(tmp_path):
    timeline = read_nsys([to_nsys_sqlite(decode(), tmp_path / "a.sqlite", "3.7.2")])

    assert counts(timeline)[3] == 0
    assert "3 CUDA graphs were launched" in timeline.origin.missing["graph_replays"]


def test_grid_and_block_are_products(tmp_path):
    timeline = read_nsys([to_nsys_sqlite(decode(), tmp_path / "a.sqlite")])
    kernels = timeline.ops.take(timeline.ops.kind == Kind.KERNEL)

    assert set(kernels.grid.tolist()) == {128}
    assert set(kernels.block.tolist()) == {256}
    assert set(timeline.ops.take(timeline.ops.kind == Kind.COPY).grid.tolist()) == {0}


def test_ids_with_the_top_bit_set_are_not_negative_pids(tmp_path):
    timeline = read_nsys([to_nsys_sqlite(decode(), tmp_path / "a.sqlite", machine=0x8001)])

    assert [(p.pid, p.name) for p in timeline.processes] == [(4242, "python3")]
    assert [(t.tid, t.process, t.name) for t in timeline.threads] == [(4242, 0, "python3")]
    assert (timeline.ops.launch >= 0).all()


def test_processes_with_colliding_correlations_keep_their_launches(tmp_path):
    simulation = Simulation()
    for device in (0, 1):
        host = simulation.host(device=device)
        host.run(100 * device)
        for _ in range(5):
            host.launch(7, 3000, f"on_gpu_{device}")
    timeline = read_nsys([to_nsys_sqlite(simulation.schedule(), tmp_path / "a.sqlite")])

    threads = timeline.calls.thread[timeline.ops.launch]
    assert [timeline.threads[t].process for t in threads] == timeline.ops.process.tolist()
    assert timeline.ops.device.tolist() == timeline.ops.process.tolist()


def two_ranks_that_see_one_gpu_each():
    simulation = Simulation()
    for gpu in (2, 5):
        process = simulation.process(pid=100 + gpu, name=f"rank on {gpu}", visible=(gpu,))
        simulation.host(process, device=gpu).launch(7, 3000, "gemm")
    return simulation.schedule()


def test_ordinals_of_processes_are_mapped_to_physical_gpus(tmp_path):
    timeline = read_nsys([to_nsys_sqlite(two_ranks_that_see_one_gpu_each(), tmp_path / "a.sqlite", "3.17.2")])

    assert sorted(timeline.ops.device.tolist()) == [2, 5]
    assert [device.number for device in timeline.devices] == [2, 5]
    assert timeline.origin.warnings == ()


def test_ordinals_that_cannot_be_mapped_are_doubted(tmp_path):
    timeline = read_nsys(
        [to_nsys_sqlite(two_ranks_that_see_one_gpu_each(), tmp_path / "a.sqlite", "3.7.2", gpus=False)]
    )

    assert timeline.ops.device.tolist() == [0, 0]
    assert any("several processes name a GPU 0" in warning for warning in timeline.origin.warnings)


def test_only_gpus_with_work_are_listed(tmp_path):
    path = to_nsys_sqlite(two_ranks_that_see_one_gpu_each(), tmp_path / "a.sqlite")
    changed(path, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE globalPid = (1 << 48) + (102 << 24)")

    assert [device.number for device in read_nsys([path]).devices] == [5]


# Ranges.


def test_ranges_take_their_name_from_the_row_or_from_the_strings(tmp_path):
    simulation = Simulation()
    host = simulation.host()
    for name in ("first", "second"):
        with host.range(name):
            host.launch(7, 3000, "gemm")
    timeline = read_nsys([to_nsys_sqlite(simulation.schedule(), tmp_path / "a.sqlite")])

    assert [timeline.name(i) for i in timeline.ranges.name_id] == ["first", "second"]


def test_open_ranges_end_with_the_window_and_marks_are_no_ranges(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    changed(
        path,
        "UPDATE NVTX_EVENTS SET end = NULL WHERE rowid = 1",
        "INSERT INTO NVTX_EVENTS (start, eventType, text, globalTid) VALUES (5, 34, 'mark', (1 << 48) + (4242 << 24))",
    )
    timeline = read_nsys([path])

    assert timeline.ranges.end[0] == timeline.end
    assert names(timeline, "ranges") == {"step": 3}


def test_names_of_domains_go_before_the_name(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    changed(
        path,
        "INSERT INTO NVTX_EVENTS (start, eventType, text, domainId, globalTid)"
        " SELECT 0, 75, 'NCCL', 2, globalTid FROM NVTX_EVENTS LIMIT 1",
        "UPDATE NVTX_EVENTS SET domainId = 2 WHERE rowid = 1",
    )

    assert names(read_nsys([path]), "ranges") == {"NCCL:step": 1, "step": 2}


def test_operators_under_emit_nvtx_carry_their_shapes(tmp_path):
    timeline = read_nsys([to_nsys_sqlite(decode(), tmp_path / "a.sqlite", emit_nvtx=True)])

    assert names(timeline, "cpu_ops") == {"aten::mm": 3}
    assert {timeline.name(i) for i in timeline.cpu_ops.shapes_id} == {"[[8, 16], [16, 4]]"}
    assert names(timeline, "ranges") == {"step": 3}


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("aten::mm, op_id = 12", ("aten::mm", None)),
        ("aten::mm, seq = 5, op_id = 12, sizes = [[8], []]", ("aten::mm", "[[8], []]")),
        ("MmBackward0, seq = 5, op_id = 9, sizes = [[8]], input_op_ids = [(1,0)]", ("MmBackward0", "[[8]]")),
        ("step 12", None),
        ("phase, op_id = unknown", None),
        ("", None),
    ],
)
def test_ranges_of_emit_nvtx_are_told_from_others(text, operator):
    assert framework_operator(text) == operator


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("cudaLaunchKernel_v7000", "cudaLaunchKernel"),
        ("cudaMemcpyAsync_ptsz_v7000", "cudaMemcpyAsync"),
        ("cudaStreamSynchronize_v3020_ptsz", "cudaStreamSynchronize"),
        ("cuMemAlloc_v2", "cuMemAlloc"),
        ("cuLaunchKernelEx", "cuLaunchKernelEx"),
        ("my_vector", "my_vector"),
    ],
)
def test_versions_are_taken_off_api_names(recorded, name):
    assert api_name(recorded) == name


# OS waits.


def test_calls_within_os_calls_are_left_to_the_outer_one(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    changed(path, "UPDATE OSRT_API SET nestingLevel = 1 WHERE rowid = 2")

    assert len(read_nsys([path]).os_waits) == 2


def test_threads_that_call_cuda_are_descheduled_between_out_and_in(tmp_path):
    path = to_nsys_sqlite(decode(), tmp_path / "a.sqlite")
    tid, other = (1 << 48) + (4242 << 24) + 4242, (1 << 48) + (1 << 24) + 1
    switches = [(100, 1, tid), (200, 0, tid), (900, 1, tid), (1000, 0, tid), (210, 0, other), (220, 1, other)]
    changed(
        path,
        "DROP TABLE OSRT_API",
        "CREATE TABLE SCHED_EVENTS (start INTEGER, cpu INTEGER, isSchedIn INTEGER, globalTid INTEGER)",
        *(
            f"INSERT INTO SCHED_EVENTS VALUES ({at}, 0, {inside}, {thread})"
            for at, inside, thread in reversed(switches)
        ),
    )
    timeline = read_nsys([path])

    waits = timeline.os_waits
    assert list(zip(waits.start.tolist(), waits.end.tolist(), strict=True)) == [(200, 900)]
    assert names(timeline, "os_waits") == {"descheduled": 1}
    assert "os_waits" not in timeline.origin.missing
