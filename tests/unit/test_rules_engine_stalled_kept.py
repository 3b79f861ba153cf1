"""stalled, further: gauges that an idle vLLM kept, and requests that wait while none runs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from gputop_llm.model import GpuProcess
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.rules.stalled import RULES
from tests.support import symptom_frames as sf
from tests.support.symptom_frames import busy, cause, changing, raised_at, stuck_from, symptom

FROM = 10


def still():
    return {"generation_tokens": stuck_from(FROM), "steps": stuck_from(FROM, "steps")}


def falls(value, to):
    return changing((0, value), (FROM + 1, to))


IDLE = {"util_pct": falls(97.0, 0.0), "power_w": falls(545.0, 118.0), "gpm.tensor_pct": falls(36.0, 0.0)}
NO_CPU = {"cpu_pct": falls(50.0, 0.4), "main_thread_pct": falls(48.0, 0.3)}


def another_on_its_gpu(frame, s, kind="compute", sm_util_pct=90.0):
    gpu = frame.gpus.value.gpus[0]
    gpu = replace(gpu, processes=(*gpu.processes, GpuProcess(4471, kind, 1 << 30, sm_util_pct, None)))
    return replace(frame, gpus=replace(frame.gpus, value=replace(frame.gpus.value, gpus=(gpu,))))


def test_a_gauge_that_vllm_forgot_to_reset_is_one_of_the_causes_before_032():
    frames = busy(40, counters=still(), gpu=IDLE, load={sf.CORE: NO_CPU}, reading={"version": "0.24.0"})
    told = symptom("stalled", RULES, frames)
    assert cause(told, "gauge").speaks_for == ("vLLM 0.24.0; GPUs and engine core are idle",)
    # It may be quite well.
    assert told.severity is Severity.WARNING
    assert told.headline.endswith("its processes wait; stuck, or nothing runs and vLLM 0.24.0 kept its gauge")
    shared = symptom("stalled", RULES, busy(90, counters=still(), load={sf.CORE: NO_CPU}, edit=another_on_its_gpu))
    assert shared.severity is Severity.WARNING
    assert ": its engine core waits; stuck, or nothing runs" in shared.headline
    spin = {pid: {"cpu_pct": 100.0, "main_thread_pct": 99.0} for pid in (sf.WORKER, sf.WORKER + 1)}
    two = {"counters": still(), "gpu": IDLE, "gpus": 2}
    workers = symptom("stalled", RULES, busy(40, **two, load={sf.CORE: NO_CPU, **spin}))
    assert workers.severity is Severity.WARNING
    assert "GPUs 0, 1 idle, its engine core waits; stuck, or nothing runs" in workers.headline
    assert symptom("stalled", RULES, busy(40, **two, load=spin)).severity is Severity.CRITICAL
    newer = busy(40, counters=still(), gpu=IDLE, load={sf.CORE: NO_CPU}, reading={"version": "0.32.1"})
    assert cause(symptom("stalled", RULES, newer), "gauge").speaks_against == ("vLLM 0.32.1",)


def test_gauges_that_lag_are_waited_for_and_the_evidence_names_that_limit():
    frames = busy(90, counters=still(), gpu=IDLE, load={sf.CORE: NO_CPU}, reading={"gauges_lag_s": 30.0})
    assert raised_at("stalled", RULES, frames) == FROM + 40
    silence = symptom("stalled", RULES, frames).evidence[0]
    assert (silence.name, silence.threshold) == ("no token for", 40.0)


@pytest.mark.parametrize(("kind", "sm_util_pct"), [("compute", 0.0), ("compute", None), ("graphics", 90.0)])
def test_a_gpu_that_spins_is_no_idle_engine_because_somebody_else_is_there_too(kind, sm_util_pct):
    there = partial(another_on_its_gpu, kind=kind, sm_util_pct=sm_util_pct)
    found = symptom("stalled", RULES, busy(90, counters=still(), load={sf.CORE: NO_CPU}, edit=there))
    assert found.severity is Severity.CRITICAL
    assert "kept its gauge" not in found.headline


def test_requests_that_wait_for_a_minute_while_none_runs_are_held_up():
    held = {"live": {"running": 0.0, "waiting": 6.0, "kv_usage_pct": 0.0}, "counters": still(), "gpu": IDLE}
    page = {"version": "0.33.0", "sleeping": "awake"}
    frames = busy(90, **held, reading=page, load={sf.CORE: NO_CPU})
    assert raised_at("stalled", RULES, frames) == FROM + 60
    found = symptom("stalled", RULES, frames)
    assert found.severity is Severity.WARNING
    assert found.headline == (
        "no token for 1 m 19 s with 6 waiting and none running: GPU 0 idle at 0 %, its processes wait"
    )
    assert raised_at("stalled", RULES, busy(90, **held, reading={**page, "sleeping": "weights_offloaded"})) is None
    older = symptom("stalled", RULES, busy(90, **held, reading={"version": "0.24.0"}, load={sf.CORE: NO_CPU}))
    assert "kept its gauge" not in older.headline, "it says that none runs"
    for moves in ({"running": lambda s: float(s == 60)}, {"waiting": lambda s: 6.0 * (s != 60)}):
        frames = busy(90, **{**held, "live": {**held["live"], **moves}}, reading=page)
        assert raised_at("stalled", RULES, frames) is None


@pytest.mark.parametrize(
    ("flag", "gpu", "said"),
    [("-tp", IDLE, "GPU 1 idle, its engine core waits"), ("-ep", {}, "the other ranks go on")],
)
def test_one_rank_whose_gauge_was_kept_is_no_broken_engine(flag, gpu, said):
    apart = {640: {"rank": "DP0"}, 641: {"rank": "DP1"}}
    ranks = ({"running": 40.0}, {"running": 5.0, "counters": still()})
    load = {sf.CORE: {"cpu_pct": 0.4, "main_thread_pct": 0.3}, 641: NO_CPU}
    target = {"argv": ("vllm", "serve", "m", flag)}
    frames = busy(90, gpus=2, ranks=ranks, process=apart, each_gpu={1: gpu}, load=load, target=target)
    found = symptom("stalled", RULES, frames)
    assert (found.severity, found.subject.key) == (Severity.WARNING, f"{sf.SUBJECT}/rank:1")
    assert f"with 5 running: {said}; stuck, or nothing runs" in found.headline
