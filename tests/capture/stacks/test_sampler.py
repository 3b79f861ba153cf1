"""Samples with their times: of a real process that says when it was where, and of traces as py-spy writes them."""

from __future__ import annotations

import json
import statistics
import time

import pytest

from gputop_llm.capture.stacks import sampler as sampler_module
from gputop_llm.capture.stacks.sampler import Sampler, rate_for
from gputop_llm.capture.stacks.trace import samples_of, short
from gputop_llm.errors import GputopError

#: Takes turns in two functions, and writes when (CLOCK_REALTIME, ns) each began.
TURNS = """
import sys, time

def spend(ms):
    until = time.monotonic_ns() + ms * 1_000_000
    while time.monotonic_ns() < until:
        pass

def left():
    spend(200)

def right():
    spend(400)

out = open(sys.argv[1], "w")
print("ready", flush=True)
while True:
    out.write(f"{time.time_ns()} left\\n"); out.flush()
    left()
    out.write(f"{time.time_ns()} right\\n"); out.flush()
    right()
"""


def event(kind, name, at_us, tid=1, line=1, file="/usr/lib/python3.12/site-packages/vllm/a.py"):
    return {"ph": kind, "name": name, "ts": at_us, "tid": tid, "pid": 1, "args": {"filename": file, "line": line}}


def test_samples_are_where_the_process_was_at_their_time(python, tmp_path):
    turns = tmp_path / "turns"
    sampler = Sampler(python(TURNS, str(turns)), 3.0)
    sampler.start()
    time.sleep(3.0)  # The window that is sampled.
    samples = sampler.stop()
    sampler.close()

    began = {"left": [], "right": []}
    for at, where in (line.split() for line in turns.read_text().splitlines()[:-1]):
        began[where].append(int(at))
    calls, stacks = samples["calls"], samples["stacks"]
    apart_ns = []
    for moment, _, stack in samples["changes"]:
        at = samples["zero_realtime_ns"] + 1000 * samples["moments_us"][moment]
        for where in {calls[call][0] for call in stacks[stack]} & set(began):
            apart_ns.append(min(abs(at - one) for one in began[where]))
    assert len(apart_ns) >= 6
    # By chance half of them would be more than 150 ms apart.
    assert samples["zero_error_ns"] < 50_000_000
    assert statistics.median(apart_ns) < samples["zero_error_ns"] + 40_000_000


def test_a_process_that_is_no_python_is_said():
    import subprocess

    with subprocess.Popen(["sleep", "60"]) as other:
        sampler = Sampler(other.pid, 0.1)
        sampler.start()
        with pytest.raises(GputopError, match="no Python process"):
            sampler.stop()
        sampler.close()
        other.kill()


def test_nothing_is_left_when_it_is_given_up(python, monkeypatch):
    monkeypatch.setattr(sampler_module, "_BEYOND_S", 1.0)
    sampler = Sampler(python(TURNS, "/dev/null"), 1.0)
    sampler.start()
    sampler.stop()
    sampler.close()
    sampler.close()


def test_a_trace_gives_each_moment_at_which_something_moved():
    trace = [
        event("B", "thread (7): MainThread", 100, line=0, file=""), event("B", "run", 100), event("B", "step", 100),
        event("B", "thread (9): feeder", 130, tid=2, line=0, file=""), event("B", "poll", 130, tid=2),
        event("E", "step", 5100), event("B", "step", 5100, line=2),
        event("E", "step", 9100), event("E", "run", 9100), event("E", "thread (7): MainThread", 9100),
        event("E", "poll", 9130, tid=2), event("E", "thread (9): feeder", 9130, tid=2),
    ]  # fmt: skip

    samples = samples_of(json.dumps(trace).encode())

    # Threads that were read in one look share its moment; the end is no sample.
    assert samples["moments_us"] == [100, 5100]
    assert samples["threads"] == [[1, 7, "MainThread"], [2, 9, "feeder"]]
    stacks = [[samples["calls"][call][0] for call in stack] for stack in samples["stacks"]]
    assert [(m, t, stacks[s]) for m, t, s in samples["changes"]] == [
        (0, 0, ["step", "run"]), (0, 1, ["poll"]), (1, 0, ["step", "run"])
    ]  # fmt: skip
    assert {tuple(call) for call in samples["calls"]} >= {("step", "vllm/a.py", 1), ("step", "vllm/a.py", 2)}


@pytest.mark.parametrize("trace", [b"", b"{}", b"[1]", b'[{"ph":"B"}]', b'[{"ph":"Q","tid":1,"ts":1}]', b"[" * 100_000])
def test_what_is_no_trace_is_told(trace):
    with pytest.raises((ValueError, RecursionError)):
        samples_of(trace)


def test_names_in_a_trace_are_made_inert():
    trace = [event("B", "\x1b[2Jrun", 1, file="/a\nb.py"), event("B", "x" * 5000, 1)]
    samples = samples_of(json.dumps(trace).encode())

    assert ["\\x1b[2Jrun", "/a\\nb.py", 1] in samples["calls"]
    assert max(len(call[0]) for call in samples["calls"]) < 200


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/opt/venv/lib/python3.12/site-packages/vllm/v1/engine/core.py", "vllm/v1/engine/core.py"),
        ("/usr/lib/python3.12/threading.py", "threading.py"),
        ("/srv/app/code/deep/down/serve.py", "deep/down/serve.py"),
        ("/tmp/a.py", "/tmp/a.py"),
        (None, ""),
    ],
)
def test_files_are_named_below_their_package(path, shown):
    assert short(path) == shown


@pytest.mark.parametrize(("threads", "rate_hz"), [(0, 200), (5, 200), (12, 100), (105, 11), (10_000, 10)])
def test_the_more_threads_there_are_the_less_often_they_are_read(threads, rate_hz):
    assert rate_for(threads) == rate_hz
