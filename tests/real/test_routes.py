"""Captures of real processes: by torch.profiler from within; of vLLM as it serves, by its own endpoint and our client.

There is no GPU here: our client records what a CUPTI that is none gives it, inside the real engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm import node
from gputop_llm.capture.inject import mapped_clients
from gputop_llm.capture.plan import Plan, make_plan
from gputop_llm.cli import main
from gputop_llm.config import Config
from gputop_llm.model import Gpu, GpuNode, GpuProcess, Target, TargetProcess
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.nvml import NvmlSource
from gputop_llm.timeline.model import Kind
from gputop_llm.timeline.read import read_capture
from tests.capture.native.hosting import built
from tests.capture.support import capture, last_of, use_patched_worker
from tests.real.load import run_load
from tests.support.captures import CAPTURES
from tests.support.fake_nvml import FakeNvml
from tests.support.real_processes import until

pytestmark = pytest.mark.real

TRACES = Path("/tmp/gputop-llm-test-traces")
CONFIG = {"profiler": "torch", "torch_profiler_dir": str(TRACES), "torch_profiler_with_stack": False}


@pytest.fixture(autouse=True)
def _own_worker(monkeypatch, tmp_path):
    use_patched_worker(monkeypatch, tmp_path)


@pytest.fixture
def captures(tmp_path):
    return tmp_path / "captures"


def plan_of(pid, captures, *, route, url=None, argv=(), seconds=0.15, steps=None, **options) -> Plan:
    """A plan for one process; there is no GPU here that it could hold, so it is said to."""
    target = Target(
        key=f"vllm:{pid}:0",
        engine="vllm",
        root_pid=pid,
        model="tiny",
        version="0.32.0",
        argv=argv,
        urls=() if url is None else (url,),
        processes=(TargetProcess(pid, 1, "worker", "worker", None, (0,), "inferred"),),
    )
    return replace(make_plan(target, captures, seconds=seconds, route=route, options=options), steps=steps)


def trace_of(ended):
    (path,) = Path(ended.path).glob("*.trace.json.gz")
    return read_capture([path])


@contextlib.contextmanager
def busy_torch(engine_venv, *words, **environ):
    """A busy PyTorch process."""
    command = [engine_venv / "bin/python", Path(__file__).with_name("busy_torch.py"), *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ})
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def goes_on(process):
    before = int(process.stdout.readline().split()[0])
    return until(lambda: int(process.stdout.readline().split()[0]) > before)


def test_a_torch_process_of_no_engine_is_recognised_with_its_version(engine_venv):
    (installed,) = engine_venv.glob("lib/python3*/site-packages/torch-*.dist-info")
    with busy_torch(engine_venv) as process:
        node = GpuNode((Gpu(0, processes=(GpuProcess(process.pid, "compute", 1 << 30, None, None),)),))
        found = DiscoverySource(lambda: node, lambda url: False).poll().targets
    (target,) = (one for one in found if one.root_pid == process.pid)

    assert (target.engine, target.gpus, target.attachable) == ("cuda", (0,), None)
    assert target.notes == (f"PyTorch {installed.name.removesuffix('.dist-info').partition('-')[2]}",)


def test_a_busy_torch_process_is_recorded_with_all_its_threads(engine_venv, captures):
    with busy_torch(engine_venv) as process:
        with capture(plan_of(process.pid, captures, route="kineto-agent")) as run:
            ended = last_of(run)

        assert (ended.outcome, ended.why) == ("done", "")
        ops = trace_of(ended).cpu_ops
        assert len(ops) > 100
        assert len(set(ops.thread)) == 2, "both of its threads, and not ours"
        assert (ops.shapes_id >= 0).any()
        assert goes_on(process)
        assert not list(Path("/tmp").glob(f"gputop-llm-trace-{process.pid}-*"))


def test_where_torch_profiler_is_at_work_it_is_left_alone(engine_venv, captures):
    with busy_torch(engine_venv, "profiled") as process:
        with capture(plan_of(process.pid, captures, route="kineto-agent")) as run:
            ended = last_of(run)

        assert ended.outcome == "refused"
        assert "torch.profiler is collecting in the process already" in ended.why
        assert goes_on(process)


def test_a_torch_process_that_asks_for_orders_is_recorded_on_demand(engine_venv, captures):
    with busy_torch(engine_venv, KINETO_USE_DAEMON="1") as process:
        with capture(plan_of(process.pid, captures, route="kineto-daemon")) as run:
            ended = last_of(run)

        assert (ended.outcome, ended.why) == ("done", "")
        ops = trace_of(ended).cpu_ops
        assert len(set(ops.thread)) == 2
        assert (ops.shapes_id >= 0).any()
        assert goes_on(process)
        assert not list(Path("/tmp").glob(f"gputop-llm-*-r0_{process.pid}.json"))


@contextlib.contextmanager
def load(server):
    """Requests that go on while the block runs; gives the errors that their clients met."""
    errors: list[str] = []
    over = threading.Event()

    def work():
        while not over.is_set():
            errors.extend(run_load(server.port, requests=24, concurrency=4).errors)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield errors
    finally:
        over.set()
        thread.join()


def worker_pid(server):
    """The process that computes."""
    found = [pid for pid, line in server.pids().items() if line.startswith("VLLM::Worker")]
    return found[0] if found else next(pid for pid, line in server.pids().items() if "EngineCore" in line)


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    """Our client, and a CUPTI for it."""
    return built(tmp_path_factory.getbasetemp() / "native")


@pytest.fixture
def profiled(vllm_slot, native):
    """vLLM with its profiler configured, so that its endpoint is there, and a CUPTI in the process that computes."""
    TRACES.mkdir(mode=0o700, exist_ok=True)
    environ = {"PYTHONPATH": str(Path(__file__).with_name("with_cupti")), "FAKE_CUPTI": str(native.cupti)}
    return vllm_slot.get(
        model="tiny", as_module=True, extra_args=("--profiler-config", json.dumps(CONFIG)), environ=environ
    )


def serving_plan(server, captures, **how):
    argv = ("vllm", "serve", "tiny", "--profiler-config", json.dumps(CONFIG))
    return plan_of(worker_pid(server), captures, url=f"{server.url}/metrics", argv=argv, **how)


def test_vllm_records_itself_while_it_serves(profiled, captures):
    plan = serving_plan(profiled, captures, route="engine-endpoint", steps=6, seconds=5.0)
    with load(profiled) as errors, capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("done", "")
    assert errors == []
    trace = trace_of(ended)
    assert len(trace.cpu_ops) > 100
    steps = {trace.name(one) for one in trace.ranges.name_id if trace.name(one).startswith("execute_")}
    assert steps, "vLLM's own annotations of its steps"
    assert not [path for path in TRACES.iterdir() if path.name.startswith("gputop-llm-")], "ours are gone"


def test_vllm_is_recorded_from_within_while_it_serves(profiled, captures):
    plan = serving_plan(profiled, captures, route="kineto-agent")
    with load(profiled) as errors, capture(plan) as run:
        ended = last_of(run)

    assert (ended.outcome, ended.why) == ("done", "")
    assert errors == []
    assert len(trace_of(ended).cpu_ops) > 100
    assert profiled.is_healthy()


def holds(pid):
    """What a process has open but sockets, which come and go with requests, and its threads by name."""
    files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    threads = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return sorted(name for name in files if not name.startswith("socket:")), sorted(threads)


def test_our_own_client_records_vllm_while_it_serves_again_and_again(profiled, native, captures, capsys, monkeypatch):
    pid = worker_pid(profiled)
    nvml = FakeNvml.from_h200(CAPTURES / "h200/nvml_idle.json")
    nvml.set("ComputeRunningProcesses", [{"pid": pid, "usedGpuMemory": 1 << 30}])
    sources = replace(node.real_sources(Config()), gpus=lambda: NvmlSource(nvml))
    monkeypatch.setattr(node, "real_sources", lambda config: sources)
    monkeypatch.setenv("GPUTOP_TEST_LIBRARY", str(native.client))
    with load(profiled) as errors:
        before, mapped = holds(pid), set(mapped_clients(pid))
        of_it = ("--pid", str(profiled.root_pid), "--output", str(captures))
        code = main(["capture", *of_it, "--period", "0.25", "--seconds", "0.3", "--yes", "--json"])
        said = capsys.readouterr()
        assert code in (0, 4), said.err
        told = json.loads(said.out)
        assert (told["outcome"], bool(told["verdict"]["headline"])) == ("done", True)
        with capture(plan_of(pid, captures, route="native", seconds=0.2)) as run:
            ended = last_of(run)
        assert (ended.outcome, ended.why) == ("done", "")
        assert len(set(mapped_clients(pid)) - mapped) == 1, "its mapping stays, once"
        assert until(lambda: holds(pid) == before), (holds(pid), before)
    assert errors == []
    assert run_load(profiled.port, requests=4, concurrency=2).errors == []
    for path, reused in ((Path(told["path"]), False), (Path(ended.path), True)):
        (rank,) = json.loads((path / "capture.json").read_text())["ranks"]
        assert (rank["reached_by"], rank["reused"], rank["whole"], rank["dropped"]) == ("injected", reused, True, 0)
        timeline = read_capture([path / rank["file"]])
        kernels = timeline.ops.take(timeline.ops.kind == Kind.KERNEL)
        assert len(kernels) > 50
        assert {timeline.name(one) for one in kernels.name_id} == {"decode(float*, int)", "prefill(float*, int)"}
