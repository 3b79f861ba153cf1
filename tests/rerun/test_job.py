"""A re-run from the plan to the verdict; the interpreter and ncu are stand-ins, what they say is recorded."""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import replace

import numpy as np
import pytest

from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.capture.lock import Lock, LockTaken, held_by
from gputop_llm.errors import GputopError
from gputop_llm.model.gpu import GpuProcess
from gputop_llm.ncu.model import GemmShape
from gputop_llm.ncu.tool import Ncu
from gputop_llm.rerun import place
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch, refusal
from gputop_llm.rerun.job import Job, make_job, write_whole
from gputop_llm.rerun.outcome import outcome_lines, outcome_object
from gputop_llm.rerun.place import Chosen, Python, gpu_for, python_for
from gputop_llm.rerun.prepare import Prepared
from gputop_llm.rerun.profiled import function_name
from gputop_llm.rerun.run import environment, server_cost
from gputop_llm.rerun.served import Engine
from gputop_llm.sources.procfs import ProcFs
from tests.support import frames
from tests.support.fake_ncu import install
from tests.support.frame_parts import h200
from tests.support.kernels import ALONE

NAME = "nvjet_sm90_tst_64x32_64x16_2x1_v_bz_TNT"
GPU = Chosen(1, "GPU-1", "NVIDIA H200", 100 << 30, serving=False)
LINEAR = Case("linear, 32 tokens", "linear(32, 2048, 8192)", ("linear",), 40 << 20, "it", GemmShape(32, 8192, 2048))


@pytest.fixture(autouse=True)
def lock_name(monkeypatch):
    """A lock of this test's own: others capture on this machine at the same time."""
    name = f"gputop-llm-test/rerun-{os.getpid()}"
    monkeypatch.setattr("gputop_llm.rerun.job.Lock", lambda target: Lock(target, name))
    return name


def hot(name=NAME, grid=(2, 64, 1), busy_pct=60.0):
    return HotLaunch(name, grid, (384, 1, 1), 0, 100, 100, busy_pct, 20.0, 12_700.0, np.zeros(1, np.int64))


def printed(*kernels, error=None):
    rows = [{"name": n, "grid": g, "block": [384, 1, 1], "duration_us": 12.1, "calls": 5} for n, g in kernels]
    cases = [{"case": LINEAR.label, "kernels": rows, "error": error}]
    said = json.dumps({"torch": "2.11.0", "device": "H200", "cases": cases}, indent=1)
    return f"a warning of some library\n{said}\n[W] another one at its end\n"


def python(tmp_path, says, code=0):
    """An interpreter that prints this, whatever it runs; and nothing where it only launches."""
    path = tmp_path / "python"
    (tmp_path / "says").write_text(says)
    path.write_text(f'#!/bin/sh\ncase "$*" in *--bare*) exit 0;; esac\ncat {tmp_path / "says"}\nexit {code}\n')
    path.chmod(0o755)
    return Python(str(path), "a test's")


def job(tmp_path, says, code=0, ncu=None, **changes):
    prepared = Prepared((hot(), hot("other", busy_pct=20.0)), (), (LINEAR,), "bf16", Engine(), "a.json", ())
    made = Job(
        prepared, prepared.script("rerun.py"), tmp_path / "out", python(tmp_path, says, code), GPU, ncu, "no ncu"
    )
    return replace(made, **changes)


def test_what_launches_the_same_kernel_is_profiled_alone_and_judged_by_its_shape(tmp_path):
    fake = install(tmp_path / "bin", {"report": ALONE})
    made = job(tmp_path, printed((NAME, [2, 64, 1])), ncu=Ncu(fake.folder / "ncu"))
    finished = made.run(lambda: ())
    call = fake.calls()[-1]

    assert finished.verdict is not None
    assert finished.verdict.judged
    # The profile's L2 was warm: that is known from the bytes that the shape needs.
    assert finished.groups[0].seen.shape == LINEAR.gemm
    assert call[call.index("--kernel-name") + 1] == f"regex:^{re.escape(NAME)}$"
    assert call[-8:] == [str(made.script), "--bare", "--within", "250", "--times", "3", "--only", LINEAR.label]
    # Kernels that make its inputs or flush L2 may have the same function's name: they stand outside of the range.
    assert call[call.index("--nvtx") + 1 :][:2] == ["--nvtx-include", "rerun/"]
    assert call[call.index("--launch-skip") + 1] == "0"
    assert made.script.read_text() == made.text
    text = "\n".join(outcome_lines(made.prepared, finished.outcome))
    assert "Run again: 60 % of the GPU's time" in text
    assert "12.7     12.1" in text
    assert outcome_object(made.prepared, finished.outcome)["reproduced_pct"] == 60.0


