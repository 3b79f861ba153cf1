"""vLLM on Ray: its workers are Ray's children, titled without a rank."""

from __future__ import annotations

import pytest

from gputop_llm.model import Gpu, GpuNode, GpuProcess
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.ray_workers import RANKS_BY_GPU
from tests.support.fake_proc import FakeClock, FakeProc

SERVE = ["/venv/bin/python3", "/venv/bin/vllm", "serve", "org/model-a"]
ON_RAY = ["--distributed-executor-backend", "ray"]


def gpus(*pids):
    """A GPU for each of the PIDs, which holds memory there."""
    held = [(GpuProcess(pid, "compute", 7 << 30, None, None),) for pid in pids]
    return GpuNode(tuple(Gpu(index, name="H200", processes=one) for index, one in enumerate(held)))


@pytest.fixture
def host(tmp_path):
    proc = FakeProc(tmp_path / "proc")
    proc.add(1, ["/sbin/init"], ppid=0)
    proc.add(50, ["/venv/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x"])
    proc.add(51, "ray::IDLE", ppid=50, pgrp=50)
    return proc


def add_server(proc, pid, *options):
    proc.add(pid, [*SERVE, *options])
    proc.add(pid + 1, "VLLM::EngineCore", ppid=pid, pgrp=pid)


def add_workers(proc, *pids, title="ray::RayWorkerWrapper.execute_method", raylet=50):
    for pid in pids:
        proc.add(pid, title, ppid=raylet, pgrp=raylet)


def look(proc, node):
    return DiscoverySource(lambda: node, lambda url: False, proc.root, FakeClock()).poll().targets


@pytest.mark.parametrize(
    "title", ["ray::RayWorkerWrapper.execute_method", "ray::RayWorkerProc.run", "ray::RayWorkerWrapper"]
)
def test_workers_on_ray_are_their_engine_s_and_rank_k_has_the_k_th_gpu(host, title):
    add_server(host, 10, *ON_RAY, "-tp", "2")
    add_workers(host, 60, 61, title=title)
    (engine,) = look(host, gpus(61, 60))

    assert [(p.pid, p.role, p.rank, p.gpus) for p in engine.processes] == [
        *((10, "api-server", None, ()), (11, "engine-core", None, ())),
        *((61, "worker", "TP0", (0,)), (60, "worker", "TP1", (1,))),
    ]
    assert (engine.gpus, engine.urls, engine.notes) == ((0, 1), ("http://127.0.0.1:8000",), (RANKS_BY_GPU,))


def test_pipeline_ranks_count_over_tensor_ranks(host):
    add_server(host, 10, *ON_RAY, "-tp", "2", "-pp", "2")
    add_workers(host, 60, 61, 62, 63)
    (engine,) = look(host, gpus(60, 61, 62, 63))

    assert [p.rank for p in engine.processes[2:]] == ["PP0_TP0", "PP0_TP1", "PP1_TP0", "PP1_TP1"]


def test_with_some_workers_on_other_nodes_no_rank_is_told(host):
    add_server(host, 10, *ON_RAY, "-tp", "4")
    add_workers(host, 60, 61)
    (engine,) = look(host, gpus(60, 61))

    assert [(p.pid, p.rank, p.gpus) for p in engine.processes[2:]] == [(60, None, (0,)), (61, None, (1,))]
    assert engine.notes == ()


@pytest.mark.parametrize("options", [("-tp", "2"), (*ON_RAY, "-tp", "2")])
def test_workers_go_to_the_engine_that_lacks_them_not_to_one_with_its_own(host, options):
    add_server(host, 10, *options)
    add_server(host, 20, "-tp", "2", "--port", "8001")
    for rank in range(2):
        host.add(22 + rank, f"VLLM::Worker_TP{rank}", ppid=21, pgrp=20)
    add_workers(host, 60, 61)
    first, second = look(host, gpus(60, 61, 22, 23))

    assert (first.pids, second.pids) == ((10, 11, 60, 61), (20, 21, 22, 23))


def test_workers_of_a_program_that_has_the_engine_inside_and_runs_on_ray_itself(host):
    host.add(55, "ray::ServeReplica:llm", ppid=50, pgrp=50)
    host.add(56, "VLLM::EngineCore", ppid=55, pgrp=50)
    add_workers(host, 60, 61)
    (engine,) = look(host, gpus(60, 61))

    assert (engine.root_pid, engine.pids, engine.gpus) == (55, (55, 56, 60, 61), (0, 1))


def test_where_two_engines_may_be_theirs_that_is_said(host):
    for pid in (10, 20):
        add_server(host, pid, *ON_RAY, "-tp", "2", "--port", str(8000 + pid))
    add_workers(host, 60, 61, 62, 63)
    *servers, workers = look(host, gpus(60, 61, 62, 63))

    assert [target.gpus for target in servers] == [(), ()]
    assert (workers.engine, workers.gpus, workers.urls) == ("vllm", (0, 1, 2, 3), ())
    assert "PIDs 10, 20" in workers.notes[0]


def test_workers_of_a_server_on_another_node_say_so(host):
    add_workers(host, 60, 61)
    (workers,) = look(host, gpus(60, 61))

    assert (workers.engine, workers.pids, workers.orphan) == ("vllm", (60, 61), False)
    assert "their server isn't on this node" in workers.notes[0]
    assert "--url" in workers.notes[0]


def test_in_a_pod_without_nvml_s_pids_what_can_t_be_told_is_said(tmp_path):
    pod = FakeProc(tmp_path / "proc", pid_namespace="pid:[4026533777]")
    add_server(pod, 10, *ON_RAY, "-tp", "2")
    for pid in (60, 61):
        pod.add(pid, "ray::RayWorkerWrapper", ppid=50, pgrp=50, fds=["/dev/nvidia0", "/dev/nvidia1"])
    (engine,) = look(pod, GpuNode((Gpu(0, processes=()), Gpu(1, processes=()))))

    assert [(p.rank, p.gpus) for p in engine.processes[2:]] == [(None, ()), (None, ())]
    assert all("has the GPUs 0, 1 open" in p.note for p in engine.processes[2:])


def test_workers_of_tensorrt_llm_are_not_vllm_s(host):
    host.add(10, ["python3", "/usr/bin/trtllm-serve", "m", "--tp_size", "2"])
    add_workers(host, 60)

    assert [(target.engine, target.root_pid) for target in look(host, gpus(60))] == [("trtllm", 10), ("cuda", 60)]
