"""Engines other than vLLM, found by their command lines and titles."""

from __future__ import annotations

import pytest

from gputop_llm.model import Gpu, GpuNode, GpuProcess
from gputop_llm.sources.discover import DiscoverySource
from tests.support.fake_proc import FakeClock, FakeProc

SGLANG = ["python3", "-m", "sglang.launch_server", "--model-path", "org/model-a", "--enable-metrics"]


class Node:
    """A fake node with discovery on it."""

    def __init__(self, path, gpus=None):
        self.proc = FakeProc(path / "proc")
        self.source = DiscoverySource(lambda: gpus, lambda _: False, self.proc.root, FakeClock())

    def look(self):
        return self.source.poll().targets

    def one(self):
        (target,) = self.look()
        return target


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def roles(target):
    return [(process.pid, process.role, process.rank) for process in target.processes]


@pytest.mark.parametrize(
    ("argv", "engine", "model", "url"),
    [
        (SGLANG, "sglang", "org/model-a", "http://127.0.0.1:30000"),
        ([*SGLANG, "--port=30001", "--host", "10.0.0.1"], "sglang", "org/model-a", "http://10.0.0.1:30001"),
        ([*SGLANG, "--served-model-name", "chat"], "sglang", "chat", "http://127.0.0.1:30000"),
        (
            ["/v/bin/python", "/v/bin/sglang", "serve", "--enable-metrics", "--model-path", "m"],
            "sglang",
            "m",
            "http://127.0.0.1:30000",
        ),
        (["text-generation-launcher", "--model-id", "m", "-p", "8080"], "tgi", "m", "http://127.0.0.1:8080"),
        (["text-generation-launcher", "--model-id", "m"], "tgi", "m", "http://127.0.0.1:3000"),
        (["/usr/bin/python3", "/usr/bin/trtllm-serve", "m", "--tp_size", "2"], "trtllm", "m", "http://127.0.0.1:8000"),
        (["trtllm-serve", "serve", "m", "--port", "8001"], "trtllm", "m", "http://127.0.0.1:8001"),
        (
            ["mpirun", "-n", "2", "/b/trtllm-llmapi-launch", "trtllm-serve", "m", "--port", "8002"],
            *("trtllm", "m", "http://127.0.0.1:8002"),
        ),
        (["tritonserver", "--model-repository=/models"], "triton", None, "http://127.0.0.1:8002"),
        (["tritonserver", "--metrics-port=9002", "--http-port", "80"], "triton", None, "http://127.0.0.1:9002"),
        (["./llama-server", "-m", "/m/a.gguf", "--metrics"], "llamacpp", "/m/a.gguf", "http://127.0.0.1:8080"),
        (
            ["llama-server", "-hf", "org/a:Q4", "--metrics", "--port", "81"],
            "llamacpp",
            "org/a:Q4",
            "http://127.0.0.1:81",
        ),
        (["lmdeploy", "serve", "api_server", "m"], "lmdeploy", "m", "http://127.0.0.1:23333"),
        (
            ["python", "-m", "lmdeploy", "serve", "api_server", "m", "--server-port", "5"],
            *("lmdeploy", "m", "http://127.0.0.1:5"),
        ),
    ],
)
def test_a_server_is_known_by_its_command_line(node, argv, engine, model, url):
    node.proc.add(10, argv)
    target = node.one()
    assert (target.engine, target.model, target.urls, target.urls_from) == (engine, model, (url,), "argv")
    assert target.key.startswith(f"{engine}:10:")
    assert target.notes == ()


@pytest.mark.parametrize(
    "argv",
    [
        ["vim", "sglang/launch_server.py"],
        ["python", "-c", "import sglang.launch_server"],
        ["grep", "llama-server"],
        ["trtllm-serve", "disaggregated", "-c", "x.yaml"],
        ["mpirun", "-n", "2", "trtllm-llmapi-launch", "python3", "offline.py"],
        ["mpirun", "-n", "2", "echo", "trtllm-serve", "m"],
        ["lmdeploy", "chat", "m"],
        ["sglang", "generate"],
        ["tail", "-f", "/var/log/tritonserver"],
    ],
)
def test_what_only_looks_like_one_is_none(node, argv):
    node.proc.add(10, argv)
    assert node.look() == ()


