"""Scripts of `rerun` are sound: a real torch runs each case once, on the CPU, from operators that it recorded."""

from __future__ import annotations

import json
import subprocess
import textwrap

import numpy as np
import pytest

from gputop_llm.modelconfig import read_shape
from gputop_llm.modelmath import Parallel
from gputop_llm.rerun import candidates, from_ops
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.script import script
from gputop_llm.rerun.seen import Seen
from gputop_llm.timeline.kineto_ops import operators
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.kernel_names import Family
from tests.support.environment import ORIGINAL

pytestmark = pytest.mark.real

STEP = """
    import sys, torch
    import torch.nn.functional as F
    t = lambda *shape: torch.randn(*shape, dtype=torch.bfloat16)
    x, weight, table, norm = t(8, 64), t(96, 64), t(500, 64), t(64)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as recorded:
        y = F.embedding(torch.arange(8), table) + x
        y = F.rms_norm(y, (64,), norm) * torch.rsqrt(y.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(y.dtype)
        q, k, v = F.linear(y, weight)[:, :96].view(8, 3, 2, 16).transpose(0, 2).unbind(1)
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True).flatten(2)
        y = torch.cat((F.silu(x) * x, F.gelu(x)), dim=-1).contiguous()
        logits = torch.baddbmm(t(2, 8, 8), t(2, 8, 64), t(2, 64, 8)).float()
        torch.softmax(logits, dim=-1).argmax(dim=-1), torch.topk(logits, 3, dim=-1), torch.sort(logits, descending=True)
        torch.addmm(t(96), x, weight.t()), x.clamp_(-1.0, 1.0), torch.where(x > 0, x, -x), x.sum(dim=[0, 1])
    recorded.export_chrome_trace(sys.argv[1])
"""
CONFIG = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 1000, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_every_operator_that_torch_recorded_and_every_operation_of_a_model_runs(engine_venv, tmp_path):
    python = str(engine_venv / "bin" / "python")
    trace = tmp_path / "step.json"
    subprocess.run([python, "-c", textwrap.dedent(STEP), str(trace)], env=ORIGINAL, check=True, timeout=120)
    timeline = read_capture([trace])
    table = timeline.cpu_ops
    wanted = {(timeline.name(n), e) for n, e in zip(table.name_id.tolist(), table.external_id.tolist(), strict=True)}
    made = [from_ops.case_of(operator) for operator in operators([trace], wanted).values()]
    recorded = {case.label: case for case in made if case is not None}
    families = [Family.GEMM, Family.ATTENTION, Family.SAMPLING]
    derived = candidates.of_families(families, read_shape(CONFIG), Parallel(), Seen((4,), (4,), "", kv_tokens=32))
    plain = [case for case in derived if case.needs != ("paged_attention",)]
    hot = HotLaunch("gemm", (1, 1, 1), (1, 1, 1), 0, 1, 0, 1.0, 1.0, 1.0, np.zeros(1, np.int64))
    again = tmp_path / "again.py"
    again.write_text(script([hot], [*recorded.values(), *plain], trace.name, again.name))
    done = subprocess.run(
        [python, str(again), "--dry"], env=ORIGINAL, check=True, timeout=120, stdout=subprocess.PIPE, text=True
    )
    failed = {case["case"]: case["error"] for case in json.loads(done.stdout)["cases"] if case["error"]}

    assert failed == {}
    names = {label.split()[0] for label in recorded}
    assert names >= {"aten::mm", "aten::addmm", "aten::mul", "aten::mean", "aten::argmax", "aten::silu", "aten::rsqrt"}
    assert len(plain) > 8