def test_a_match_that_takes_much_longer_than_live_is_said_to_be_doubtful(tmp_path):
    made = job(tmp_path, printed((NAME, [2, 64, 1])).replace("12.1", "60.5"))
    text = " ".join(" ".join(outcome_lines(made.prepared, made.run(lambda: ()).outcome)).split())

    assert "4.8 times the live duration" in text


def test_another_grid_is_no_match_and_is_said_with_what_to_do(tmp_path):
    made = job(tmp_path, printed((NAME, [2, 63, 1])))
    finished = made.run(lambda: ())
    text = " ".join(" ".join(outcome_lines(made.prepared, finished.outcome)).split())

    assert finished.verdict is None
    assert "nothing was launched again" in finished.why
    assert "Run again: 0 % of the GPU's time" in text
    assert "the same kernel ran with grid 2×63×1" in text
    assert "edit that case in the script" in text


def test_nothing_is_run_again_while_somebody_captures(tmp_path, lock_name):
    held = Lock("llama", lock_name)
    with pytest.raises(LockTaken, match=r"cannot capture now: a capture of llama by you"):
        job(tmp_path, printed()).run(lambda: ())
    assert not (tmp_path / "out").exists()

    held.release()
    assert job(tmp_path, printed()).run(lambda: ()).why
    # And lets go of it.
    assert held_by(lock_name) is None


def test_that_time_was_up_is_said_of_a_kernel_that_was_not_launched_again(tmp_path):
    made = job(tmp_path, printed((NAME, [2, 64, 1]), error="TimeoutError: no time was left for it"))
    text = " ".join(" ".join(outcome_lines(made.prepared, made.run(lambda: ()).outcome)).split())

    assert "time was up before the last 1 operations were tried: run the script by hand" in text


def test_what_was_launched_again_is_told_also_where_ncu_cannot_profile_it(tmp_path):
    finished = job(tmp_path, printed((NAME, [2, 64, 1]))).run(lambda: ())

    assert finished.outcome.matches[0].best is not None
    assert (finished.verdict, finished.why) == (None, "no ncu")


def test_the_servers_rate_is_watched_before_meanwhile_and_after(tmp_path, monkeypatch):
    monkeypatch.setattr("gputop_llm.rerun.job.BESIDE_S", 0.2)
    seen = []

    def samples():
        now = time.monotonic_ns()
        # What is older is forgotten, as a session's history does.
        seen[:] = [one for one in seen if now - one.mono_ns < 3 * 10**8]
        if not seen or now - seen[-1].mono_ns > 10**7:
            seen.append(EngineSample(now, 0.0, 0, generation_tokens=now / 1e7))
        return seen

    told = []
    finished = job(tmp_path, printed((NAME, [2, 64, 1])), gpu=replace(GPU, serving=True)).run(samples, told.append)
    cost = finished.outcome.cost

    assert [cost.before, cost.during, cost.after] == pytest.approx([100.0] * 3)
    assert told == ["watching the server's rate before", "running 1 operations", "watching the server's rate after"]
    lines = outcome_lines(job(tmp_path, "").prepared, finished.outcome)
    assert any("100 tokens/s before, 100 meanwhile (+0 %), 100 after" in line for line in lines)


@pytest.mark.parametrize(
    ("says", "code", "sentence"),
    [
        ("boom\nnot enough memory on cuda:0: 3 MiB free", 1, "re-run failed: not enough memory on cuda:0: 3 MiB free"),
        ("no JSON", 0, "cannot read what the script printed: no JSON"),
        ("", 0, "it said nothing"),
    ],
)
def test_a_script_that_fails_is_told_in_its_own_words(tmp_path, says, code, sentence):
    with pytest.raises(GputopError, match=re.escape(sentence)):
        job(tmp_path, says, code).run(lambda: ())


def test_the_plan_says_where_by_what_and_what_it_costs_a_server(tmp_path):
    facts = dict(job(tmp_path, "", gpu=replace(GPU, serving=True)).facts())

    assert "1 operations for 2 kernels" in facts["what"]
    assert "100 GiB free" in facts["on"]
    assert "under 15 %" in facts["on"]
    assert facts["then"] == "no ncu"
    assert "hardly those of this GPU" not in facts["on"]
    other = job(tmp_path, "")
    other = replace(other, prepared=replace(other.prepared, gpu="NVIDIA A100"))
    assert "the capture is of a NVIDIA A100" in dict(other.facts())["on"]


def test_a_collective_is_refused_with_the_reason():
    why, todo = refusal(hot("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"))

    assert "waits for the other ranks" in why
    assert "arrives late" in todo
    assert refusal(hot()) is None
    assert refusal(hot(grid=None)) is not None
    refused = Prepared((), ((hot("nccl"), why, todo),), (), "bf16", Engine(), "a.json", ())
    with pytest.raises(GputopError, match="nccl can't be run again: it is a collective"):
        make_job(refused, frames.one_gpu_loaded(), place)


