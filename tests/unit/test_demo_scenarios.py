"""Each scenario keeps its promise within its time, for more than one seed; all fast-forwarded."""

from __future__ import annotations

from itertools import islice, pairwise, takewhile

import pytest

from gputop_llm.demo.choice import NAMES, gpus_per_engine
from gputop_llm.demo.node import SimulatedNode
from gputop_llm.demo.scenarios import MAIN, SCENARIOS, SYMPTOMS, listing, scenario
from gputop_llm.demo.script import arrivals
from gputop_llm.demo.traffic import WARM_UP_S
from gputop_llm.errors import UsageError

SEEDS = (1, 7)


class Watch:
    """Second-by-second values of one engine, and its histograms between any two seconds."""

    def __init__(self, name, seed, until_s, gpus=1):
        node = SimulatedNode(scenario(name), seed, gpus, 1, started_s=0.0)
        seen = node.observed(0)
        self.rows, self.counts, self.util = [], [], []
        for second in range(until_s + 1):
            node.advance(float(second))
            self.rows.append(dict(seen.values))
            self.counts.append({name: list(tally.counts) for name, tally in seen.tallies.items()})
            self.util.append(node.reading([1]).gpus.gpus[0].util_pct)
        self.bounds = {name: tally.bounds for name, tally in seen.tallies.items()}

    def each(self, name, start_s, end_s):
        return [row[name] for row in self.rows[start_s : end_s + 1]]

    def mean(self, name, start_s, end_s):
        values = self.each(name, start_s, end_s)
        return sum(values) / len(values)

    def gain(self, name, start_s, end_s):
        return self.rows[end_s][name] - self.rows[start_s][name]

    def bucket(self, name, share, start_s, end_s):
        """(low, high] of the bucket that holds the quantile between two seconds."""
        counts = [b - a for a, b in zip(self.counts[start_s][name], self.counts[end_s][name], strict=True)]
        bounds = (0.0, *self.bounds[name], float("inf"))
        below = 0
        for position, count in enumerate(counts):
            below += count
            if below >= share * sum(counts):
                return bounds[position], bounds[position + 1]
        raise AssertionError("no observation")


TTFT, ITL, KV, WAITING = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "kv_cache_usage_perc",
    "num_requests_waiting",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_has_no_queue_and_steady_latency(seed):
    watch = Watch("healthy", seed, 180)

    assert max(watch.each(WAITING, 0, 180)) == 0
    assert 0.3 <= watch.mean(KV, 0, 180) <= 0.5
    low_s, high_s = watch.bucket(TTFT, 0.5, 0, 180)
    assert 0.04 <= low_s < high_s <= 0.1
    assert watch.bucket(ITL, 0.5, 0, 180) == (0.01, 0.025)
    assert watch.gain("num_preemptions", 0, 180) == 0
    assert min(watch.util) >= 90


@pytest.mark.parametrize("gpus", [1, 4], ids=["small model on one GPU", "big model on four"])
@pytest.mark.parametrize("seed", SEEDS)
def test_overload_fills_the_cache_queues_preempts_and_eases(seed, gpus):
    watch = Watch("overload", seed, 245, gpus)

    assert max(watch.each(WAITING, 0, 20)) == 0
    assert watch.bucket(TTFT, 0.95, 0, 20)[1] <= 1.0
    assert watch.mean(KV, 70, 120) > 0.95
    assert watch.rows[60][WAITING] > 15
    assert watch.rows[120][WAITING] > watch.rows[60][WAITING]
    assert watch.gain("num_preemptions", 60, 120) > 20
    assert watch.bucket(TTFT, 0.5, 80, 120)[0] >= 5.0
    assert max(watch.each(WAITING, 200, 240)) == 0
    assert watch.mean(KV, 215, 240) < 0.6
    assert watch.bucket(TTFT, 0.5, 220, 240)[1] <= 0.25


@pytest.mark.parametrize("seed", SEEDS)
def test_overload_comes_again_every_four_minutes(seed):
    watch = Watch("overload", seed, 360)

    assert watch.rows[250][WAITING] == 0
    assert watch.rows[350][WAITING] > 15
    assert watch.rows[350][KV] > 0.95


