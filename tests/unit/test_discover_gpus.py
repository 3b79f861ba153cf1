"""Which process is on which GPU: by NVML where its PIDs are ours, else inferred and called so."""

import pytest

from gputop_llm.model import Gpu, GpuNode, GpuProcess, MigInstance
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.gpu_map import resolve_visible
from tests.support.fake_proc import FakeClock, FakeProc

POD = "pid:[4026533777]"
GIB = 1 << 30
SERVE = ["vllm", "serve", "org/model-a"]
ALL_FOUR = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3"]


def listed(pid, mem=GIB, kind="compute", instance=None):
    return GpuProcess(pid, kind, mem, None, instance)


def gpus(*processes_of_each):
    return GpuNode(
        tuple(
            Gpu(index=n, uuid=f"GPU-{n}000-aa", name="H200", processes=processes)
            for n, processes in enumerate(processes_of_each)
        )
    )


def find(proc, node):
    return DiscoverySource(lambda: node, lambda url: False, proc.root, FakeClock()).poll().targets


def workers(target):
    return {p.rank: (p.gpus, p.gpus_from) for p in target.processes if p.role == "worker"}


@pytest.fixture
def host(tmp_path):
    return FakeProc(tmp_path / "proc")


@pytest.fixture
def pod(tmp_path):
    return FakeProc(tmp_path / "proc", pid_namespace=POD)


def add_tp4(proc, environ=None, fds=ALL_FOUR, options=()):
    proc.add(10, [*SERVE, "--tensor-parallel-size", "4", *options], environ={"PATH": "/bin", **(environ or {})})
    proc.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=ALL_FOUR)
    for rank in range(4):
        proc.add(20 + rank, f"VLLM::Worker_TP{rank}", ppid=11, pgrp=10, fds=fds)


def test_nvml_says_it_and_ranks_keep_their_own_gpus(host):
    add_tp4(host)
    node = gpus((listed(23),), (listed(22),), (listed(21),), (listed(20, 3 * GIB),))
    (target,) = find(host, node)

    assert workers(target) == {
        "TP0": ((3,), "nvml"),
        "TP1": ((2,), "nvml"),
        "TP2": ((1,), "nvml"),
        "TP3": ((0,), "nvml"),
    }
    worker = next(p for p in target.processes if p.rank == "TP0")
    assert (worker.mem_bytes, worker.nvml_pid) == (3 * GIB, 20)
    core = next(p for p in target.processes if p.role == "engine-core")
    assert (core.gpus, core.gpus_from, core.nvml_pid) == ((), None, None)
    assert target.gpus == (0, 1, 2, 3)


def test_one_process_on_two_gpus_has_the_sum_of_its_memory(host):
    host.add(10, ["python3", "train.py"])
    (target,) = find(host, gpus((listed(10, GIB),), (listed(10, 2 * GIB),)))

    assert (target.engine, target.gpus, target.processes[0].mem_bytes) == ("cuda", (0, 1), 3 * GIB)


def test_unknown_memory_on_one_gpu_leaves_the_sum_unknown(host):
    host.add(10, ["python3", "train.py"])
    (target,) = find(host, gpus((listed(10, GIB),), (listed(10, None),)))

    assert target.processes[0].mem_bytes is None


def test_any_other_process_on_a_gpu_is_a_cuda_target(host):
    host.add(10, ["python3", "train.py", "--wandb-api-key", "sesame"])
    (target,) = find(host, gpus((listed(10),)))

    assert (target.key, target.engine, target.root_pid) == ("cuda:10:10000", "cuda", 10)
    assert target.processes[0].title == "python3 train.py --wandb-api-key ***"
    assert target.attachable is None


def test_what_only_draws_is_no_target(host):
    host.add(10, ["Xorg"])

    assert find(host, gpus((listed(10, kind="graphics"),))) == ()


def test_a_pid_that_has_just_ended_is_no_target(host):
    assert find(host, gpus((listed(10),))) == ()


def test_on_a_host_nothing_is_inferred(host):
    add_tp4(host)
    (target,) = find(host, gpus((), (), (), ()))

    assert target.gpus == ()


def test_a_mig_slice_is_told_and_its_process_counted_once(host):
    host.add(10, SERVE)
    slices = (
        MigInstance(1, 0, "MIG-1", None, None, None, None, (listed(99, instance=1),)),
        MigInstance(2, 0, "MIG-2", None, None, None, None, (listed(10, 5 * GIB, instance=2),)),
    )
    node = GpuNode((Gpu(index=0, mig_enabled=True, mig_instances=slices, processes=(listed(10, 5 * GIB),)),))
    (target,) = find(host, node)
    (process,) = target.processes

    assert (process.gpus, process.mig_instance, process.mem_bytes) == ((0,), 2, 5 * GIB)


# -- inside a pod --------------------------------------------------------------


def test_in_a_pod_the_only_open_device_is_it(pod):
    pod.add(10, SERVE)
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidiactl", "/dev/nvidia2"])
    (target,) = find(pod, gpus((), (), (), ()))
    root, core = target.processes

    assert (core.gpus, core.gpus_from, core.nvml_pid) == ((2,), "inferred", None)
    assert root.gpus == ()


def test_in_a_pod_the_rank_chooses_among_all_open_devices(pod):
    add_tp4(pod)
    (target,) = find(pod, gpus(None, None, None, None))

    assert workers(target) == {f"TP{n}": ((n,), "inferred") for n in range(4)}
    assert next(p for p in target.processes if p.role == "engine-core").gpus == ()


