"""Two GPUs of one host: an engine with two tensor-parallel ranks is watched, captured, and one of them is stopped.

    GPUTOP_TEST_TP2='vllm serve MODEL --tensor-parallel-size 2' GPUTOP_TEST_TP2_URL=http://127.0.0.1:8000 \\
    GPUTOP_TEST_LOAD='python load.py --port 8000 --concurrency 32 --duration 600' GPUTOP_TEST_RECORDS=FOLDER \\
    pytest -m gpu -n 0 tests/gpu/test_two_gpus.py

About five minutes beside the server's start. The server's command may stay or return; all that is seen goes to FOLDER.
What a capture costs is for `python -m benchmarks.overhead --url … --route native` to say. Never run on GPUs so far.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pynvml
import pytest

from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk
from tests.capture.native.hosting import Record
from tests.gpu.serving import gpu_count, page, told, wait_until
from tests.support.environment import ORIGINAL

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(gpu_count() < 2, reason="needs two GPUs")]

URL = os.environ.get("GPUTOP_TEST_TP2_URL", "http://127.0.0.1:8000")


@pytest.fixture(scope="module")
def ranks():
    """The two workers of the engine under load, as the product lists them."""
    if "GPUTOP_TEST_TP2" not in os.environ:
        pytest.skip("GPUTOP_TEST_TP2 starts no engine")
    server = subprocess.Popen(shlex.split(os.environ["GPUTOP_TEST_TP2"]), env=ORIGINAL, start_new_session=True)
    load = root = None
    try:
        wait_until(lambda: page(URL) or server.poll() not in (None, 0), "the engine serves")
        assert page(URL), "the engine has ended before it served"
        (target,) = told("snapshot", "snapshot", "--json", "--url", URL)["targets"]
        root = target["root_pid"]
        load = subprocess.Popen(shlex.split(os.environ["GPUTOP_TEST_LOAD"]), stdout=subprocess.DEVNULL)
        wait_until(lambda: re.search(r"vllm:num_requests_running\{.*\} [1-9]", page(URL)), "requests run", 60.0)
        yield [one for one in target["processes"] if one["rank"] in ("TP0", "TP1")]
    finally:
        if load is not None:
            load.kill()
            load.wait()
        if root is not None:
            os.kill(root, signal.SIGTERM)
        server.terminate()
        server.wait(60)


def test_each_rank_has_the_pid_and_the_gpu_that_the_driver_says(ranks):
    assert [(one["rank"], one["gpus"], one["gpus_from"]) for one in ranks] == [
        ("TP0", [0], "nvml"),
        ("TP1", [1], "nvml"),
    ]
    for one in ranks:
        handle = pynvml.nvmlDeviceGetHandleByIndex(one["gpus"][0])
        assert one["nvml_pid"] in [seen.pid for seen in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]


def test_both_gpus_are_watched_and_nvlink_carries_something(ranks):
    for gpu in told("live", "snapshot", "--json", "--url", URL)["gpus"][:2]:
        assert gpu["util_pct"] > 0
        assert gpu["gpm"]["nvlink_tx_bytes_per_s"] > 0


def test_one_window_begins_in_both_ranks_at_once_and_tells_how_they_arrive(ranks, tmp_path):
    folder = Path(os.environ["GPUTOP_TEST_RECORDS"]) / "captures"
    how = ("--yes", "--json", "--url", URL, "--seconds", "1", "--route", "native", "--output", str(folder))
    taken = told("capture", "capture", *how, good=(0, 4))
    records = [Record(path.read_bytes()) for path in sorted(Path(taken["path"]).glob("rank*.gtw"))]
    began = [form.STARTED.unpack(record.one(Chunk.STARTED))[2] for record in records]
    assert len(began) == 2
    assert abs(began[0] - began[1]) < 5e6
    facts = {fact["name"] for found in taken["verdict"]["findings"] for fact in found["facts"]}
    assert {"exposed, of the window", "arrival skew, median"} <= facts
    # A kernel that is no collective can be run again beside the engine.
    again = told("rerun", "rerun", taken["path"], "--kernel", "nvjet|gemm", "--yes", "--json", good=(0, 4))
    assert again


def test_a_stopped_rank_is_told_as_a_standstill_with_both_stacks(ranks):
    (stopped,) = [one["pid"] for one in ranks if one["rank"] == "TP1"]
    os.kill(stopped, signal.SIGSTOP)
    try:
        seen = told("stalled", "check", "--json", "--for", "30", "--url", URL, good=(0, 1, 2, 3))
        stacks = told("stacks", "stacks", "--json", "--url", URL, good=(0, 4))
    finally:
        os.kill(stopped, signal.SIGCONT)
    (stalled,) = [one for one in seen["symptoms"]["active"] if one["id"] == "stalled"]
    assert f"worker {stopped} (TP1) is stopped (state T)" in stalled["headline"]
    assert any("collective" in cause["text"] and cause["speaks_for"] for cause in stalled["causes"])
    read = {one["pid"] for one in stacks["stacks"]["processes"] if one["threads"]}
    assert {one["pid"] for one in ranks} <= read