@pytest.mark.parametrize("seed", SEEDS)
def test_long_prompts_stretch_the_tail_of_itl_while_next_to_nothing_waits(seed):
    watch = Watch("long-prompts", seed, 180)

    assert watch.bucket(ITL, 0.5, 0, 180) == (0.01, 0.025)
    assert watch.bucket(ITL, 0.99, 0, 180)[0] >= 0.2
    assert watch.mean(WAITING, 0, 180) < 1.0
    assert watch.mean(KV, 0, 180) < 0.8
    assert watch.gain("prompt_tokens_by_source:local_compute", 0, 180) > 180 * 5000


@pytest.mark.parametrize("name", [script.name for script in MAIN])
def test_the_first_scrape_already_finds_histograms_with_something_in_them(name):
    watch = Watch(name, 7, 0)

    assert all(sum(counts) > 50 for counts in watch.counts[0].values())


@pytest.mark.parametrize("name", SCENARIOS)
def test_arrivals_are_the_same_for_a_seed_and_other_for_another_seed_or_engine(name):
    def first(seed, engine):
        return list(islice(arrivals(scenario(name), seed, engine), 200))

    assert first(7, 0) == first(7, 0)
    assert first(7, 0) != first(8, 0)
    assert first(7, 0) != first(7, 1)


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_is_sent_fits_the_engine_and_comes_in_order(name):
    script = scenario(name)
    sent = list(islice(arrivals(script, 3, 0), 3000))

    assert [a.at_s for a in sent] == sorted(a.at_s for a in sent)
    assert sent[0].at_s >= -WARM_UP_S
    assert all(a.prompt_tokens > a.prefix_tokens for a in sent)
    assert all(1 <= a.output_tokens <= a.max_tokens for a in sent)
    assert all(a.prompt_tokens + a.output_tokens <= script.limits.max_model_len for a in sent)
    assert script.limits.max_model_len // script.limits.block_size < script.limits.num_gpu_blocks


def test_the_rate_of_arrivals_follows_the_script():
    sent = list(takewhile(lambda a: a.at_s < 240 * 10, arrivals(scenario("overload"), 1, 0)))
    into_period = [a.at_s % 240 for a in sent if a.at_s >= 0]

    rates = [*scenario("overload").streams[0].rates, (240.0, 0.0)]
    for (start_s, rate), (end_s, _) in pairwise(rates):
        expected = 10 * rate * (end_s - start_s)
        assert sum(start_s <= s < end_s for s in into_period) == pytest.approx(expected, abs=5 * expected**0.5)


def test_an_unknown_scenario_is_told_with_the_known_ones():
    with pytest.raises(UsageError, match=r"choose one of: healthy, overload, long-prompts, … \(all: .*--list\)"):
        scenario("sunny")


def test_the_listing_has_a_line_for_each_scenario_and_near_misses_by_name_alone():
    lines = listing().splitlines()

    for script in (*MAIN, *SYMPTOMS):
        own = [line for line in lines if line.startswith(f"{script.name} ")]
        assert [line.endswith(script.about) for line in own] == ([] if script.nearly else [True])
        if script.nearly:
            assert any(f"{script.name.removesuffix('-near-miss')}," in f"{line}," for line in lines[-6:])


def test_names_are_unique_and_say_what_they_are_for():
    assert len(SCENARIOS) == len(MAIN) + len(SYMPTOMS)
    for script in SYMPTOMS:
        assert script.name.startswith(script.raises or script.nearly)
        assert script.name.endswith("-near-miss") is (script.raises is None)
        assert 0 <= script.when[0] < script.when[1]


def test_the_monitor_knows_the_simulators_scenarios_by_name():
    assert SCENARIOS.keys() == NAMES


@pytest.mark.parametrize(("gpus", "engines", "each"), [(1, 0, 0), (1, 1, 1), (8, 2, 4), (8, 3, 2)])
def test_gpus_are_shared_out_evenly(gpus, engines, each):
    assert gpus_per_engine(gpus, engines) == each


@pytest.mark.parametrize(("gpus", "engines"), [(0, 0), (1, 2), (2, -1)])
def test_impossible_nodes_are_refused(gpus, engines):
    with pytest.raises(UsageError, match="one for each engine"):
        gpus_per_engine(gpus, engines)
