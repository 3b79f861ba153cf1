"""A decode-like loop recorded by Kineto is launched again from its record alone, on this machine's GPU.

Run with `pytest -m gpu tests/gpu/test_rerun_gpu.py`, by a Python that has torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from gputop_llm.rerun.match import launched_of, matches, reproduced_pct
from gputop_llm.rerun.prepare import prepare

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
        with torch.profiler.profile(record_shapes=True) as recorded:
            for _ in range(20):
                step(x)
            torch.cuda.synchronize()
    recorded.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("trace") / "decode.json"
    subprocess.run([sys.executable, "-c", textwrap.dedent(LOOP), str(path)], check=True, timeout=300)
    return path


def run_again(trace, *arguments):
    prepared = prepare([trace])
    script = trace.parent / "again.py"
    script.write_text(prepared.script(script.name))
    done = subprocess.run(
        [sys.executable, str(script), *arguments], check=True, timeout=300, stdout=subprocess.PIPE, text=True
    )
    return prepared, json.loads(done.stdout)


def test_at_least_half_of_the_gpus_time_is_launched_again_by_the_same_kernels(trace):
    prepared, told = run_again(trace)
    launched, errors = launched_of(told)
    found = matches(prepared.hot, launched)

    assert errors == {}
    assert reproduced_pct(found) >= 50.0
    assert found[0].best is not None
    # Cold weights are slower, and never by much more than DRAM is than L2.
    assert 0.5 < found[0].best.duration_us / (found[0].hot.median_ns / 1e3) < 3.0


def test_a_warm_l2_is_not_slower_than_a_cold_one(trace):
    _, cold = run_again(trace, "--times", "20")
    prepared, warm = run_again(trace, "--times", "20", "--warm")
    hottest = [matches(prepared.hot, launched_of(told)[0])[0].best for told in (cold, warm)]

    assert hottest[1].duration_us <= hottest[0].duration_us * 1.1
