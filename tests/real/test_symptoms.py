"""Symptoms on a real vLLM, each raised by really doing what causes it; and a healthy load that raises none."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

import pytest

from gputop_llm.config import Config
from gputop_llm.model.symptom import Severity
from gputop_llm.node import real_sources
from gputop_llm.session import Session
from tests.real.load import run_load

pytestmark = pytest.mark.real

# A server of these tests is young: what is raised is to be seen at once, and what a CPU calls fast is not the rules'.
YOUNG = {"warming-up.age_s": 1.0}

# Starting a server takes longer than most of these: tests that end one use the server of the test before, and no other.
SMALL_POOL = {"model": "small", "extra_args": ("--num-gpu-blocks-override", "40")}
DRAFTS = {
    "model": "tiny",
    "as_module": True,
    "extra_args": (
        "--speculative-config",
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}',
    ),
}


@contextlib.contextmanager
def watching(server, slo_ttft_s=60.0, slo_tpot_s=10.0, **thresholds):
    """A session attached to the server, with SLOs that a CPU can meet unless a test asks for others."""
    config = Config(
        pid=server.root_pid, thresholds={**YOUNG, **thresholds}, slo_ttft_s=slo_ttft_s, slo_tpot_s=slo_tpot_s
    )
    session = Session(config, real_sources(config))
    session.start()
    try:
        wait_for(lambda: session.latest and session.latest.focused_engine, "attached")
        yield session
    finally:
        session.stop()


def wait_for(condition, what, session=None, deadline_s=60.0):
    """The condition's first true value; without one it tells what the session shows instead."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {deadline_s:.0f} s: {what}; shown is {active(session) if session else 'nothing'}")


def raised(session, rule):
    """The active symptom of this rule in the newest frame."""
    report = session.latest.symptoms
    return next((s for s in report.active if s.id == rule), None) if report else None


def flowing(session):
    """Whether the engine generates tokens."""
    engine = session.latest.focused_engine
    return engine is not None and engine.window is not None and (engine.window.total.generation_tokens_per_s or 0) > 0


def running(session):
    """How many requests run, by the engine's gauge."""
    engine = session.latest.focused_engine
    return engine.window.total.running if engine is not None and engine.window is not None else None


def worker_of(server):
    """The PID of the server's only worker."""
    (worker,) = [pid for pid, line in server.pids().items() if line.startswith("VLLM::Worker")]
    return worker


def active(session):
    """Everything active in the newest frame, for messages."""
    report = session.latest.symptoms
    return [(s.id, s.headline) for s in report.active] if report else []


