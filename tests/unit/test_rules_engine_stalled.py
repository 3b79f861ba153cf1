"""stalled: an engine that runs requests and makes no progress, and what kind of standstill it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import EngineLog, EngineSeries, LogSignal, Part, TargetLog
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.rules.stalled import RULES
from tests.support import symptom_frames as sf
from tests.support.symptom_frames import (
    busy,
    cant_tell,
    cause,
    changing,
    number,
    raised_at,
    reports,
    stuck_from,
    symptom,
)

FROM = 10


def still(second=FROM):
    return {"generation_tokens": stuck_from(second), "steps": stuck_from(second, "steps")}


def falls(value, to, second=FROM):
    """A reading that changes with the standstill; it shows one second later."""
    return changing((0, value), (second + 1, to))


SPINNING = {"util_pct": falls(97.0, 100.0), "power_w": falls(545.0, 220.0), "gpm.tensor_pct": falls(36.0, 0.0)}
IDLE = {"util_pct": falls(97.0, 0.0), "power_w": falls(545.0, 118.0), "gpm.tensor_pct": falls(36.0, 0.0)}
NO_CPU = {"cpu_pct": falls(50.0, 0.4), "main_thread_pct": falls(48.0, 0.3)}


def test_ten_seconds_without_a_step_or_token_are_a_standstill():
    frames = busy(40, counters=still(), gpu=SPINNING)
    assert raised_at("stalled", RULES, frames) == FROM + 10
    assert symptom("stalled", RULES, frames).severity is Severity.CRITICAL


@pytest.mark.parametrize(
    ("kind", "age_s", "key", "quoted"),
    [
        ("nccl", 5.0, sf.KEY, True),
        ("slow", 5.0, sf.KEY, True),
        ("nccl", 1000.0, sf.KEY, False),
        ("preemption", 5.0, sf.KEY, False),
        ("nccl", 5.0, "another engine", False),
    ],
)
def test_what_the_log_says_of_it_is_evidence(kind, age_s, key, quoted):
    text = "Watchdog caught collective operation timeout"
    said = LogSignal(kind, Severity.CRITICAL, text, sf.AT_S + 39 - age_s)
    logs = (TargetLog(key, Part(EngineLog(("/l",), signals=(said,)))),)
    frames = busy(40, counters=still(), gpu=SPINNING, edit=lambda frame, _s: replace(frame, logs=logs))
    found = [e.text for e in symptom("stalled", RULES, frames).evidence if e.name == "its log says"]
    assert found == ([f"{text}, 5 s ago"] if quoted else [])


def test_nine_seconds_are_none():
    tokens = lambda s: stuck_from(FROM)(s) if s < FROM + 9 else stuck_from(999)(s)  # noqa: E731
    frames = busy(40, counters={**still(), "generation_tokens": tokens}, gpu=SPINNING)
    assert raised_at("stalled", RULES, frames) is None


@pytest.mark.parametrize("moving", ["generation_tokens", "steps"])
def test_either_counter_is_progress(moving):
    counters = {name: count for name, count in still().items() if name != moving}
    assert raised_at("stalled", RULES, busy(60, counters=counters, gpu=SPINNING)) is None


def test_an_idle_engine_does_not_stand_still_and_neither_does_one_that_gets_its_first_request():
    counters = {"generation_tokens": 500.0, "steps": 90.0}
    idle = busy(60, counters=counters, live={"running": 0.0}, gpu=SPINNING)
    assert raised_at("stalled", RULES, idle) is None
    woken = busy(60, counters=counters, live={"running": changing((0, 0.0), (52, 1.0))}, gpu=SPINNING)
    assert raised_at("stalled", RULES, woken) is None


def test_it_ends_with_the_first_progress_after_five_seconds():
    tokens = changing((0, 0.0))
    frames = busy(
        60, counters={**still(), "generation_tokens": lambda s: tokens(s) + (s if s > 40 else 0)}, gpu=SPINNING
    )
    raised = [any(x.id == "stalled" for x in r.active) for r in reports(RULES, frames)]
    assert raised.index(True) == FROM + 10
    assert [s for s in range(60) if raised[s]][-1] == 45


def test_how_long_is_told_from_the_last_progress_and_not_from_when_it_was_raised():
    found = symptom("stalled", RULES, busy(40, counters=still(), gpu=SPINNING, live={"waiting": 12.0}))
    assert found.headline.startswith("no token for 29 s with 64 running: ")
    assert number(found, "no token for") == pytest.approx(29.0)
    assert (number(found, "running"), number(found, "waiting")) == (64.0, 12.0)
    assert (found.next_capture, found.chart) == ("py-spy", f"engine.{sf.KEY}.generation_tokens_per_s")


def test_a_standstill_that_is_older_than_the_monitor_says_so():
    counters = {"generation_tokens": 500.0, "steps": 90.0}
    frames = busy(20, counters=counters, gpu=sf.CLEAR_OF_WORK)
    assert raised_at("stalled", RULES, frames) == 10
    assert "no token for more than 19 s" in symptom("stalled", RULES, frames).headline


# -- a long prefill is no standstill ------------------------------------------------


def test_while_the_gpu_computes_a_minute_without_a_token_is_allowed():
    frames = busy(100, counters=still())
    assert raised_at("stalled", RULES, frames) == FROM + 60
    assert "very long prompt" in symptom("stalled", RULES, frames).causes[0].text


def test_without_gpm_the_power_tells_whether_the_gpu_computes():
    frames = busy(60, counters=still(), gpu={"gpm": None, "power_w": 545.0})
    assert raised_at("stalled", RULES, frames) is None
    frames = busy(60, counters=still(), gpu={"gpm": None, "power_w": falls(545.0, 220.0)})
    assert raised_at("stalled", RULES, frames) == FROM + 10


def test_a_kv_cache_that_fills_is_a_prefill_too():
    frames = busy(60, counters=still(), gpu=SPINNING, live={"kv_usage_pct": lambda s: 20.0 + 0.5 * s})
    assert raised_at("stalled", RULES, frames) is None


# -- kinds --------------------------------------------------------------------------


def test_a_busy_gpu_at_low_power_is_a_spinning_kernel():
    found = symptom("stalled", RULES, busy(40, counters=still(), gpu=SPINNING))
    assert found.headline.endswith("GPU 0 spins at 100 % on 220 of 700 W")
    assert found.causes[0].speaks_for == ("GPU 0 reads 100 % busy on 220 of 700 W",)
    assert "never ends" in found.causes[0].text
    assert cause(found, "deadlock").speaks_against == ("GPU 0 busy",)
    assert found.confidence == "high"


def test_several_busy_gpus_are_a_collective():
    found = symptom("stalled", RULES, busy(40, gpus=2, counters=still(), gpu=SPINNING))
    assert found.headline.endswith("GPUs 0, 1 spin at 100 % on 440 of 1400 W")
    assert "a collective that never ends" in found.causes[0].text
    assert (number(found, "GPU 1 utilisation"), number(found, "GPU 1 power")) == (100.0, 220.0)


def test_the_rank_that_idles_while_the_others_spin_is_named():
    found = symptom("stalled", RULES, busy(40, gpus=4, counters=still(), gpu=SPINNING, each_gpu={2: IDLE}))
    assert found.headline.endswith("GPU 2 (TP2) idles, GPUs 0, 1, 3 spin")
    assert "GPU 2 idle while others spin" in cause(found, "collective").speaks_for


def test_idle_gpus_and_processes_are_a_deadlock_on_the_host():
    frames = busy(40, counters=still(), gpu=IDLE, load={sf.CORE: NO_CPU}, reading={"version": "0.32.1"})
    found = symptom("stalled", RULES, frames)
    assert found.severity is Severity.CRITICAL
    assert found.headline.endswith("GPU 0 idle at 0 %, its processes wait")
    assert "deadlock" in found.causes[0].text
    assert "the engine's processes use no CPU: they wait" in found.causes[0].speaks_for
    assert cause(found, "paused on purpose").speaks_for
    assert cause(found, "never ends").speaks_against == ("GPU 0 idle",)


def test_an_idle_gpu_with_a_busy_engine_core_is_a_loop_on_the_host():
    frames = busy(40, counters=still(), gpu=IDLE, load={sf.CORE: {"main_thread_pct": falls(48.0, 99.0)}})
    found = symptom("stalled", RULES, frames)
    assert found.headline.endswith("GPU 0 idle at 0 %, engine-core 624, main thread loops")
    assert "engine-core 624, main thread takes 99 % of a core" in found.causes[0].speaks_for


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_process_is_named(letter):
    frames = busy(
        40, gpus=2, counters=still(), gpu=IDLE, load={641: {"state": falls("R", letter), "cpu_pct": falls(50.0, 0.0)}}
    )
    found = symptom("stalled", RULES, frames)
    assert found.headline.endswith("worker 641 (TP1) is stopped (state T)")
    assert "stopped: by SIGSTOP" in found.causes[0].text
    assert any("kill -CONT" in a.text for a in found.advice)


def test_of_a_stopped_rank_it_is_told_that_the_other_one_spins_in_their_collective():
    load = {641: {"state": falls("R", "T"), "cpu_pct": falls(50.0, 0.0)}}
    frames = busy(40, gpus=2, counters=still(), gpu=SPINNING, each_gpu={1: IDLE}, load=load)
    found = symptom("stalled", RULES, frames)
    assert found.headline.endswith("worker 641 (TP1) is stopped (state T), GPU 0 spins")
    assert ["stopped: by SIGSTOP" in found.causes[0].text, "collective" in found.causes[1].text] == [True, True]
    assert "GPU 1 idle while others spin" in found.causes[1].speaks_for


def test_a_stopped_process_is_a_standstill_though_the_gauge_of_the_last_step_said_that_nothing_ran():
    frames = busy(40, counters=still(), live={"running": 0.0}, load={sf.CORE: {"state": falls("S", "T")}})
    assert raised_at("stalled", RULES, frames) == FROM + 11
    found = symptom("stalled", RULES, frames)
    assert found.headline == "no token for 28 s: engine-core 624 is stopped (state T), so that no request can be served"
    assert found.severity is Severity.CRITICAL
    (running,) = [e for e in found.evidence if e.name == "running"]
    assert running.text == "0 at the last step; what came since is not counted"


def test_how_long_it_was_stopped_before_the_monitor_began_is_not_known():
    counters = {"generation_tokens": 500.0, "steps": 90.0}
    frames = busy(20, counters=counters, live={"running": 0.0}, load={sf.CORE: {"state": "T"}})
    assert symptom("stalled", RULES, frames).headline.startswith("no token for more than 19 s: engine-core 624 is")


def test_a_process_that_is_stopped_while_others_serve_is_no_standstill():
    frames = busy(40, live={"running": 0.0}, load={sf.CORE: {"state": falls("S", "T")}})
    assert raised_at("stalled", RULES, frames) is None


def test_an_idle_engine_whose_process_was_stopped_for_a_moment_is_well():
    state = changing((0, "S"), (FROM, "T"), (FROM + 8, "S"))
    frames = busy(40, counters=still(), live={"running": 0.0}, load={sf.CORE: {"state": state}})
    assert raised_at("stalled", RULES, frames) is None


def test_a_stopped_api_server_is_told_though_nothing_ran():
    scrape = {"at": FROM, "error": changing((0, None), (FROM + 2, "no answer"))}
    frames = busy(40, live={"running": 0.0}, scrape=scrape, load={sf.API_SERVER: {"state": falls("S", "T")}})
    found = symptom("stalled", RULES, frames)
    assert found.headline.startswith("no answer for 29 s: api-server 600 is stopped (state T)")


@pytest.mark.parametrize(("stopped", "raised"), [(True, True), (False, False)])
def test_of_an_engine_that_warms_up_only_what_is_seen_is_raised(stopped, raised):
    load = {sf.CORE: {"state": falls("S", "T" if stopped else "S"), "cpu_pct": 0.0}}
    frames = busy(60, counters=still(), gpu=IDLE, load=load, reading={"started_s": sf.AT_S - 20.0})
    last = reports(ALL, frames)[-1]
    assert any(s.id == "stalled" for s in last.active) is raised
    assert any(s.id == "stalled" for s in last.held_back) is not raised


def test_nobody_is_told_that_clients_are_the_limit_while_a_process_is_stopped():
    live = {"running": 0.0, "generation_tokens_per_s": 0.0}
    frames = busy(60, counters=still(), live=live, gpu=IDLE, load={sf.CORE: {"state": falls("S", "T")}})
    assert [s.id for s in reports(ALL, frames)[-1].active] == ["stalled"]


def test_a_process_that_is_gone_is_named():
    frames = busy(40, gpus=2, counters=still(), gpu=SPINNING, process={641: falls({}, None)})
    found = symptom("stalled", RULES, frames)
    assert found.headline.endswith("worker 641 (TP1) is gone")
    assert "is dead" in found.causes[0].text
    assert any("OOM" in a.text for a in found.advice)


def test_a_zombie_is_named():
    frames = busy(40, gpus=2, counters=still(), gpu=SPINNING, process={641: {"state": falls("R", "Z")}})
    assert symptom("stalled", RULES, frames).headline.endswith("worker 641 (TP1) is a zombie")


def test_a_front_end_that_has_no_time_left_while_the_engine_idles_is_told_from_a_deadlock():
    load = {sf.CORE: NO_CPU, sf.API_SERVER: {"main_thread_pct": falls(22.0, 100.0), "cpu_pct": falls(27.0, 101.0)}}
    found = symptom("stalled", RULES, busy(40, counters=still(), gpu=IDLE, load=load))
    assert found.headline.endswith("the API server hangs, the engine idles")
    assert "front end" in found.causes[0].text
    assert "api-server 600, main thread takes 100 % of a core" in found.causes[0].speaks_for
    assert cause(found, "deadlock").speaks_for == ()


def test_an_api_server_that_does_not_answer_while_the_engine_idles_is_a_front_end_stall():
    scrape = {"at": FROM, "error": changing((0, None), (FROM + 2, "cannot read it: no answer within 5 s"))}
    frames = busy(40, scrape=scrape, gpu=IDLE, load={sf.CORE: NO_CPU})
    found = symptom("stalled", RULES, frames)
    assert found.headline == "no answer for 29 s with 64 running: the API server hangs, the engine idles"
    assert "no answer: cannot read it: no answer within 5 s" in cause(found, "front end").speaks_for


def test_a_stopped_api_server_is_named_although_its_page_is_silent():
    scrape = {"at": FROM, "error": changing((0, None), (FROM + 2, "no answer"))}
    frames = busy(40, scrape=scrape, gpu=IDLE, load={sf.CORE: NO_CPU, sf.API_SERVER: {"state": falls("S", "T")}})
    assert symptom("stalled", RULES, frames).headline.endswith("api-server 600 is stopped (state T)")


def test_a_silent_page_over_an_engine_that_works_can_not_be_judged():
    frames = busy(40, scrape={"at": FROM, "error": "no answer"})
    (lacking,) = cant_tell("stalled", RULES, frames)
    assert lacking.needs == "a fresh metrics page (the last one is 29 s old)"
    assert raised_at("stalled", RULES, frames) is None


def test_without_utilisation_the_standstill_is_raised_and_its_kind_left_open():
    mig = {"mig_enabled": True, "util_pct": None, "gpm": None, "power_w": None}
    found = symptom("stalled", RULES, busy(40, counters=still(), gpu=mig))
    assert found.headline.endswith("what it hangs in can't be told without GPU utilisation")
    missing = {e.name: e.missing for e in found.evidence}
    assert missing["GPU 0 utilisation"] == "MIG: utilisation isn't defined for the parent GPU"


def test_each_process_is_listed_with_its_state_for_comparison():
    found = symptom("stalled", RULES, busy(40, gpus=2, counters=still(), gpu=SPINNING))
    text = {e.name: e.text for e in found.evidence}
    assert text["worker 640 (TP0)"] == "state R, 51 % of a core"
    assert {"api-server 600", "engine-core 624", "worker 641 (TP1)"} <= set(text)
    assert "600, 624, 640, 641" in found.advice[0].text


# -- data-parallel ranks ------------------------------------------------------------


def test_one_of_two_ranks_that_stands_still_is_named():
    frames = busy(40, ranks=[{}, {"counters": still()}], gpu=SPINNING)
    found = symptom("stalled", RULES, frames)
    assert (found.subject.key, found.subject.label) == (f"{sf.SUBJECT}/rank:1", "vllm /models/llama-8b, DP rank 1")


def test_ranks_that_all_stand_still_are_one_symptom():
    frames = busy(
        40, ranks=[{"counters": still(), "running": 5.0}, {"counters": still(), "running": 7.0}], gpu=SPINNING
    )
    found = symptom("stalled", RULES, frames)
    assert (found.subject.key, number(found, "running")) == (sf.SUBJECT, 12.0)


def test_an_idle_rank_beside_a_busy_one_is_no_standstill():
    frames = busy(60, ranks=[{}, {"counters": still(), "running": 0.0}], gpu=SPINNING)
    assert raised_at("stalled", RULES, frames) is None


# -- can't tell ---------------------------------------------------------------------


def test_counters_that_move_only_as_requests_end_say_nothing():
    frames = busy(40, counters=still(), reading={"progress": ()})
    (lacking,) = cant_tell("stalled", RULES, frames)
    assert lacking.needs == "a live progress signal: this engine's counters move only as requests end"


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"counters": {"generation_tokens": None, "steps": None}}, "step or token counters (not on the page yet)"),
        ({"counters": {"generation_tokens": 0.0, "steps": None}}, "a live progress signal: no step counter, and"),
        ({"live": {"running": None, "missing": {"running": "hidden"}}}, "running (hidden)"),
        ({"reading": {"problem": "the page has process metrics only"}}, "the engine's metrics (the page has process"),
    ],
)
def test_what_is_lacking_is_told(changes, needs):
    frames = busy(40, **changes)
    (lacking,) = cant_tell("stalled", RULES, frames)
    assert lacking.needs.startswith(needs)
    assert raised_at("stalled", RULES, frames) is None


def test_series_of_a_rank_are_added_up_over_models():
    # Two models on one engine: only both together can stand still.
    series = lambda s: tuple(  # noqa: E731
        EngineSeries(m, "0", running=4.0, counters={"generation_tokens": 100.0 + (s if m == "b" else 0)}) for m in "ab"
    )
    frames = busy(40, reading={"series": series}, gpu=SPINNING)
    assert raised_at("stalled", RULES, frames) is None