@pytest.mark.parametrize("visible", ["3,2,1,0", "GPU-3000,GPU-2000-aa,GPU-1,GPU-0"])
def test_visible_devices_give_the_order_of_ranks(pod, visible):
    add_tp4(pod, {"CUDA_VISIBLE_DEVICES": visible})
    (target,) = find(pod, gpus((), (), (), ()))

    assert workers(target) == {f"TP{n}": ((3 - n,), "inferred") for n in range(4)}


def test_pipeline_and_data_ranks_count_over_tensor_ranks(pod):
    pod.add(10, [*SERVE, "-tp", "2", "-pp", "2", "-dp", "2"], environ={"PATH": "/bin"})
    fds = [f"/dev/nvidia{n}" for n in range(8)]
    for dp in range(2):
        pod.add(11 + dp, f"VLLM::EngineCore_DP{dp}", ppid=10, pgrp=10)
        for pp in range(2):
            for tp in range(2):
                pod.add(20 + 4 * dp + 2 * pp + tp, f"VLLM::Worker_PP{pp}_TP{tp}", ppid=11 + dp, pgrp=10, fds=fds)
    (target,) = find(pod, gpus(*[()] * 8))

    assert {rank: use[0] for rank, use in workers(target).items()} == {
        f"DP{dp}_PP{pp}_TP{tp}": (4 * dp + 2 * pp + tp,) for dp in range(2) for pp in range(2) for tp in range(2)
    }


def test_a_second_node_of_a_data_parallel_engine_starts_at_its_first_gpu(pod):
    pod.add(10, [*SERVE, "-dp", "4", "--headless"], environ={"PATH": "/bin"})
    for dp in (2, 3):
        pod.add(10 + dp, f"VLLM::EngineCore_DP{dp}", ppid=10, pgrp=10, fds=["/dev/nvidia0", "/dev/nvidia1"])
    (target,) = find(pod, gpus((), ()))

    assert {p.rank: p.gpus for p in target.processes if p.role == "engine-core"} == {"DP2": (0,), "DP3": (1,)}


def test_a_device_number_is_not_an_index(pod):
    pod.add(10, SERVE)
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidia5"])
    pod.write(
        "driver/nvidia/gpus/0000:a1:00.0/information", "Model: \t H200\nGPU UUID: \t GPU-0000-aa\nDevice Minor: \t 5\n"
    )
    (target,) = find(pod, gpus(()))

    assert target.gpus == (0,)


def test_a_worker_without_a_title_among_many_open_devices_is_left_open_with_a_note(pod):
    spawn = ["python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"]
    pod.add(10, SERVE, environ={"PATH": "/bin"})
    pod.add(11, spawn, ppid=10, fds=["/dev/nvidia0", "/dev/nvidia1"])
    (target,) = find(pod, gpus((), ()))
    core = target.processes[1]

    assert (core.role, core.gpus, core.gpus_from) == ("engine-core", (), None)
    assert "0, 1" in core.note


def test_a_mig_uuid_in_visible_devices_names_gpu_and_slice(pod):
    pod.add(10, SERVE, environ={"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "MIG-2222-bb"})
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidia1"])
    slices = tuple(MigInstance(n, 0, f"MIG-{n}222-bb", None, None, None, None) for n in (1, 2))
    node = GpuNode((Gpu(index=0, processes=()), Gpu(index=1, mig_instances=slices, processes=())))
    (target,) = find(pod, node)
    core = target.processes[1]

    assert (core.gpus, core.mig_instance, core.gpus_from) == ((1,), 2, "inferred")


def test_a_number_of_the_host_that_happens_to_be_ours_is_not_believed(pod):
    pod.add(10, SERVE)
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidia0"])
    pod.add(12, ["nginx"], fds=["socket:[5]"])
    (engine,) = find(pod, gpus((listed(12),)))

    assert engine.gpus == (0,)


def test_nvml_is_believed_in_a_container_whose_pids_it_knows(pod):
    pod.add(10, SERVE)
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidia0"])
    (engine,) = find(pod, gpus((listed(11, 7 * GIB),)))

    assert [(p.gpus_from, p.mem_bytes) for p in engine.processes] == [(None, None), ("nvml", 7 * GIB)]


def test_an_inference_that_failed_early_is_made_again_later(pod):
    pod.add(10, SERVE)
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10)
    node = gpus((), ())
    source = DiscoverySource(lambda: node, lambda url: False, pod.root, FakeClock())
    source.poll()
    pod.add(11, "VLLM::EngineCore", ppid=10, pgrp=10, fds=["/dev/nvidia1"])
    looks = [source.poll().targets[0].gpus for _ in range(6)]

    assert looks[-1] == (1,)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("1,0", [(1, None), (0, None)]),
        ("", []),
        ("-1", []),
        ("0,9,1", [(0, None)]),
        ("NoDevFiles", []),
        ("MIG-GPU-1000-aa/7/0", [(1, 7)]),
    ],
)
def test_visible_devices_end_at_the_first_name_that_is_none(text, places):
    assert resolve_visible(text, gpus((), ())) == places


def test_numbers_mean_nothing_where_cuda_sorts_different_gpus_by_speed():
    assert resolve_visible("1", gpus((), ()), mixed=True) is None
