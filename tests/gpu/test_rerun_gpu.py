"""A decode-like loop recorded by Kineto is launched again from its record alone, on this machine's GPU.

Run with `pytest -m gpu tests/gpu/test_rerun_gpu.py`, where this Python or python3 has torch: else it is skipped. Three
minutes at most. Records, scripts, what they said and the report are kept in the folder that GPUTOP_TEST_RECORDS names.

Run on an H200 once (driver 580.159.04, PyTorch 2.11, ncu 2025.3.1; 38 s): all passed. What was kept of that run is read
by tests/rerun/test_recorded_reruns.py.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gputop_llm.cli import main
from gputop_llm.rerun import job
from gputop_llm.rerun.match import launched_of, matches, reproduced_pct
from gputop_llm.rerun.place import Python
from gputop_llm.rerun.prepare import prepare
from tests.support.decode_loop import CONFIG
from tests.support.environment import ORIGINAL

pytestmark = pytest.mark.gpu

LOOP = """
    import sys, torch
    import torch.nn.functional as F
    hidden, inner, layers, batch = 2048, 8192, 4, 32
    t = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 64
    weights = [(t(3072, hidden), t(hidden, hidden), t(2 * inner, hidden), t(hidden, inner)) for _ in range(layers)]
    head, x = t(32000, hidden), t(batch, hidden)
    def step(x):
        for qkv, out, up, down in weights:
            x = x + F.linear(F.linear(x, qkv)[:, :hidden].contiguous(), out)
            gate, value = F.linear(x, up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * value, down)
        return F.linear(x, head).argmax(dim=-1)
    with torch.no_grad():
        for _ in range(3):
            step(x)
        torch.cuda.synchronize()
        if sys.argv[2] == "graph":
            graph, eager = torch.cuda.CUDAGraph(), step
            with torch.cuda.graph(graph):
                eager(x)
            step = lambda _: graph.replay()
            step(x)
            torch.cuda.synchronize()
        with torch.profiler.profile(record_shapes=True) as recorded:
            for _ in range(20):
                step(x)
            torch.cuda.synchronize()
    recorded.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def python():
    """One that has torch: often it isn't the one that this program lies in."""
    for path in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if (
            path
            and not subprocess.run(
                [path, "-c", "import torch; torch.zeros(1, device='cuda')"], check=False, stderr=subprocess.DEVNULL
            ).returncode
        ):
            return path
    return pytest.skip("neither this Python nor python3 has a torch that reaches a GPU")


def recorded(folder, python, kind):
    path = folder / f"decode-{kind}.json"
    subprocess.run([python, "-c", textwrap.dedent(LOOP), str(path), kind], check=True, timeout=300)
    keep(f"{path.name}.gz", gzip.compress(path.read_bytes()))
    return path


@pytest.fixture(scope="module")
def trace(tmp_path_factory, python):
    return recorded(tmp_path_factory.mktemp("trace"), python, "eager")


def keep(name, data):
    if folder := ORIGINAL.get("GPUTOP_TEST_RECORDS"):
        os.makedirs(folder, exist_ok=True)
        (Path(folder) / name).write_bytes(data)


def run_again(python, trace, *arguments, config=None):
    prepared = prepare([trace], config_file=config)
    script = trace.parent / f"again-{trace.stem}.py"
    script.write_text(prepared.script(script.name))
    keep(script.name, script.read_bytes())
    done = subprocess.run([python, str(script), *arguments], check=True, timeout=300, stdout=subprocess.PIPE, text=True)
    keep(f"{script.name}{''.join(arguments)}.said.json", done.stdout.encode())
    return prepared, json.loads(done.stdout[done.stdout.index("{\n") :])


def test_at_least_half_of_the_gpus_time_is_launched_again_by_the_same_kernels(python, trace):
    prepared, told = run_again(python, trace)
    launched, errors = launched_of(told)
    found = matches(prepared.hot, launched)

    assert errors == {}
    assert reproduced_pct(found) >= 50.0
    assert found[0].best is not None
    # Cold weights are slower, and never by much more than DRAM is than L2.
    assert 0.5 < found[0].best.duration_us / (found[0].hot.median_ns / 1e3) < 3.0


def test_kernels_of_a_graph_replay_are_launched_again_from_the_models_config_alone(tmp_path, python):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG))
    prepared, told = run_again(python, recorded(tmp_path, python, "graph"), config=config)
    found = matches(prepared.hot, launched_of(told)[0])

    assert prepared.hot[0].by_graph == prepared.hot[0].calls
    assert {case.needs[0] for case in prepared.cases} >= {"linear"}
    assert reproduced_pct(found) >= 50.0, [(one.hot.short, one.hot.grid, one.best) for one in found]


def test_a_warm_l2_is_not_slower_than_a_cold_one(python, trace):
    _, cold = run_again(python, trace, "--times", "20")
    prepared, warm = run_again(python, trace, "--times", "20", "--warm")
    hottest = [matches(prepared.hot, launched_of(told)[0])[0].best for told in (cold, warm)]

    assert hottest[1].duration_us <= hottest[0].duration_us * 1.1


def test_the_hottest_kernel_is_profiled_alone_from_the_record_to_the_verdict(capsys, monkeypatch, python, trace):
    monkeypatch.setattr(job, "python_for", lambda _pid: (Python(python, "a test's"), ""))
    code = main(["rerun", str(trace), "--yes", "--json"])
    out, err = capsys.readouterr()
    assert out, err
    told = json.loads(out)
    keep("rerun.json", out.encode())

    assert told["kernels"][0]["again"] is not None, out
    if told["report"] is None:
        pytest.skip(f"not profiled here: {told['not_profiled']}")
    keep("rerun.ncu-rep.xz", lzma.compress(Path(told["report"]).read_bytes(), preset=9))
    # One of the three would be missing if a fill or the flush of L2 had been profiled in its place.
    assert told["verdict"]["tables"]["launches"][0]["launches"] == 3
    assert code == 0, out
