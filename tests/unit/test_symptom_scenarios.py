"""Every symptom is raised by a scenario, in time and with nothing else, and not by one that comes near it.

The scenarios run fast-forwarded through the real path: the simulated metrics page, its parser, the mapping, the
window, frames, all rules together. Each of them is run once: it takes a third of a second.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.demo.scenarios import MAIN, SYMPTOMS, scenario
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.symptoms.compose import EXPLAINS
from tests.support import fast_demo
from tests.support.symptom_table import DOCUMENT, INTRO, latest, row

RAISING = [script.name for script in SYMPTOMS if script.raises]
NEAR = [script.name for script in SYMPTOMS if script.nearly]

# With its threshold moved by two fifths at most, a near miss is a hit.
NEAR_IS = {
    "ttft-high": {"ttft-high.p95_s": 0.8},
    "tpot-high": {"tpot-high.p95_s": 0.075},
    "kv-pressure": {"kv-pressure.kv_pct": 80.0},
    "prefix-cache-cold": {"prefix-cache-cold.of_usual_pct": 66.0},
    "spec-decode-weak": {"spec-decode-weak.acceptance_pct": 60.0},
    "errors-rising": {"errors-rising.failures": 1.0, "errors-rising.for_s": 7.0},
    "errors-rising-http": {"errors-rising.failures": 1.0, "errors-rising.for_s": 7.0},
    "rank-imbalance": {"rank-imbalance.ratio": 1.6},
    "underloaded": {"underloaded.running": 10.6},
    "stalled": {"stalled.no_progress_s": 6.0},
    "warming-up": {"warming-up.age_s": 160.0},
    "metrics-stale": {"metrics-stale.age_s": 6.7},
    "gpu-busy-not-working": {"gpu-busy-not-working.sm_active_pct": 66.0},
    "gpu-starved": {"gpu-starved.util_pct": 75.0},
    "host-bound": {"host-bound.thread_pct": 75.0, "host-bound.sm_active_pct": 66.0},
    "cpu-throttled": {"cpu-throttled.throttled_pct": 3.4},
    "cpu-throttled-steal": {"cpu-throttled.steal_pct": 3.4},
    "bandwidth-bound": {"bandwidth-bound.dram_bw_pct": 62.0},
    "compute-bound": {"compute-bound.tensor_pct": 46.0},
    "comm-bound": {"comm-bound.sm_active_pct": 66.0},
    "comm-bound-straggler": {"comm-bound.spread_pct": 24.0},
    "copy-bound": {"copy-bound.link_pct": 24.0},
    "memory-spike": {"memory-spike.jump_pct": 4.0},
    "noisy-neighbour": {"noisy-neighbour.sm_pct": 3.5},
    "power-capped": {"power-capped.clock_below_pct": 3.5},
    "thermal-throttled": {"thermal-throttled.share_pct": 20.0},
    "hw-slowdown": {"hw-slowdown.share_pct": 20.0},
    "link-degraded": {"link-degraded.replays": 1.0},
}
# There the scenario itself is moved: fewer seats. A corrected memory error is near an uncorrected one by nature.
NEAR_WITH = {"queue-growing": 60, "scheduler-capped": 24}


def follows(symptom):
    """All that a symptom explains, directly or not."""
    found, new = set(), {symptom}
    while new:
        found |= new
        new = {effect for cause in new for effect in EXPLAINS.get(cause, ())} - found
    return found


def is_documented(script, found):
    return row(script, found) in DOCUMENT.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("name", RAISING)
def test_its_symptom_is_raised_in_time_and_cleared_and_nothing_with_it_but_what_follows_below_it(name):
    script, found = scenario(name), fast_demo.run(name)
    own = [episode for episode in found if episode.id == script.raises]
    begins, ends = script.when
    by_raise, by_clear = latest(script)

    assert own, f"raised instead: {fast_demo.ids(found) or 'nothing'}"
    assert begins <= min(episode.raised_s for episode in own) <= by_raise
    assert all(ends <= (episode.cleared_s or 1e9) <= by_clear for episode in own), own
    assert fast_demo.ids(found) <= follows(script.raises) | set(script.also)
    assert [episode for episode in found if episode.raised_s < begins or episode.cleared_s is None] == []
    for episode in found:
        beside = [at_s for at_s in episode.root_at if any(e.raised_s < at_s < e.cleared_s for e in own)]
        assert episode.id in {script.raises, *script.also} or not beside, f"{episode.id} beside its root at {beside} s"
    assert is_documented(script, found), "run python tools/symptom_table.py"


@pytest.mark.parametrize("name", NEAR)
def test_a_near_miss_raises_nothing_and_is_near(name):
    script = scenario(name)
    ticks = list(fast_demo.frames(script, 7, fast_demo.length_s(script)))
    found = fast_demo.episodes(ticks)
    hit = NEAR_IS.get(name.removesuffix("-near-miss"))

    assert [(episode.id, episode.headline) for episode in found] == []
    assert hit is None or script.nearly in fast_demo.ids(fast_demo.episodes(ticks, hit))
    assert is_documented(script, found), "run python tools/symptom_table.py"


@pytest.mark.parametrize(("name", "seats"), NEAR_WITH.items())
def test_a_near_miss_of_the_scheduler_is_a_hit_with_fewer_seats(name, seats):
    script = scenario(f"{name}-near-miss")
    tighter = replace(script, limits=replace(script.limits, max_num_seqs=seats))

    assert name in fast_demo.ids(fast_demo.episodes(fast_demo.frames(tighter, 7, fast_demo.length_s(script))))


@pytest.mark.parametrize("script", MAIN, ids=lambda script: script.name)
def test_what_the_other_scenarios_raise_is_documented(script):
    assert is_documented(script, fast_demo.run(script.name)), "run python tools/symptom_table.py"


@pytest.mark.parametrize("seed", [7, 8])
def test_healthy_traffic_raises_nothing_for_ten_minutes(seed):
    assert [(e.id, e.headline) for e in fast_demo.run("healthy", seed=seed, until_s=600.0)] == []


def test_every_rule_has_a_scenario_that_raises_it_and_one_that_comes_near():
    rules = {rule.id for rule in RULES}

    assert {script.raises for script in SYMPTOMS if script.raises} == rules
    assert {script.nearly for script in SYMPTOMS if script.nearly} == rules
    named = {name.removesuffix("-near-miss") for name in NEAR}
    assert named == {*NEAR_IS, *NEAR_WITH, "gpu-fault"}


def test_the_document_names_every_scenario_once_and_every_symptom():
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1].strip(" `") for line in lines if line.startswith("| `")]

    assert cells == [*RAISING, *NEAR, *(script.name for script in MAIN), *(rule.id for rule in RULES)]
    assert DOCUMENT.read_text(encoding="utf-8").startswith(INTRO)
