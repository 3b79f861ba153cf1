"""The monitor on a real vLLM: found, mapped, measured as its clients measure it, followed through a restart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from gputop_llm.config import Config
from gputop_llm.model.symptom import Severity
from gputop_llm.node import real_sources
from gputop_llm.session import Session
from tests.real import test_symptoms as symptoms
from tests.real.load import run_load
from tests.support.cli import run_cli

pytestmark = pytest.mark.real

DEADLINE_S = 30.0


@contextlib.contextmanager
def watching(server, **settings):
    """A session attached to this server by PID."""
    session = Session(Config(pid=server.root_pid, **settings), real_sources(Config()))
    session.start()
    try:
        yield session
    finally:
        session.stop()


def wait_for(condition, what, deadline_s=DEADLINE_S):
    """The condition's first true value."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {deadline_s:.0f} s: {what}")


def focused(session, engine_too=True):
    """The newest frame once the target is in focus and its page has been read."""

    def ready():
        frame = session.latest
        if frame is None or frame.focused is None:
            return None
        engine = frame.focused_engine
        if engine_too and (engine is None or engine.window is None):
            return None
        return frame

    return wait_for(ready, "attached, with a first reading of the engine")


def ranks(target):
    return sorted((p.role, p.rank) for p in target.processes if p.role in ("engine-core", "worker"))


def count(target, role):
    return sum(p.role == role for p in target.processes)


def test_tensor_parallel_is_one_target_with_its_workers_by_rank(vllm_tp2):
    with watching(vllm_tp2) as session:
        target = focused(session).focused
    assert target.engine == "vllm"
    assert target.root_pid == vllm_tp2.root_pid
    assert ranks(target) == [("engine-core", None), ("worker", "TP0"), ("worker", "TP1")]
    assert set(target.pids) <= set(vllm_tp2.pids())
    assert target.urls == (vllm_tp2.url,)
    assert target.version is not None
    assert target.version.startswith("0.32")


def test_a_stopped_rank_is_a_standstill_and_both_stacks_are_read_side_by_side(vllm_tp2):
    workers = {line.split()[0]: pid for pid, line in vllm_tp2.pids().items() if line.startswith("VLLM::Worker")}
    first, second = (workers[title] for title in sorted(workers))
    with symptoms.watching(vllm_tp2) as session, symptoms.load(vllm_tp2, max_tokens=200, requests=60, concurrency=8):
        symptoms.wait_for(lambda: symptoms.flowing(session), "tokens are flowing")
        os.kill(second, signal.SIGSTOP)
        try:
            stalled = symptoms.wait_for(lambda: symptoms.raised(session, "stalled"), "stalled", session)
            done = run_cli("stacks", "--json", "--pid", str(vllm_tp2.root_pid))
        finally:
            os.kill(second, signal.SIGCONT)
    assert f"worker {second} (TP1) is stopped (state T)" in stalled.headline
    read = {one["pid"]: one["threads"] for one in json.loads(done.stdout)["stacks"]["processes"]}
    assert read[first]
    assert read[second]


def test_data_parallel_is_one_target_with_both_engines_and_both_api_servers(vllm_dp2):
    with watching(vllm_dp2) as session:
        frame = focused(session)
    target = frame.focused
    engine_ranks = [rank for role, rank in ranks(target) if role == "engine-core"]
    assert engine_ranks == ["DP0", "DP1"]
    assert target.api_servers == 2
    assert count(target, "coordinator") == 1
    assert [r.rank for r in frame.focused_engine.window.ranks] == ["0", "1"]


def test_two_api_servers_are_one_target_and_its_steps_are_unknown(vllm_api2):
    with watching(vllm_api2) as session:
        frame = focused(session)
    target = frame.focused
    assert target.api_servers == 2
    assert count(target, "engine-core") == 1
    total = frame.focused_engine.window.total
    assert total.steps_per_s is None
    assert "API server" in total.missing["steps_per_s"]


def test_the_size_of_the_kv_pool_is_read_from_its_own_log(vllm_api2):
    with watching(vllm_api2) as session:
        target = focused(session).focused
        log = wait_for(lambda: (part := session.latest.log_of(target.key)) and part.value, "its log")
    assert log.places == (str(vllm_api2.log_path),)
    # 80 blocks of 32 tokens.
    (pool,) = [signal for signal in log.signals if signal.kind == "kv-pool"]
    assert pool.text.startswith("CPU KV cache size: 2,560 tokens")
    assert target.started_s < pool.at_s < time.time()
    assert {signal.severity for signal in log.signals} == {Severity.NOTE}


