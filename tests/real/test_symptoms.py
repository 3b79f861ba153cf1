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

pytestmark = pytest.mark.proof

# A server of these tests is young: what is raised is to be seen at once, and what a CPU calls fast is not the rules'.
YOUNG = {"warming-up.age_s": 1.0}


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


def wait_for(condition, what, deadline_s=60.0):
    """The condition's first true value."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not within {deadline_s:.0f} s: {what}")


def raised(session, rule):
    """The active symptom of this rule in the newest frame."""
    report = session.latest.symptoms
    return next((s for s in report.active if s.id == rule), None) if report else None


def flowing(session):
    """Whether the engine generates tokens."""
    engine = session.latest.focused_engine
    return engine is not None and engine.window is not None and (engine.window.total.generation_tokens_per_s or 0) > 0


def active(session):
    """Everything active in the newest frame, for messages."""
    return [(s.id, s.headline) for s in session.latest.symptoms.active]


@contextlib.contextmanager
def load(server, **how):
    """A load that goes on until the block ends; `seed_step` 0 sends the same prompts again and again."""
    step = how.pop("seed_step", 0)
    how = {"requests": 12, "concurrency": 4, "max_tokens": 24, "prompt_words": 60, "seed": 100, **how}
    stop = threading.Event()

    def rounds():
        seed = how.pop("seed")
        while not stop.is_set():
            run_load(server.port, seed=seed, **how)
            seed += step

    thread = threading.Thread(target=rounds, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


def test_a_growing_queue_and_a_full_kv_pool_with_preemptions(vllm_slot):
    """Ever more requests for a pool of 40 blocks: it is full, requests are preempted, and the queue grows under it."""
    server = vllm_slot.get(model="small", extra_args=("--num-gpu-blocks-override", "40"))
    with watching(server) as session, contextlib.ExitStack() as stack:
        seen = {}

        def both():
            report = session.latest.symptoms
            for symptom in report.active if report else ():
                seen.setdefault(symptom.id, symptom)
                if symptom.root and symptom.root.startswith("kv-pressure"):
                    seen[f"{symptom.id} under kv-pressure"] = symptom
            return {"kv-pressure", "queue-growing", "queue-growing under kv-pressure"} <= set(seen)

        for wave in range(20):
            how = {"requests": 30, "concurrency": 3, "max_tokens": 200, "prompt_words": 100}
            stack.enter_context(load(server, seed=wave, seed_step=100, **how))
            with contextlib.suppress(AssertionError):
                # Two seconds from one wave to the next: this is the rate at which the load grows.
                wait_for(both, "", 2.0)
                break
        wait_for(both, f"raised so far: {sorted(seen)}", 30.0)
        assert any(e.name.startswith("KV") for e in seen["kv-pressure"].evidence)
        assert session.latest.focused_engine.window.total.kv_usage_pct > 80
        server.stop()


def test_a_cold_prefix_cache_is_raised_and_a_warm_one_is_not(vllm_tiny):
    with watching(vllm_tiny) as session:
        with load(vllm_tiny, requests=16, seed=1, seed_step=1, prompt_words=120):
            wait_for(lambda: raised(session, "prefix-cache-cold"), f"prompts that share nothing: {active(session)}")
        with load(vllm_tiny, requests=16, seed=5, seed_step=0, prompt_words=120):
            wait_for(
                lambda: not raised(session, "prefix-cache-cold"), f"the same prompts again: {active(session)}", 90.0
            )
            hit = session.latest.focused_engine.window.total.prefix_hit_pct
    assert hit > 50


def test_a_draft_that_is_never_accepted(vllm_slot):
    """N-gram drafts of random text: hardly any is right."""
    server = vllm_slot.get(
        model="tiny",
        as_module=True,
        extra_args=(
            "--speculative-config",
            '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}',
        ),
    )
    with watching(server, **{"spec-decode-weak.drafts": 10.0}) as session, load(server, max_tokens=64, seed_step=1):
        weak = wait_for(lambda: raised(session, "spec-decode-weak"), f"weak drafts: {active(session)}")
    assert any("accept" in e.name for e in weak.evidence)


def test_a_stopped_worker_is_a_frozen_process(vllm_tiny):
    worker = next(pid for pid, line in vllm_tiny.pids().items() if line.startswith("VLLM::Worker"))
    with watching(vllm_tiny) as session, load(vllm_tiny, max_tokens=200, requests=60, concurrency=8):
        wait_for(lambda: flowing(session), "tokens are flowing")
        os.kill(worker, signal.SIGSTOP)
        try:
            stalled = wait_for(lambda: raised(session, "stalled"), f"stalled: {active(session)}")
        finally:
            os.kill(worker, signal.SIGCONT)
        assert stalled.severity is Severity.CRITICAL
        assert session.latest.symptoms.active[0].id == "stalled"
        assert "stopped" in stalled.headline or any("state T" in str(e.text) for e in stalled.evidence)
        assert stalled.next_capture == "py-spy"
        wait_for(lambda: not raised(session, "stalled"), f"it runs on: {active(session)}")


def test_a_killed_worker_is_told_though_the_server_ends_with_it(vllm_tiny):
    with watching(vllm_tiny) as session, load(vllm_tiny, max_tokens=200, requests=60, concurrency=8):
        wait_for(lambda: flowing(session), "tokens are flowing")
        worker = next(pid for pid, line in vllm_tiny.pids().items() if line.startswith("VLLM::Worker"))
        os.kill(worker, signal.SIGKILL)
        gone = wait_for(lambda: raised(session, "stalled"), f"the engine is gone: {active(session)}")
        assert gone.severity is Severity.CRITICAL


def test_a_killed_api_server_leaves_an_orphan_that_is_told(vllm_tiny):
    survivors = {pid for pid, line in vllm_tiny.pids().items() if line.startswith("VLLM::")}
    try:
        with watching(vllm_tiny) as session:
            os.kill(vllm_tiny.root_pid, signal.SIGKILL)
            orphan = wait_for(lambda: raised(session, "stalled"), f"the orphan: {active(session)}")
            assert "orphan" in orphan.headline
    finally:
        for pid in survivors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_healthy_load_raises_nothing_for_two_minutes(vllm_small):
    with watching(vllm_small) as session, load(vllm_small, requests=8, concurrency=3, max_tokens=32, seed=9):
        end = time.monotonic() + 120
        seen = set()
        while time.monotonic() < end:
            report = session.latest.symptoms
            seen |= {(s.id, s.headline) for s in report.active if s.severity > Severity.NOTE} if report else set()
            time.sleep(0.5)
    assert not seen