def test_never_on_a_gpu_without_room_and_beside_a_server_only_where_there_is_no_other():
    gpus = [
        replace(h200(n), index=n, mem_total_bytes=140 << 30, mem_used_bytes=u << 30, processes=())
        for n, u in ((0, 60), (1, 100))
    ]

    assert gpu_for(gpus, {0}, 4 << 30).index == 1
    assert gpu_for(gpus, {0, 1}, 4 << 30).index == 0
    assert gpu_for(gpus, set(), 4 << 30).index == 0
    assert gpu_for(gpus, {0}, 4 << 30, asked=0).serving
    # Training is no engine that is known, and grows too.
    trained = replace(gpus[0], processes=(GpuProcess(7, "compute", None, None, None),))
    assert gpu_for([trained, gpus[1]], set(), 4 << 30).index == 1
    assert gpu_for([trained], set(), 4 << 30).serving
    # Beside a server a GiB is left to it.
    with pytest.raises(GputopError, match=r"GPU 0 has 80\.0 GiB free, GPU 1 has 40\.0 GiB free"):
        gpu_for(gpus, {0, 1}, 80 << 30)
    with pytest.raises(GputopError, match="no GPU has room"):
        gpu_for(gpus, {0}, 41 << 30, asked=1)
    with pytest.raises(GputopError, match="GPU 7"):
        gpu_for(gpus, {0}, 1 << 30, asked=7)
    with pytest.raises(GputopError, match="no GPU can be seen"):
        gpu_for([replace(gpus[0], mem_used_bytes=None)], set(), 1)


def engine(tmp_path, maps, namespace="self"):
    """A /proc with one process of an engine."""
    for pid in ("self", "77"):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/mnt").touch()
    if namespace == "self":
        os.link(tmp_path / "proc/self/ns/mnt", tmp_path / "proc/77/ns/mnt")
    else:
        (tmp_path / "proc/77/ns/mnt").touch()
    (tmp_path / "proc/77/maps").write_text(maps)
    return ProcFs(str(tmp_path / "proc"))


def test_the_engines_own_python_is_taken_where_it_is_this_users(tmp_path):
    library = tmp_path / "venv/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / "venv/bin").mkdir()
    (tmp_path / "venv/bin/python3").touch(0o755)
    found, why = python_for(77, engine(tmp_path, f"7f00-7f01 r-xp 0 00:00 1  {library}\n"))

    assert (found, why) == (Python(str(tmp_path / "venv/bin/python3"), "the engine's own, of PID 77"), "")


@pytest.mark.parametrize(
    ("maps", "namespace", "why"),
    [("", "self", "no torch loaded"), ("", "other", "runs in a container")],
)
def test_why_the_engines_python_is_not_taken_is_said(tmp_path, monkeypatch, maps, namespace, why):
    monkeypatch.setattr(place.importlib.util, "find_spec", lambda _name: None)
    found, said = python_for(77, engine(tmp_path, maps, namespace))

    assert found is None
    assert why in said


def test_the_scripts_process_sees_one_gpu_and_nothing_of_this_program():
    own = {"PATH": "/bin", "GPUTOP_LLM_API_KEY": "planted", "PYTHONPATH": "/x", "LD_PRELOAD": "y", "HOME": "/root"}

    assert environment(GPU, own) == {
        "PATH": "/bin",
        "HOME": "/root",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        # Under MPS a fault of it would end the server's work.
        "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent",
    }


def test_what_it_cost_the_server_is_from_its_own_counter_of_tokens():
    tokens = [0, 100, 200, 280, 360, 460, 560]
    samples = [EngineSample(n * 10**9, 0.0, 0, generation_tokens=float(t)) for n, t in enumerate(tokens)]
    cost = server_cost(samples, 2 * 10**9, 4 * 10**9)

    assert (cost.before, cost.during, cost.after) == (100.0, 80.0, 100.0)
    assert server_cost([], 0, 1).during is None
    assert server_cost([samples[3], replace(samples[1], mono_ns=9 * 10**9)], 10**10, 2 * 10**10).before is None


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (NAME, NAME),
        ("void cutlass::device_kernel<flash::A<1>>(flash::A<1>::Params)", "device_kernel"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(int*)", "CatArrayBatchedCopy"),
        ("_gumbel_sample_kernel", "_gumbel_sample_kernel"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, E<int, F<a>> >(E<int, F<a>>)", "kernel"),
    ],
)
def test_ncu_filters_by_the_functions_bare_name(name, function):
    assert function_name(name) == function


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(GputopError, match=r"cannot write .*No such file"):
        write_whole(tmp_path / "none" / "x.py", "")
    assert os.listdir(tmp_path) == []


def test_a_device_or_pipe_is_not_replaced_by_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GputopError, match="not a regular file"):
        write_whole(tmp_path / "pipe", "")
    assert (tmp_path / "pipe").is_fifo()
