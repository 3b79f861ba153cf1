"""`gputop-llm kernel` with a real ncu, on kernels whose limit is known.

Run with `pytest -m gpu tests/gpu/test_ncu_gpu.py`; needs nvcc and ncu on the PATH, and the right to read GPU counters.
The source is built without a GPU; that the verdicts come out so was never tried on one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gputop_llm.cli import main

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("known_causes.cu")
#: Kernel, whether it needs the full set, its class, a finding that must be there, and one that must not.
KNOWN = [
    ("copy_dram", False, "DRAM-bound", "kernel-dram-bound", "kernel-small-grid"),
    ("read_l2", False, "L2-bound", "kernel-l2-bound", "kernel-dram-bound"),
    ("fma_chains", False, "compute-bound", "kernel-compute-bound", "kernel-spills"),
    ("copy_few_blocks", False, "latency-bound", "kernel-small-grid", "kernel-dram-bound"),
    ("spilling", True, None, "kernel-spills", "kernel-bank-conflicts"),
    ("strided", True, None, "kernel-uncoalesced", "kernel-spills"),
    ("bank_conflicts", True, None, "kernel-bank-conflicts", "kernel-uncoalesced"),
    ("gemm_bf16_plain", True, None, "kernel-tensor-idle", "kernel-spills"),
    ("gemm_bf16_tensor", True, None, None, "kernel-tensor-idle"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Built once, for the GPU that is here."""
    for tool in ("nvcc", "ncu"):
        assert shutil.which(tool), f"{tool} is needed on the PATH"
    path = tmp_path_factory.mktemp("known") / "known_causes"
    subprocess.run(["nvcc", "-std=c++17", "-O3", "-arch=native", "-lineinfo", "-o", path, SOURCE], check=True)
    return path


def profiled(capsys, program, name, *options):
    output = program.parent / f"{name}.ncu-rep"
    code = main(["kernel", "--json", "-k", name, "--output", str(output), *options, "--", str(program), name])
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert said["counters"], err
    return code, said


@pytest.mark.parametrize(("name", "full", "kind", "there", "not_there"), KNOWN, ids=[one[0] for one in KNOWN])
def test_the_known_cause_is_found_and_no_other(capsys, program, name, full, kind, there, not_there):
    code, said = profiled(capsys, program, name, *(["--full"] if full else []))
    (kernel,) = said["kernels"]
    ids = [finding["id"] for finding in said["verdict"]["findings"]]

    assert code == 0
    assert kernel["launches"] == 5
    assert kind is None or kernel["class"] == kind
    assert there is None or there in ids
    assert not_there not in ids


def test_the_same_program_twice_is_no_change(capsys, program):
    first, second = (profiled(capsys, program, "copy_dram")[1]["kernels"][0] for _ in range(2))

    assert second["median_us"] == pytest.approx(first["median_us"], rel=0.05)
    assert second["registers"] == first["registers"]