def test_live_means_agree_with_what_the_clients_measure(vllm_small):
    run_load(vllm_small.port, requests=4, concurrency=4, max_tokens=8)  # warm
    with watching(vllm_small, window_s=300.0) as session:
        focused(session)
        settled = session.latest.focused_engine.scrape.polls
        wait_for(lambda: session.latest.focused_engine.scrape.polls > settled + 1, "a reading before the load")
        load = run_load(vllm_small.port, requests=48, concurrency=6, max_tokens=48)
        ended = session.latest.focused_engine.scrape.polls
        frame = wait_for(
            lambda: session.latest.focused_engine.scrape.polls > ended + 1 and session.latest,
            "a reading after the load",
        )
    assert load.errors == []
    total = frame.focused_engine.window.total
    latency = total.latency
    assert latency["ttft"].count == len(load.ttft_s)
    assert latency["ttft"].mean_s == pytest.approx(load.ttft_mean_s, rel=0.10)
    assert latency["itl"].mean_s == pytest.approx(load.itl_mean_s, rel=0.10)
    assert latency["e2e"].count == len(load.e2e_s)
    tokens = total.generation_tokens_per_s * total.window_s
    assert tokens == pytest.approx(load.generation_tokens, rel=0.02)


def test_the_engine_core_thread_and_its_workers_are_seen_working_under_load(vllm_small):
    with watching(vllm_small) as session:
        focused(session)
        load = threading.Thread(target=run_load, args=(vllm_small.port, 24, 6), kwargs={"max_tokens": 32}, daemon=True)
        load.start()

        def busy():
            host = session.latest.host.value
            roles = {p.role: p for p in host.processes if (p.cpu_pct or 0) > 5} if host else {}
            return roles if "worker" in roles else None

        worker = wait_for(busy, "a worker that uses CPU")["worker"]
        load.join()
    assert worker.top_threads
    assert worker.rss_bytes > 100e6


def test_a_restart_is_noticed_and_followed(vllm_tiny):
    with watching(vllm_tiny) as session:
        # By its own accord, not by PID: a PID does not come back.
        first = focused(session).focused
    session = Session(Config(url=vllm_tiny.url), real_sources(Config()))
    session.start()
    try:
        before = focused(session).focused
        assert before.root_pid == first.root_pid
        vllm_tiny.stop()
        wait_for(lambda: any("exited" in text for _, text in session.events), "the exit is noticed")
        vllm_tiny.start()

        def back():
            target = session.latest.focused
            engine = session.latest.focused_engine
            fresh = target is not None and target.root_pid == vllm_tiny.root_pid
            return fresh and engine is not None and engine.scrape.error is None and engine.window is not None

        wait_for(back, "re-attached to the new process")
    finally:
        session.stop()


def test_a_killed_api_server_leaves_an_orphan_that_is_found(vllm_tiny):
    survivors = {pid for pid, line in vllm_tiny.pids().items() if line.startswith("VLLM::")}
    os.kill(vllm_tiny.root_pid, signal.SIGKILL)
    session = Session(Config(), real_sources(Config()))
    session.start()
    try:

        def orphan():
            frame = session.latest
            found = frame.targets.value.targets if frame and frame.targets.value else ()
            return next((t for t in found if t.orphan and survivors & set(t.pids)), None)

        target = wait_for(orphan, "the orphaned engine core is listed")
        assert survivors == set(target.pids) & survivors
        log = wait_for(lambda: (part := session.latest.log_of(target.key)) and part.value, "its log")
        assert "kv-pool" in [signal.kind for signal in log.signals]
    finally:
        session.stop()
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_snapshot_as_json_names_the_engine_and_its_numbers(vllm_tiny):
    load = threading.Thread(target=run_load, args=(vllm_tiny.port, 40, 4), daemon=True)
    load.start()
    command = [sys.executable, "-m", "gputop_llm", "snapshot", "--json", "--pid", str(vllm_tiny.root_pid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    load.join()
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["schema"] == 1
    assert shown["focus"].startswith(f"vllm:{vllm_tiny.root_pid}:")
    total = shown["engines"][0]["total"]
    assert total["running"] is not None
    assert total["generation_tokens_per_s"] is not None
