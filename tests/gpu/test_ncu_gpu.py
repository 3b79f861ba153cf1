"""`gputop-llm kernel` with a real ncu, on kernels whose limit is known.

Run with `pytest -m gpu tests/gpu/test_ncu_gpu.py`; needs nvcc, ncu, and the right to read GPU counters: without one of
them it is skipped, with the reason. Two minutes. Reports are kept in the folder that GPUTOP_TEST_RECORDS names.
The source is built without a GPU; that the verdicts come out so was never tried on one.
"""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
from glob import glob
from pathlib import Path

import pytest

from gputop_llm.cli import main
from gputop_llm.ncu.tool import NoNcu, find_ncu
from tests.support.environment import ORIGINAL

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("known_causes.cu")
#: A fixture's size; `--full` of two launches packs to less.
MOST_BYTES = 300_000
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
    try:
        find_ncu()
    except NoNcu as reason:
        pytest.skip(str(reason))
    nvcc = next((path for path in [shutil.which("nvcc"), *sorted(glob("/usr/local/cuda*/bin/nvcc"))] if path), None)
    if nvcc is None:
        pytest.skip("there is no nvcc on the PATH or in /usr/local/cuda*")
    path = tmp_path_factory.mktemp("known") / "known_causes"
    subprocess.run([nvcc, "-std=c++17", "-O3", "-arch=native", "-lineinfo", "-o", path, SOURCE], check=True)
    return path


def profiled(capsys, program, name, *options):
    output = program.parent / f"{name}.ncu-rep"
    code = main(["kernel", "--json", "-k", name, "--output", str(output), *options, "--", str(program), name])
    out, err = capsys.readouterr()
    assert out, err
    said = json.loads(out)
    if not said["counters"]:
        pytest.skip(f"counters are refused here: {err}")
    return code, said


def keep(report):
    """Packs a report into the folder where fixtures are collected, if one is named."""
    if folder := ORIGINAL.get("GPUTOP_TEST_RECORDS"):
        packed = lzma.compress(Path(report).read_bytes(), preset=9)
        os.makedirs(folder, exist_ok=True)
        (Path(folder) / f"{Path(report).name}.xz").write_bytes(packed)
        assert len(packed) < MOST_BYTES


@pytest.mark.parametrize(("name", "full", "kind", "there", "not_there"), KNOWN, ids=[one[0] for one in KNOWN])
def test_the_known_cause_is_found_and_no_other(capsys, program, name, full, kind, there, not_there):
    # What the full set needs is replayed 38 times.
    code, said = profiled(capsys, program, name, *(["--full", "--launches", "2"] if full else []))
    keep(said["run"]["report"])
    (kernel,) = said["kernels"]
    ids = [finding["id"] for finding in said["verdict"]["findings"]]
    told = json.dumps(said["kernels"])

    assert code == 0, told
    assert kernel["launches"] == (2 if full else 5), told
    assert kind is None or kernel["class"] == kind, told
    assert there is None or there in ids, told
    assert not_there not in ids, told


def test_the_same_program_twice_is_no_change(capsys, program):
    first, second = (profiled(capsys, program, "copy_dram")[1]["kernels"][0] for _ in range(2))

    assert second["median_us"] == pytest.approx(first["median_us"], rel=0.05)
    assert second["registers"] == first["registers"]
