"""metrics-stale: a page that does not come, comes slowly, or stands still while its GPU works."""

from __future__ import annotations

import random

import pytest

from gputop_llm.model import EngineWindow, GpuProcess
from gputop_llm.model.symptom import Severity
from gputop_llm.symptoms.catalogue import RULES as ALL
from gputop_llm.symptoms.rules import stale
from tests.support import symptom_frames as sf
from tests.support.symptom_frames import (
    busy,
    cause,
    changing,
    latency,
    limits,
    number,
    raised_at,
    reports,
    symptom,
    times_raised,
    unanswered,
)

SILENT = "cannot read http://127.0.0.1:8000/metrics: no answer within 5 s; the server may be overloaded or hung"


def silent(error=SILENT, from_s=10, **changes):
    return busy(
        changes.pop("seconds", 40), scrape={"at": from_s, "error": changing((0, None), (from_s + 1, error))}, **changes
    )


def test_a_page_that_stops_answering_is_raised_after_ten_seconds_and_critical():
    frames = silent()
    assert raised_at("metrics-stale", stale.RULES, frames) == 20
    found = symptom("metrics-stale", stale.RULES, frames)
    assert found.headline == "no answer from the metrics page for 29 s: all engine figures are that old"
    assert (found.severity, number(found, "last good scrape")) == (Severity.CRITICAL, pytest.approx(29.2))
    assert {e.name: e.text for e in found.evidence}["error"] == SILENT


def one_of_two_pages_unread(from_s, to_s=10**6, seconds=40):
    urls = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    unread = lambda s: {urls[1]: SILENT.replace("8000", "8001")} if from_s <= s < to_s else {}  # noqa: E731
    return busy(seconds, reading={"unread": unread}, target={"urls": urls})


def test_a_page_of_one_rank_that_stops_answering_is_raised_too():
    frames = one_of_two_pages_unread(11)
    assert raised_at("metrics-stale", stale.RULES, frames) == 20
    found = symptom("metrics-stale", stale.RULES, frames)
    assert found.headline == "1 of its 2 pages not read for 29 s: no figure covers all ranks"
    assert "127.0.0.1:8001/metrics: no answer" in {e.name: e.text for e in found.evidence}["error"]


def test_a_page_of_one_rank_that_misses_a_few_scrapes_is_a_hiccup():
    assert raised_at("metrics-stale", stale.RULES, one_of_two_pages_unread(11, 19)) is None


def test_nine_seconds_of_silence_are_a_hiccup():
    assert raised_at("metrics-stale", stale.RULES, silent(seconds=20)) is None


def test_it_ends_five_seconds_after_the_page_is_back():
    at = lambda s: 10 if s < 40 else s  # noqa: E731
    frames = busy(60, scrape={"at": at, "error": lambda s: SILENT if 10 < s < 40 else None})
    held = [bool(r.active) for r in reports(stale.RULES, frames)]
    assert [s for s in range(60) if held[s]][-1] == 44


def test_a_page_that_is_asked_for_once_a_minute_may_be_two_minutes_old():
    frames = busy(100, scrape={"at": 0, "period_s": 60.0})
    assert raised_at("metrics-stale", stale.RULES, frames) is None


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SILENT, "API server hangs"),
        ("cannot read it: nothing listens there (connection refused)", "not its port"),
        ("cannot read it: it needs authorisation (401)", "needs an API key"),
    ],
)
def test_the_error_tells_which_cause_comes_first(error, text):
    assert text in symptom("metrics-stale", stale.RULES, silent(error)).causes[0].text


def test_a_stopped_api_server_is_named():
    found = symptom("metrics-stale", stale.RULES, silent(load={sf.API_SERVER: {"state": "T"}}))
    assert "api-server 600 is stopped (state T)" in cause(found, "API server hangs").speaks_for


def test_an_address_that_never_answered_is_told_once_the_engine_can_not_be_starting():
    frames = busy(60, target={"started_s": sf.AT_S - 5000.0}, edit=unanswered)
    assert raised_at("metrics-stale", stale.RULES, frames) == 13
    found = symptom("metrics-stale", stale.RULES, frames)
    assert found.headline == "the metrics page has never answered, asked for 59 s"
    assert (found.severity, number(found, "last good scrape")) == (Severity.WARNING, None)
    assert found.causes[0].text.startswith("the server is gone")


def test_slow_scrapes_are_raised_and_quick_ones_are_not():
    found = symptom("metrics-stale", stale.RULES, busy(40, scrape={"took_s": 1.3}))
    assert found.headline == "the metrics page takes 1.30 s: the API server has no time left"
    assert (found.severity, number(found, "a scrape takes")) == (Severity.WARNING, pytest.approx(1.3))
    assert raised_at("metrics-stale", stale.RULES, busy(40, scrape={"took_s": 0.9})) is None


