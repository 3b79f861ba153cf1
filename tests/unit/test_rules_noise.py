"""Requests that come one by one: counts that touch nothing for a moment make no symptom come and go."""

from __future__ import annotations

import random

import pytest

from gputop_llm.symptoms.catalogue import RULES
from tests.support.symptom_frames import CORE, busy, raised_at, times_raised

SECONDS = 240
IDLE_GPU = {"util_pct": 40.0, "gpm.sm_active_pct": 30.0}


def now_and_then_none(seed: int, most: int = 5):
    """Between one and `most`, and none in one second of twenty."""
    dice = random.Random(seed)
    counts = [0.0 if dice.random() < 0.05 else float(dice.randint(1, most)) for _ in range(SECONDS)]
    return counts.__getitem__


def rule(name: str):
    return [one for one in RULES if one.id == name]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpu-starved", {"gpu": IDLE_GPU}),
        ("host-bound", {"gpu": IDLE_GPU, "load": {CORE: {"main_thread_pct": 97.0}}}),
        ("comm-bound", {"gpus": 2, "each_gpu": {1: {"util_pct": 40.0}}}),
    ],
)
def test_a_moment_without_requests_is_no_end_of_it(name, changes, seed):
    frames = busy(SECONDS, live={"running": now_and_then_none(seed)}, **changes)
    assert times_raised(name, rule(name), frames) == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_moment_without_a_queue_is_no_end_of_a_cap(seed):
    frames = busy(SECONDS, live={"waiting": now_and_then_none(seed)})
    assert times_raised("scheduler-capped", rule("scheduler-capped"), frames) == 1


@pytest.mark.parametrize("seed", range(2))
def test_one_that_waits_for_a_moment_is_no_end_of_a_light_load(seed):
    waits = now_and_then_none(seed)
    live = {"running": 2.0, "waiting": lambda s: float(waits(s) == 0.0)}
    assert times_raised("underloaded", rule("underloaded"), busy(SECONDS, live=live)) == 1


@pytest.mark.parametrize("seed", range(2))
def test_noise_around_how_many_more_a_rank_has_does_not_flap(seed):
    dice = random.Random(seed)
    more = [dice.gauss(4.0, 1.5) for _ in range(SECONDS)]
    frames = busy(SECONDS, ranks=[{"running": lambda s: 2.0 + more[s]}, {"running": 2.0}])
    assert times_raised("rank-imbalance", rule("rank-imbalance"), frames) == 1


@pytest.mark.parametrize("every_s", [4, 7])
def test_failures_that_come_one_by_one_are_raised_once_and_a_pair_of_them_is_not(every_s):
    def live(times):
        failed = [sum(s - 10 < at <= s for at in times) / 10.0 for s in range(SECONDS)]
        return {
            "finished_per_s": lambda s: {"stop": 5.0, "abort": failed[s]},
            "requests_per_s": lambda s: 5.0 + failed[s],
        }

    errors = rule("errors-rising")
    assert times_raised("errors-rising", errors, busy(SECONDS, live=live(range(0, SECONDS, every_s)))) == 1
    assert raised_at("errors-rising", errors, busy(60, live=live((20, 20 + every_s)))) is None
