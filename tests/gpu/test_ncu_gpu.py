"""`gputop-llm kernel` with a real ncu, on kernels whose limit is known.

Run with `pytest -m gpu tests/gpu/test_ncu_gpu.py`; needs nvcc, ncu, and the right to read GPU counters: without one of
them it is skipped, with the reason. Two minutes. Reports are kept in the folder that GPUTOP_TEST_RECORDS names.

Run on an H200 once (driver 580.159.04, ncu 2025.3.1, nvcc 13.0; 100 s): eight passed, two failed by a limit on the size
of a report before they came to the verdict. What the reports of that run give today is tests/ncu/test_known_causes.py.
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
from tests.support.known_causes import KNOWN, missed

pytestmark = pytest.mark.gpu

SOURCE = Path(__file__).with_name("known_causes.cu")


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
        os.makedirs(folder, exist_ok=True)
        (Path(folder) / f"{Path(report).name}.xz").write_bytes(lzma.compress(Path(report).read_bytes(), preset=9))


@pytest.mark.parametrize("known", KNOWN, ids=[known.kernel for known in KNOWN])
def test_the_known_cause_is_found_and_no_other(capsys, program, known):
    full = ["--full", "--launches", str(known.launches)] if known.full else []
    code, said = profiled(capsys, program, known.kernel, *full)
    keep(said["run"]["report"])
    (kernel,) = said["kernels"]

    assert code == 0, kernel
    assert kernel["launches"] == known.launches, kernel
    assert missed(known, kernel["class"], {finding["id"] for finding in said["verdict"]["findings"]}) == [], kernel


def test_the_same_program_twice_is_no_change(capsys, program):
    first, second = (profiled(capsys, program, "copy_dram")[1]["kernels"][0] for _ in range(2))

    assert second["median_us"] == pytest.approx(first["median_us"], rel=0.05)
    assert second["registers"] == first["registers"]
