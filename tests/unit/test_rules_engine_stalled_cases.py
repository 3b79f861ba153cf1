"""stalled, further: engines that ended or lost their API server, and the field case of 35 running without a token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import (
    EngineFrame,
    EngineLog,
    Frame,
    Gpu,
    GpuNode,
    LogSignal,
    Part,
    TargetList,
    TargetLog,
    TargetProcess,
)
from gputop_llm.model.symptom import Severity
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.log_evidence import QUOTED
from gputop_llm.symptoms.rules.stalled import RULES
from tests.support import frames as recorded
from tests.support import symptom_frames as sf
from tests.support.captures import case_json, case_page, read_page
from tests.support.symptom_frames import busy, number, raised_at, reports, symptom

# -- engines that ended -------------------------------------------------------------


NOTHING = {"running": 0.0, "generation_tokens_per_s": 0.0}


def without_engine(*, from_s, targets=()):
    def edit(frame: Frame, s: int) -> Frame:
        if s < from_s:
            return frame
        return replace(frame, engines=(), targets=replace(frame.targets, value=TargetList(targets)), focus=None)

    return edit


def test_an_engine_that_ended_with_requests_is_told_for_two_minutes():
    frames = busy(60, edit=without_engine(from_s=20))
    assert raised_at("stalled", RULES, frames) == 29
    found = symptom("stalled", RULES, frames)
    assert found.headline == "the engine ended 40 s ago with 64 requests running"
    assert found.subject.label == "vllm /models/llama-8b"


def test_an_idle_engine_may_end():
    frames = busy(60, live=NOTHING, edit=without_engine(from_s=20))
    assert raised_at("stalled", RULES, frames) is None


def test_an_engine_that_ended_between_two_requests_is_a_warning():
    frames = busy(60, live={"running": 0.0}, edit=without_engine(from_s=20))
    found = symptom("stalled", RULES, frames)
    assert found.headline == "the engine ended 40 s ago, seconds after its last token"
    assert found.severity is Severity.WARNING
    assert number(found, "generated when last heard") == 3200.0


def test_an_engine_that_comes_back_at_its_address_was_restarted():
    again = recorded.target("900@2", 900, 901)
    frames = busy(60, edit=without_engine(from_s=20, targets=(again,)))
    assert raised_at("stalled", RULES, frames) is None


def logged(*signals, key=sf.KEY):
    log = EngineLog(("/var/log/vllm.log",), signals=signals)
    return (TargetLog(key, Part(log)),)


def test_an_engine_that_ended_is_told_with_what_its_log_says_of_the_cause():
    at_s = sf.AT_S + 19.0
    logs = logged(
        LogSignal("kv-pool", Severity.NOTE, "GPU KV cache size: 1,000 tokens", at_s - 3000),
        LogSignal("exception", Severity.WARNING, "KeyError: long ago", at_s - 3000),
        LogSignal("exception", Severity.WARNING, "RuntimeError: Executor failed.", at_s, where="core.py:1702 in step"),
        LogSignal("out-of-memory", Severity.CRITICAL, "torch.OutOfMemoryError: CUDA out of memory.", at_s - 1),
        LogSignal("engine-dead", Severity.CRITICAL, "EngineDeadError: EngineCore encountered an issue.", at_s, count=9),
    )
    gone = without_engine(from_s=20)
    frames = busy(60, edit=lambda frame, s: replace(gone(frame, s), logs=logs))
    found = symptom("stalled", RULES, frames)
    assert found.headline == (
        "the engine ended 40 s ago with 64 requests running: torch.OutOfMemoryError: CUDA out of memory."
    )
    assert found.causes[0].speaks_for == ("its log: torch.OutOfMemoryError: CUDA out of memory.",)
    (said,) = [e.text for e in found.evidence if e.name == "its log says"]
    assert said == "torch.OutOfMemoryError: CUDA out of memory., 41 s ago"


def test_what_an_engine_survived_is_not_told_as_why_it_ended():
    logs = logged(LogSignal("exception", Severity.WARNING, "ValueError: bad prompt", sf.AT_S + 19.0 - 3000))
    gone = without_engine(from_s=20)
    found = symptom("stalled", RULES, busy(60, edit=lambda frame, s: replace(gone(frame, s), logs=logs)))
    assert found.headline == "the engine ended 40 s ago with 64 requests running"
    assert not any("its log" in text for cause in found.causes for text in cause.speaks_for)


def test_the_log_is_evidence_for_rules_that_there_are():
    assert set(QUOTED) <= {rule.id for rule in ALL}


ORPHAN = recorded.target(
    "624@1795967810",
    sf.CORE,
    sf.CORE,
    processes=(TargetProcess(sf.CORE, 1, "engine-core", "VLLM::EngineCore", mem_bytes=76 << 30, state="S", gpus=(0,)),),
    urls=(),
    orphan=True,
)


def test_an_engine_core_without_its_api_server_is_told_with_the_memory_that_it_holds():
    frames = busy(60, edit=without_engine(from_s=20, targets=(ORPHAN,)))
    assert raised_at("stalled", RULES, frames) == 30
    found = symptom("stalled", RULES, frames)
    assert found.headline == (
        "the API server is gone: 1 orphaned process left, holding 76.0 GiB of GPU memory; 64 requests ran"
    )
    assert found.subject.key == "engine:624@1795967810"
    assert found.advice[0].text.endswith("kill 624")


def test_children_that_outlive_their_server_for_a_moment_are_no_orphans():
    def edit(frame: Frame, s: int) -> Frame:
        return without_engine(from_s=20, targets=(ORPHAN,) if s < 26 else ())(frame, s)

    frames = busy(40, live=NOTHING, edit=edit)
    assert raised_at("stalled", RULES, frames) is None


# -- field case 34 ------------------------------------------------------------------


def case_34():
    """Frames at one a second, from five scrapes and GPU readings 5 s apart."""
    times, nvml = case_json(34, "times"), case_json(34, "nvml")
    tracker, made, page, window, node = EngineTracker(), [], None, None, None
    scrapes = {at: read_page(case_page(34, name)) for name, at in times.items()}
    ticks = {tick["t"]: tick for tick in nvml["ticks"]}
    for s in range(max(times.values()) + 6):
        if s in scrapes:
            page, scraped = scrapes[s], s
            window = tracker.push(page, sf.MONO_S + s)
        if s in ticks:
            gpu = Gpu(
                0,
                name=nvml["device"]["Name"],
                util_pct=float(ticks[s]["UtilizationRates"]["gpu"]),
                mem_util_pct=float(ticks[s]["UtilizationRates"]["memory"]),
                power_w=ticks[s]["PowerUsage"] / 1000,
                power_limit_w=nvml["device"]["EnforcedPowerLimit"] / 1000,
                missing={"gpm": "not asked for"},
            )
            node = GpuNode((gpu,))
        scrape = Part(page, sf.AT_S + scraped, sf.MONO_S + scraped, float(s - scraped), 0.004, None, 5.0, 1)
        made.append(
            Frame(
                seq=s,
                at_s=sf.AT_S + s,
                mono_s=sf.MONO_S + s,
                period_s=1.0,
                gpus=recorded.part(node),
                host=recorded.part(recorded.host()),
                targets=recorded.part(TargetList((recorded.target(sf.KEY),))),
                engines=(EngineFrame(sf.KEY, sf.URL, scrape, window),),
                focus=sf.KEY,
            )
        )
    return times, made


def test_case_34_is_raised_by_t3_and_is_first_in_the_list():
    times, frames = case_34()
    assert raised_at("stalled", ALL, frames) <= times["t3"]
    at_t3 = reports(ALL, frames)[times["t3"]]
    assert at_t3.active[0].id == "stalled"


def test_case_34_kv_pressure_and_the_growing_queue_are_its_consequences():
    _, frames = case_34()
    last = reports(ALL, frames)[-1]
    stalled = last.active[0]
    assert (stalled.id, stalled.root) == ("stalled", None)
    below = {s.id: s.root for s in last.active[1:]}
    assert below["kv-pressure"] == below["queue-growing"] == stalled.key
    assert set(below.values()) == {stalled.key}


def test_case_34_a_busy_gpu_at_a_third_of_its_power_is_a_spinning_wait():
    times, frames = case_34()
    found = next(s for s in reports(ALL, frames)[times["t4"]].active if s.id == "stalled")
    assert found.headline == "no token for 15 s with 35 running: GPU 0 spins at 100 % on 220 of 700 W"
    assert (number(found, "GPU 0 utilisation"), number(found, "GPU 0 power")) == (100.0, 220.0)
    assert number(found, "last change of any figure") == pytest.approx(0.0)
    assert found.next_capture == "py-spy"
    assert "side by side" in found.advice[0].text


def test_case_34_a_page_and_a_health_check_that_answer_do_not_make_it_healthy():
    _, frames = case_34()
    last = reports(ALL, frames)[-1]
    assert all(e.scrape.error is None for e in frames[-1].engines)
    assert last.active[0].severity is Severity.CRITICAL
