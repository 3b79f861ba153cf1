"""The process trees of every engine in each of its forms: PID, parent, group, command -> role and rank."""

from __future__ import annotations

import pytest

from gputop_llm.sources.discover import DiscoverySource
from tests.support.fake_proc import FakeClock, FakeProc

TREES = """
## vllm: one GPU, the worker inside of the engine core
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -> api-server
11 10 10 /v/bin/python3 -c from multiprocessing.resource_tracker import main;main(32) -> other
12 10 10 VLLM::EngineCore -> engine-core
## vllm: started as a module, tensor and pipeline parallel
10 1 10 python -m vllm.entrypoints.openai.api_server --model org/m -tp 2 -pp 2 -> api-server
11 10 10 VLLM::EngineCore -> engine-core
12 11 10 VLLM::Worker_PP0_TP0 -> worker PP0_TP0
13 11 10 VLLM::Worker_PP0_TP1 -> worker PP0_TP1
14 11 10 VLLM::Worker_PP1_TP0 -> worker PP1_TP0
15 11 10 VLLM::Worker_PP1_TP1 -> worker PP1_TP1
## vllm: data parallel, a server for each rank, experts over all of them
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -dp 2 --enable-expert-parallel -> other
11 10 10 VLLM::DPCoordinator -> coordinator
12 10 10 VLLM::EngineCore_DP0 -> engine-core DP0
13 12 10 VLLM::Worker_DP0_TP0_EP0 -> worker DP0_TP0_EP0
14 10 10 VLLM::EngineCore_DP1 -> engine-core DP1
15 14 10 VLLM::Worker_DP1_TP0_EP1 -> worker DP1_TP0_EP1
16 10 10 VLLM::APIServer_0 -> api-server
17 10 10 VLLM::APIServer_1 -> api-server
## vllm: two API servers of one engine
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m --api-server-count 2 -> other
11 10 10 VLLM::EngineCore -> engine-core
12 10 10 VLLM::APIServer_0 -> api-server
13 10 10 VLLM::APIServer_1 -> api-server
## vllm: a supervisor of data-parallel servers, each with a process group of its own
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -dp 2 --data-parallel-multi-port-external-lb -> other
11 10 11 VLLM::APIServer_DP0 -> api-server DP0
12 11 11 VLLM::EngineCore_DP0 -> engine-core DP0
13 10 13 VLLM::APIServer_DP1 -> api-server DP1
14 13 13 VLLM::EngineCore_DP1 -> engine-core DP1
## vllm: 0.10.1, the first with titles: workers have their parent's and their own ranks behind
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -dp 2 -tp 2 -> api-server
11 10 10 VLLM::DPEngineCore_0 -> engine-core DP0
12 11 10 VLLM::DPEngineCore_0_TP0 -> worker DP0_TP0
13 11 10 VLLM::DPEngineCore_0_TP1 -> worker DP0_TP1
## vllm: 0.10.0 and older, without titles
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -> api-server
11 10 10 /v/bin/python3 -c from multiprocessing.spawn import spawn_main; spawn_main(5) -> engine-core
12 11 10 /v/bin/python3 -c from multiprocessing.spawn import spawn_main; spawn_main(6) -> worker
## vllm: V0 with the engine in the server
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m --disable-frontend-multiprocessing -> api-server
## vllm: on Ray, under its daemon
10 1 10 /v/bin/python3 /v/bin/vllm serve org/m -tp 2 --distributed-executor-backend ray -> api-server
11 10 10 VLLM::EngineCore -> engine-core
30 20 20 ray::RayWorkerWrapper.execute_method -> worker
31 20 20 ray::RayWorkerWrapper.execute_method -> worker
## vllm: its server was killed
11 1 10 VLLM::EngineCore -> engine-core
12 11 10 VLLM::Worker_TP0 -> worker TP0
## sglang: data and tensor parallel, schedulers adopted by PID 1
10 1 10 python3 -m sglang.launch_server --model-path org/m --enable-metrics -> api-server
11 10 10 sglang::data_parallel_controller -> coordinator
12 1 10 sglang::scheduler_DP0_TP0_EP0 -> worker DP0_TP0_EP0
13 1 10 sglang::scheduler_DP1_TP0_EP1 -> worker DP1_TP0_EP1
14 10 10 sglang::detokenizer -> other
## sglang: pipeline parallel, several tokenizers
10 1 10 /v/bin/python /v/bin/sglang serve --model-path org/m --tokenizer-worker-num 2 --enable-metrics -> api-server
11 10 10 sglang::scheduler_PP0_TP0 -> worker PP0_TP0
12 10 10 sglang::scheduler_PP1_TP0 -> worker PP1_TP0
13 10 10 sglang::detokenizer_router -> other
14 10 10 sglang::tokenizer_worker:13 -> api-server
15 10 10 sglang::tokenizer_worker:14 -> api-server
## tgi: two shards behind a router
10 1 10 text-generation-launcher --model-id org/m --num-shard 2 -> other
11 10 10 text-generation-router --port 3000 --model-id org/m -> api-server
12 10 10 /opt/conda/bin/python3 /opt/conda/bin/text-generation-server serve org/m -> worker
13 10 10 /opt/conda/bin/python3 /opt/conda/bin/text-generation-server serve org/m -> worker
## trtllm: a pool of MPI ranks
10 1 10 python3 /usr/local/bin/trtllm-serve org/m --tp_size 2 -> api-server
11 10 10 python3 -m mpi4py.futures.server -> worker
12 10 10 python3 -m mpi4py.futures.server -> worker
## trtllm: ranks that its launcher starts under mpirun, each in a process group of its own
10 1 10 mpirun -n 2 --oversubscribe trtllm-llmapi-launch trtllm-serve org/m --tp_size 2 -> other
11 10 11 /bin/bash /usr/local/bin/trtllm-llmapi-launch trtllm-serve org/m --tp_size 2 -> other
12 11 11 python3 -m tensorrt_llm.llmapi.mgmn_leader_node -> worker
13 11 11 /usr/bin/python3 /usr/local/bin/trtllm-serve org/m --tp_size 2 -> api-server
14 10 14 /bin/bash /usr/local/bin/trtllm-llmapi-launch trtllm-serve org/m --tp_size 2 -> other
15 14 14 python3 -m tensorrt_llm.llmapi.mgmn_worker_node -> worker
## trtllm: one process under mpirun, without the launcher
11 9 11 /usr/bin/python3 /usr/local/bin/trtllm-serve org/m -> api-server
## triton: an executor of its own computes
10 1 10 tritonserver --model-repository=/models -> api-server
11 10 10 /opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker -> worker
## triton: serves and computes in one process
10 1 10 tritonserver --model-repository=/models -> api-server
## llamacpp: serves and computes in one process
10 1 10 ./llama-server -m /m/a.gguf --metrics -> api-server
## lmdeploy: the PyTorch engine's workers
10 1 10 lmdeploy serve api_server org/m --tp 2 -> api-server
11 10 10 python3 -c from multiprocessing.spawn import spawn_main; spawn_main(6) -> worker
"""
FORMS = dict(part.partition("\n")[::2] for part in TREES.strip().removeprefix("## ").split("\n## "))


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_an_engine_is_one_target_with_its_roles_and_ranks(tmp_path, form):
    proc = FakeProc(tmp_path)
    proc.add(1, ["/sbin/init"], ppid=0)
    proc.add(20, ["/v/ray/raylet"])
    expected = {}
    for line in FORMS[form].strip().splitlines():
        started, _, means = line.partition(" -> ")
        pid, parent, group, command = started.split(" ", 3)
        cmdline = command if "::" in command.split()[0] else command.split()
        proc.add(int(pid), cmdline, ppid=int(parent), pgrp=int(group))
        role, _, rank = means.partition(" ")
        expected[int(pid)] = (role, rank or None)
    (target,) = DiscoverySource(lambda: None, lambda url: False, proc.root, FakeClock()).poll().targets

    assert target.engine == form.partition(":")[0]
    assert {process.pid: (process.role, process.rank) for process in target.processes} == expected
    assert target.orphan == form.endswith("killed")