@contextlib.contextmanager
def load(server, stop=None, **how):
    """A load that goes on until the block ends, or `stop` is set; with `seed_step` 0 of the same prompts for ever."""
    step = how.pop("seed_step", 0)
    how = {"requests": 12, "concurrency": 4, "max_tokens": 24, "prompt_words": 60, "seed": 100, **how}
    stop = stop or threading.Event()

    def rounds():
        seed = how.pop("seed")
        while not stop.is_set():
            failed = run_load(server.port, seed=seed, stop=stop, **how).errors
            seed += step
            # A server that refuses everything is not to be asked as fast as this machine can.
            stop.wait(1.0 if failed else 0.0)

    thread = threading.Thread(target=rounds, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_growing_queue_and_a_full_kv_pool_with_preemptions(vllm_slot):
    """Ever more requests for a pool of 40 blocks: it is full, requests are preempted, and the queue grows under it."""
    server = vllm_slot.get(**SMALL_POOL)
    with watching(server) as session, contextlib.ExitStack() as stack:
        seen, end, history = {}, threading.Event(), []

        def both():
            frame = session.latest
            engine, report = frame.focused_engine, frame.symptoms
            if engine is not None and engine.window is not None and (not history or history[-1][0] != frame.at_s):
                total = engine.window.total
                history.append((frame.at_s, engine.scrape.age_s, total.running, total.waiting, total.kv_usage_pct))
            for symptom in report.active if report else ():
                seen.setdefault(symptom.id, symptom)
                if symptom.root and symptom.root.startswith("kv-pressure"):
                    seen[f"{symptom.id} under kv-pressure"] = symptom
            return {"kv-pressure", "queue-growing", "queue-growing under kv-pressure"} <= set(seen)

        for wave in range(60):
            how = {"requests": 30, "concurrency": 3, "max_tokens": 200, "prompt_words": 100}
            stack.enter_context(load(server, end, seed=wave, seed_step=100, **how))
            with contextlib.suppress(AssertionError):
                # Two seconds from one wave to the next: this is the rate at which the load grows.
                wait_for(both, "", deadline_s=2.0)
                break
        # All at once, and not each when the one before it has ended.
        end.set()
        assert both(), f"seen {list(seen)}; healthy: {server.is_healthy()}; {history}; {server.log_tail()}"
        assert any(e.name.startswith("KV") for e in seen["kv-pressure"].evidence)
        # At one time or another: a request that ends leaves room for a moment.
        assert max(usage or 0.0 for *_, usage in history) > 80


def test_a_killed_worker_is_told_though_the_server_ends_with_it(vllm_slot):
    server = vllm_slot.get(**SMALL_POOL)
    with watching(server) as session, load(server, max_tokens=200, concurrency=8):
        wait_for(lambda: running(session), "requests run")
        os.kill(worker_of(server), signal.SIGKILL)
        gone = wait_for(lambda: raised(session, "stalled"), "the engine is gone", session)
        assert gone.severity is Severity.CRITICAL


def test_a_draft_that_is_never_accepted(vllm_slot):
    """N-gram drafts of random text: hardly any is right."""
    server = vllm_slot.get(**DRAFTS)
    with watching(server, **{"spec-decode-weak.drafts": 10.0}) as session, load(server, max_tokens=64, seed_step=1):
        weak = wait_for(lambda: raised(session, "spec-decode-weak"), "weak drafts", session)
    assert any("accept" in e.name for e in weak.evidence)


def test_a_killed_api_server_leaves_an_orphan_that_is_told(vllm_slot):
    server = vllm_slot.get(**DRAFTS)
    survivors = {pid for pid, line in server.pids().items() if line.startswith("VLLM::")}
    try:
        with watching(server) as session:
            os.kill(server.root_pid, signal.SIGKILL)
            orphan = wait_for(lambda: raised(session, "stalled"), "the orphan", session)
            assert "orphan" in orphan.headline
    finally:
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_cold_prefix_cache_is_raised_and_a_warm_one_is_not(vllm_tiny):
    with watching(vllm_tiny) as session:
        with load(vllm_tiny, requests=16, seed=1, seed_step=1, prompt_words=120):
            wait_for(lambda: raised(session, "prefix-cache-cold"), "prompts that share nothing", session)
        with load(vllm_tiny, requests=16, seed=5, seed_step=0, prompt_words=120):
            wait_for(lambda: not raised(session, "prefix-cache-cold"), "the same prompts again", session, 90.0)
            hit = session.latest.focused_engine.window.total.prefix_hit_pct
    assert hit > 50


@pytest.mark.parametrize("age_s", [1.0, 3600.0], ids=["old", "young"])
def test_a_stopped_worker_is_a_frozen_process(vllm_tiny, age_s):
    """However old the server; and whatever its gauges say: between two requests this small model is always ahead."""
    worker = worker_of(vllm_tiny)
    with (
        watching(vllm_tiny, **{"warming-up.age_s": age_s}) as session,
        load(vllm_tiny, max_tokens=200, requests=60, concurrency=8),
    ):
        wait_for(lambda: flowing(session), "tokens are flowing")
        os.kill(worker, signal.SIGSTOP)
        try:
            stalled = wait_for(lambda: raised(session, "stalled"), "stalled", session, 30.0)
        finally:
            os.kill(worker, signal.SIGCONT)
        assert stalled.severity is Severity.CRITICAL
        assert session.latest.symptoms.active[0].id == "stalled"
        assert f"worker {worker} is stopped (state T)" in stalled.headline
        assert stalled.next_capture == "py-spy"
        wait_for(lambda: not raised(session, "stalled"), "it runs on", session)


def test_a_healthy_load_raises_nothing_for_two_minutes(vllm_small):
    """But that the machine is short of CPUs, with what follows from it: where it is, that is true."""
    seen = set()
    with watching(vllm_small) as session, load(vllm_small, requests=8, concurrency=3, max_tokens=32, seed=9):
        end = time.monotonic() + 120
        while time.monotonic() < end:
            report = session.latest.symptoms
            for symptom in report.active if report else ():
                short_of_cpus = "cpu-throttled" in (symptom.id, (symptom.root or "").partition("@")[0])
                if symptom.severity > Severity.NOTE and not short_of_cpus:
                    seen.add((symptom.id, symptom.headline))
            time.sleep(0.5)
    assert not seen
