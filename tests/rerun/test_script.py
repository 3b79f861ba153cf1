"""What the written script does, run here with a torch that only keeps time and launches nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import types
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from gputop_llm.errors import GputopError
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.match import launched_of
from gputop_llm.rerun.script import script

HOT = HotLaunch("gemm", (2, 64, 1), (384, 1, 1), 0, 1, 0, 50.0, 10.0, 12_000.0, np.zeros(1, np.int64))
LINEAR = Case("linear, 32 tokens", "linear(32, 2048, 8192)", ("linear",), 40 << 20, "it")


class FakeTorch(types.ModuleType):
    """Launches by `launch`, each of 10 µs after its call; writes them as torch.profiler does."""

    def __init__(self):
        super().__init__("torch")
        self.bfloat16 = self.float32 = None
        self.now, self.events = 0.0, []
        self.cuda = types.SimpleNamespace(synchronize=lambda: None)
        activity = types.SimpleNamespace(CPU=0, CUDA=1)
        self.profiler = types.SimpleNamespace(
            ProfilerActivity=activity, profile=self.profile, record_function=self.record_function
        )

    def launch(self, name, grid, duration_us, category="cuda_runtime"):
        number = len(self.events)
        at = {"ts": self.now, "dur": 1.0, "args": {"correlation": number}}
        self.events.append({"ph": "X", "cat": category, "name": "cudaLaunchKernel", **at})
        args = {"correlation": number, "grid": grid, "block": [384, 1, 1]}
        self.events.append(
            {"ph": "X", "cat": "kernel", "name": name, "ts": self.now + 10, "dur": duration_us, "args": args}
        )
        self.now += 2.0

    @contextmanager
    def record_function(self, name):
        began = self.now
        yield
        self.events.append(
            {"ph": "X", "cat": "user_annotation", "name": name, "ts": began, "dur": self.now - began, "args": {}}
        )
        self.now += 1.0

    @contextmanager
    def profile(self, activities):
        self.events.clear()
        # As Kineto writes them: neither has arguments.
        self.events.append({"ph": "X", "cat": "overhead", "name": "Buffer Flush", "ts": 0.0, "dur": 1.0})
        self.events.append({"ph": "M", "name": "process_name"})
        yield types.SimpleNamespace(export_chrome_trace=self.export)

    def export(self, path):
        with open(path, "w") as file:
            json.dump({"traceEvents": self.events}, file)


@pytest.fixture
def fake(monkeypatch):
    made = FakeTorch()
    monkeypatch.setitem(__import__("sys").modules, "torch", made)
    space = {"__name__": "again", "__doc__": ""}
    exec(compile(script([HOT], [LINEAR], "a.json", "again.py"), "again.py", "exec"), space)
    return made, space


def test_only_what_the_operation_launched_is_told_and_by_its_median(fake):
    torch, space = fake
    durations = iter([9.0, 9.0, 9.0, 12.0, 11.0, 40.0])

    def step():
        torch.launch("gemm", [2, 64, 1], next(durations), "cuda_driver")
        torch.launch("reduce", [64, 1, 1], 2.0)

    found = space["launched"](step, 3, lambda: torch.launch("sum", [8, 1, 1], 30.0))
    told, errors = launched_of({"cases": [{"case": "it", "kernels": found, "error": None}]})

    assert errors == {}
    assert [(one.name, one.grid, one.duration_us, one.calls) for one in told] == [
        ("gemm", (2, 64, 1), 12.0, 3),
        ("reduce", (64, 1, 1), 2.0, 3),
    ]


def test_no_case_takes_more_memory_than_was_agreed_to_also_of_what_torch_keeps(fake, monkeypatch, capsys):
    torch, space = fake
    called = []
    torch.manual_seed, torch.__version__ = called.append, "2.11.0"
    torch.cuda.mem_get_info = lambda _device: (100 << 30, 140 << 30)
    torch.cuda.set_per_process_memory_fraction = lambda fraction, _device: called.append(fraction)
    torch.cuda.get_device_properties = lambda _device: types.SimpleNamespace(name="H200", L2_cache_size=60 << 20)
    torch.zeros = lambda *_, **__: called.append("allocated")
    space["CASES"].clear()
    monkeypatch.setattr("sys.argv", ["again.py"])
    space["main"]()

    assert json.loads(capsys.readouterr().out)["cases"] == []
    assert called == [0, pytest.approx(((1 << 30) + 3 * LINEAR.bytes) / (140 << 30)), "allocated"]


def test_a_gpu_that_cannot_be_used_is_told_in_one_line(fake, monkeypatch):
    torch, space = fake
    torch.manual_seed, torch.__version__ = lambda _: None, "2.11.0"

    def busy(_device):
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy\nCompile with `TORCH_USE_CUDA_DSA` to …\n")

    torch.cuda.mem_get_info = busy
    monkeypatch.setattr("sys.argv", ["again.py"])
    with pytest.raises(SystemExit, match=r"^cannot use cuda:0: CUDA error: CUDA-capable device\(s\) is/are busy$"):
        space["main"]()


def test_what_was_launched_in_time_is_told_also_where_the_last_cases_got_no_turn(fake, monkeypatch, capsys):
    torch, space = fake
    torch.manual_seed, torch.__version__, torch.no_grad = lambda _: None, "2.11.0", nullcontext
    space["CASES"].clear()
    space["CASES"].update(first=lambda: lambda: None, last=lambda: lambda: None)
    clock = iter([0.0, 10.0, 80.0])
    space["time"] = types.SimpleNamespace(monotonic=lambda: next(clock))
    space["signal"] = types.SimpleNamespace(alarm=lambda _: None)
    monkeypatch.setattr("sys.argv", ["again.py", "--dry", "--within", "100"])
    space["main"]()

    errors = {case["case"]: case["error"] for case in json.loads(capsys.readouterr().out)["cases"]}
    assert errors == {"first": None, "last": "TimeoutError: no time was left for it"}


def test_the_ncu_that_it_names_leaves_the_clocks_of_a_gpu_that_others_use():
    (line,) = (line for line in script([HOT], [LINEAR], "a.json", "again.py").splitlines() if "  ncu " in line)

    assert "--clock-control none" in line


def test_a_script_that_hangs_ends_itself_also_when_nobody_is_left_to_end_it(tmp_path):
    (tmp_path / "torch.py").write_text("bfloat16 = None\ndef manual_seed(_):\n    while True:\n        pass\n")
    path = tmp_path / "again.py"
    path.write_text(script([HOT], [LINEAR], "a.json", path.name))
    ended = subprocess.run([sys.executable, str(path), "--within", "1"], timeout=30, check=False)

    assert ended.returncode == -signal.SIGALRM


def test_there_is_nothing_to_write_without_an_operation():
    with pytest.raises(GputopError, match="no operation is known"):
        script([HOT], [], "a.json", "again.py")