@pytest.mark.parametrize(
    ("argv", "note"),
    [
        (SGLANG[:-1], "--enable-metrics"),
        (["llama-server", "-m", "x.gguf"], "--metrics"),
        (["llama-server", "-m", "x", "--host", "/run/l.sock"], "Unix socket"),
        (["tritonserver", "--allow-metrics=false"], "--allow-metrics"),
        (["lmdeploy", "serve", "api_server", "m", "--disable-metrics"], "--disable-metrics"),
    ],
)
def test_a_server_that_was_started_without_metrics_says_so(node, argv, note):
    node.proc.add(10, argv)
    assert any(note in text for text in node.one().notes)


def test_a_default_port_is_only_assumed_where_another_one_may_be_meant(tmp_path):
    answers, clock, proc = set(), FakeClock(), FakeProc(tmp_path / "proc")
    source = DiscoverySource(lambda: None, answers.__contains__, proc.root, clock)
    proc.add(10, ["llama-server", "-m", "x.gguf", "--metrics"], listen=[("0100007F", 9931, 901)])
    (target,) = source.poll().targets
    assert (target.urls, target.urls_from) == (("http://127.0.0.1:8080",), "argv")
    answers.add("http://127.0.0.1:9931")
    clock.pass_s(60)
    (target,) = source.poll().targets
    assert (target.urls, target.urls_from) == (("http://127.0.0.1:9931",), "socket")


def test_sglang_with_data_and_tensor_parallel_ranks(node):
    node.proc.add(10, SGLANG)
    node.proc.add(11, "sglang::data_parallel_controller", ppid=10, pgrp=10)
    node.proc.add(12, "sglang::scheduler_DP0_TP0", ppid=11, pgrp=10)
    node.proc.add(13, "sglang::scheduler_DP1_TP0   ", ppid=11, pgrp=10)
    node.proc.add(14, "sglang::detokenizer", ppid=10, pgrp=10)
    target = node.one()
    assert roles(target) == [
        *((10, "api-server", None), (11, "coordinator", None)),
        *((12, "worker", "DP0_TP0"), (13, "worker", "DP1_TP0"), (14, "other", None)),
    ]
    assert (target.api_servers, target.orphan) == (1, False)


def test_schedulers_that_pid_1_adopted_belong_to_their_living_server(node):
    node.proc.add(10, SGLANG, pgrp=10, session=10)
    node.proc.add(12, "sglang::scheduler_TP0", ppid=1, pgrp=10, session=10)
    node.proc.add(13, "sglang::scheduler_TP1", ppid=1, pgrp=13, session=10)
    target = node.one()
    assert roles(target) == [(10, "api-server", None), (12, "worker", "TP0"), (13, "worker", "TP1")]


@pytest.mark.parametrize("one_session", [False, True])
def test_two_servers_keep_their_own_schedulers(node, one_session):
    for root in (10, 20):
        session = 5 if one_session else root
        node.proc.add(root, [*SGLANG, "--port", str(30000 + root)], pgrp=root, session=session)
        node.proc.add(root + 1, "sglang::scheduler", ppid=1, pgrp=root, session=session)
    assert [target.pids for target in node.look()] == [(10, 11), (20, 21)]


def test_what_is_left_of_a_killed_server_is_an_orphan(node):
    node.proc.add(12, "sglang::scheduler_TP0", ppid=1, pgrp=10, session=10)
    node.proc.add(13, "sglang::scheduler_TP1", ppid=1, pgrp=10, session=10)
    target = node.one()
    assert (target.engine, target.orphan, target.pids) == ("sglang", True, (12, 13))
    assert any("orphan" in note for note in target.notes)


