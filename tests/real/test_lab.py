"""The lab where PyTorch is: a case serves on the CPU, and the monitor finds it; what its GPU kernels compute."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.real_processes import until

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.real


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def serves(pid):
    """Whether a process is there, and no zombie."""
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_text())
    except OSError:
        return False


def test_a_case_serves_and_the_monitor_finds_it_with_its_counters(engine_venv):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    python = str(engine_venv / "bin/python")
    command = [python, "-m", "gputop_llm", "lab", "run", "prefill-blocks", "--seconds", "120", "--port", str(port)]
    case = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    try:
        # What it says once its page is there.
        told = [case.stderr.readline() for _ in range(2)]
        assert f"gputop-llm --url http://127.0.0.1:{port} " in told[1], told
        snapshot = [sys.executable, "-m", "gputop_llm", "snapshot", "--json", "--pid", str(case.pid)]
        for _ in range(20):
            done = subprocess.run(snapshot, capture_output=True, text=True, timeout=60, check=False)
            shown = json.loads(done.stdout)
            if shown["engines"] and shown["engines"][0]["total"]["generation_tokens_per_s"]:
                break
        (target,) = [target for target in shown["targets"] if target["root_pid"] == case.pid]
        assert (target["engine"], target["model"]) == ("lab", "lab:prefill-blocks")
        assert [process["role"] for process in target["processes"]] == ["engine-core"]
        total = shown["engines"][0]["total"]
        assert (total["model"], total["running"], total["waiting"]) == ("lab:prefill-blocks", 8, 0)
        assert total["generation_tokens_per_s"] > 0
        assert total["latency"]["itl"]["count"] > 0
        case.send_signal(signal.SIGINT)
        served = json.loads(case.communicate(timeout=60)[0])
    finally:
        case.kill()
        case.wait()
    assert (served["case"], served["fixed"], served["device"]) == ("prefill-blocks", False, "cpu")
    assert served["tokens"] > 0
    assert case.returncode == 0


def test_both_ranks_of_a_case_are_one_engine_and_end_together(engine_venv):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    python = str(engine_venv / "bin/python")
    command = [python, "-m", "gputop_llm", "lab", "run", "rank-straggler", "--device", "cpu", "--port", str(port)]
    case = subprocess.Popen([*command, "--seconds", "120"], env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        snapshot = [sys.executable, "-m", "gputop_llm", "snapshot", "--json", "--pid", str(case.pid)]
        for _ in range(20):
            shown = json.loads(subprocess.run(snapshot, capture_output=True, timeout=60, check=False).stdout)
            total = shown["engines"] and shown["engines"][0]["total"]
            if total and total["generation_tokens_per_s"]:
                break
        (target,) = [target for target in shown["targets"] if target["root_pid"] == case.pid]
        first, second = target["processes"]
        assert (first["role"], second["role"], second["rank"]) == ("engine-core", "worker", "TP1")
        case.send_signal(signal.SIGINT)
        assert json.loads(case.communicate(timeout=60)[0])["tokens"] > 0
    finally:
        case.kill()
        case.wait()
    assert until(lambda: not serves(second["pid"]))


def test_the_kernels_of_its_gpu_cases_compute_what_pytorch_computes(engine_venv):
    done = subprocess.run(
        [str(engine_venv / "bin/python"), str(Path(__file__).with_name("lab_kernels.py"))],
        env=environment(TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "all kernels agree", done.stderr
