"""The lab's cases of two ranks on two GPUs: a native capture names their cause, and nothing in their twins.

Run with `GPUTOP_TEST_RECORDS=FOLDER pytest -m gpu -n 0 tests/gpu/test_lab_two_gpus.py`, by a Python that has PyTorch;
two minutes. Never run on GPUs so far.
"""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from gputop_llm.lab import CASES
from tests.gpu.serving import gpu_count, page, told, wait_until
from tests.support.cli import environment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")]


@pytest.mark.parametrize("fixed", [False, True], ids=["cause", "twin"])
@pytest.mark.parametrize("name", ["allreduce-exposed", "rank-straggler"])
def test_the_lab_s_cases_of_two_ranks_are_named_and_their_twins_are_not(name, fixed):
    pytest.importorskip("torch")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [sys.executable, "-m", "gputop_llm", "lab", "run", name, *(["--fixed"] if fixed else [])]
    case = subprocess.Popen([*command, "--port", str(port), "--seconds", "300"], env=environment())
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: page(url), "the case serves", 120.0)
        how = ("--yes", "--json", "--url", url, "--seconds", "1", "--route", "native")
        found = told(f"{name}.{'fixed' if fixed else 'cause'}", "capture", *how, good=(0, 4))["verdict"]
    finally:
        case.terminate()
        case.wait(60)
    above = [one["id"] for one in found["findings"] if one["weight"] != "note"]
    assert found["judged"]
    assert above[:1] == [] if fixed else above[0] in CASES[name].truth.first