def test_tgi_s_router_knows_the_port_and_shards_compute(node):
    node.proc.add(10, ["text-generation-launcher", "--model-id", "m"])
    node.proc.add(11, ["text-generation-router", "--tokenizer-name", "m", "--port", "80"], ppid=10)
    shard = ["/opt/conda/bin/python3", "/opt/conda/bin/text-generation-server", "serve", "m"]
    node.proc.add(12, shard, ppid=10)
    target = node.one()
    assert roles(target) == [(10, "other", None), (11, "api-server", None), (12, "worker", None)]
    assert (target.urls, target.api_servers) == (("http://127.0.0.1:80",), 1)


def test_trtllm_s_mpi_pool_is_its_ranks(node):
    node.proc.add(10, ["python3", "/usr/local/bin/trtllm-serve", "m"])
    node.proc.add(11, ["prted", "--daemonize"], ppid=10)
    node.proc.add(12, ["python3", "-m", "mpi4py.futures.server"], ppid=11)
    assert roles(node.one()) == [(10, "api-server", None), (12, "worker", None), (11, "other", None)]


def test_models_of_a_llama_router_are_engines_of_their_own(node):
    node.proc.add(10, ["llama-server", "--models-dir", "/m"])
    node.proc.add(11, ["llama-server", "-m", "/m/a.gguf", "--port", "5001", "--metrics"], ppid=10)
    router, model = node.look()
    assert (router.urls, router.pids) == ((), (10,))
    assert any("router" in note for note in router.notes)
    assert (model.model, model.urls, model.pids) == ("/m/a.gguf", ("http://127.0.0.1:5001",), (11,))


def test_vllm_s_processes_stay_vllm_s(node):
    node.proc.add(10, ["vllm", "serve", "m"])
    node.proc.add(11, "VLLM::EngineCore", ppid=10)
    node.proc.add(20, SGLANG)
    assert [(target.engine, target.pids) for target in node.look()] == [("vllm", (10, 11)), ("sglang", (20,))]


def test_memory_of_a_scheduler_is_the_engine_s_and_a_plain_process_is_one_of_cuda(tmp_path):
    held = (GpuProcess(12, "compute", 7 << 30, None, None), GpuProcess(30, "compute", 1 << 30, None, None))
    node = Node(tmp_path, GpuNode((Gpu(index=0, name="H200", processes=held),)))
    node.proc.add(10, SGLANG)
    node.proc.add(12, "sglang::scheduler", ppid=10)
    node.proc.add(30, ["python", "train.py", "--lr", "1e-4"])
    engine, plain = node.look()
    assert [(p.pid, p.mem_bytes, p.gpus) for p in engine.processes] == [(10, None, ()), (12, 7 << 30, (0,))]
    assert (plain.engine, plain.root_pid, plain.gpus) == ("cuda", 30, (0,))
    assert plain.processes[0].title == "python train.py --lr 1e-4"


def test_a_plain_process_that_has_pytorch_loaded_says_so_with_its_version(tmp_path):
    venv = tmp_path / "venv/lib/python3.11/site-packages"
    (venv / "torch-2.6.0.dist-info").mkdir(parents=True)
    held = tuple(GpuProcess(pid, "compute", 1 << 30, None, None) for pid in (30, 31))
    node = Node(tmp_path, GpuNode((Gpu(index=0, name="H200", processes=held),)))
    for pid in (30, 31):
        node.proc.add(pid, [f"{tmp_path}/venv/bin/python", "train.py"])
    node.proc.write("30/maps", f"7f00-7f01 r-xp 0 08:01 9 {venv}/torch/lib/libtorch_cuda.so\n")
    node.proc.write("31/maps", f"7f00-7f01 r-xp 0 08:01 9 {venv}/jaxlib/libjax.so\n")
    assert [target.notes for target in node.look()] == [("PyTorch 2.6.0",), ()]