def test_one_slow_scrape_is_none():
    frames = busy(40, scrape={"took_s": lambda s: 4.0 if s == 20 else 0.01})
    assert raised_at("metrics-stale", stale.RULES, frames) is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("middle", [1.0, 0.5])
def test_noise_around_either_duration_does_not_flap(seed, middle):
    dice = random.Random(seed)
    took = [2.0 if s < 30 else middle * dice.uniform(0.8, 1.2) for s in range(300)]
    assert times_raised("metrics-stale", stale.RULES, busy(300, scrape={"took_s": lambda s: took[s]})) == 1


IDLE_PAGE = {
    "live": {"running": 0.0, "generation_tokens_per_s": 0.0},
    "counters": {"generation_tokens": 7e5, "steps": 9e4},
}


def test_counters_that_stand_still_while_nothing_runs_and_the_gpu_is_busy_are_not_to_be_trusted():
    frames = busy(60, **IDLE_PAGE)
    assert raised_at("metrics-stale", stale.RULES, frames) == 30
    found = symptom("metrics-stale", stale.RULES, frames)
    assert found.headline == "the page says that nothing runs, yet GPU 0 is 97 % busy"
    assert "lost its connection" in found.causes[0].text


@pytest.mark.parametrize(
    "gpu",
    [
        {"util_pct": 40.0},
        {"util_pct": None, "missing": {"util_pct": "MIG"}},
        {"processes": None},
        {
            "processes": (
                GpuProcess(624, "compute", 1, 90.0, None),
                GpuProcess(7, "compute", 1, 5.0, None),
            )
        },
    ],
    ids=["not busy", "unknown", "whose it is is unknown", "somebody else's"],
)
def test_a_gpu_that_may_be_busy_for_others_proves_nothing(gpu):
    assert raised_at("metrics-stale", stale.RULES, busy(60, gpu=gpu, **IDLE_PAGE)) is None


def test_a_page_that_stands_still_with_requests_while_the_gpu_computes_is_told_before_it_is_a_standstill():
    frames = busy(100, counters=IDLE_PAGE["counters"])
    assert raised_at("metrics-stale", stale.RULES, frames) == 30
    found = symptom("metrics-stale", stale.RULES, frames[:50])
    assert found.headline == "the page has not moved, yet GPU 0 is 97 % busy"
    assert "very long prompt" in cause(found, "prompt").text
    assert [(s.id, s.root) for s in reports(ALL, frames)[-1].active if s.id in ("stalled", "metrics-stale")] == [
        ("stalled", None),
        ("metrics-stale", f"stalled@{sf.SUBJECT}"),
    ]


@pytest.mark.parametrize("moves", ["kv_usage_pct", "waiting"])
def test_a_page_on_which_anything_moves_is_to_be_trusted(moves):
    frames = busy(60, counters=IDLE_PAGE["counters"], live={moves: lambda s: 10.0 + 0.1 * s})
    assert raised_at("metrics-stale", stale.RULES, frames) is None


def test_a_standstill_with_requests_is_stalled_and_nothing_else():
    page = {"counters": IDLE_PAGE["counters"], "gpu": sf.CLEAR_OF_WORK}
    ids = {s.id for s in reports(ALL, busy(60, **page))[-1].active}
    assert "stalled" in ids
    assert "metrics-stale" not in ids


def test_the_age_that_counts_as_stale_can_be_set():
    in_force = limits({"metrics-stale.age_s": 25.0})
    assert raised_at("metrics-stale", stale.RULES, silent(seconds=60), in_force=in_force) == 35


def test_a_silent_page_over_an_idle_engine_is_grouped_under_the_standstill():
    idle = {"util_pct": changing((0, 97.0), (11, 0.0)), "power_w": 118.0, "gpm.tensor_pct": 0.0}
    frames = silent(gpu=idle, load={sf.CORE: {"cpu_pct": changing((0, 50.0), (11, 0.3)), "main_thread_pct": 0.3}})
    active = [s for s in reports(ALL, frames)[-1].active if s.id in ("stalled", "metrics-stale")]
    assert [(s.id, s.root) for s in active] == [("stalled", None), ("metrics-stale", active[0].key)]


def test_windows_of_engines_hold_what_the_builder_says():
    # The builder's own promise, on which every test here rests.
    frames = busy(2, live={"running": 5.0}, lat={"ttft": latency(0.4)})
    window = frames[-1].engines[0].window
    assert isinstance(window, EngineWindow)
    assert (window.total.running, window.total.latency["ttft"].p95.value) == (5.0, 0.4)
