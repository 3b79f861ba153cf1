"""Continuous batching loses nothing and invents nothing, whatever is sent and however time is advanced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.demo.batching import Engine
from gputop_llm.demo.kvpool import KvPool
from gputop_llm.demo.requests import Arrival, Limits
from gputop_llm.demo.roofline import H200, LLAMA_8B, StepCost

BLOCK = 16
MAX_LEN = 400
PREFIX_BLOCKS = 3
FAR_S = 1e6


@st.composite
def all_limits(draw):
    seqs = draw(st.integers(1, 8))
    return Limits(
        max_num_seqs=seqs,
        max_num_batched_tokens=draw(st.integers(seqs, 300)),
        max_model_len=MAX_LEN,
        num_gpu_blocks=draw(st.integers(MAX_LEN // BLOCK + 1, 60)),
        block_size=BLOCK,
    )


@st.composite
def all_arrivals(draw):
    at_s, found = 0.0, []
    for _ in range(draw(st.integers(1, 30))):
        at_s += draw(st.sampled_from((0.0, 0.0, 0.001, 0.02, 0.5)))
        prefix = draw(st.sampled_from((None, 0, 1, 2)))
        shared = 0 if prefix is None else PREFIX_BLOCKS * BLOCK
        prompt = shared + draw(st.integers(1, 200))
        output = draw(st.integers(1, 120))
        reason = draw(st.sampled_from(("stop", "length")))
        found.append(Arrival(at_s, prompt, output, output, prefix, shared, reason))
    return found


def engine(limits, arrivals):
    return Engine(limits, StepCost(LLAMA_8B, H200), iter(arrivals))


def seen(model):
    tallies = {name: (tally.counts, tally.count, tally.total) for name, tally in model.seen.tallies.items()}
    return model.seen.values, tallies


@given(all_limits(), all_arrivals(), st.lists(st.floats(0.0005, 0.3), max_size=60))
def test_every_request_is_waiting_running_or_finished_and_the_pool_is_never_overdrawn(limits, arrivals, steps_s):
    model, now_s = engine(limits, arrivals), 0.0
    for step_s in steps_s:
        now_s += step_s
        model.advance(now_s)

        assert model.seen.finished + model.running + len(model.waiting) == model.arrived
        assert model.running <= limits.max_num_seqs
        assert 0 <= model.pool.free <= model.pool.usable == limits.num_gpu_blocks - 1
        assert 0 <= model.seen.values["kv_cache_usage_perc"] <= 1


@given(all_limits(), all_arrivals())
def test_in_the_end_all_has_been_served_counted_once_and_freed(limits, arrivals):
    model = engine(limits, arrivals)
    model.advance(FAR_S)
    values, tallies = model.seen.values, model.seen.tallies
    prompts, outputs = sum(a.prompt_tokens for a in arrivals), sum(a.output_tokens for a in arrivals)
    computed, cached = (
        values["prompt_tokens_by_source:local_compute"],
        values["prompt_tokens_by_source:local_cache_hit"],
    )

    assert model.seen.finished == model.arrived == len(arrivals)
    assert (model.running, len(model.waiting), model.pool.used) == (0, 0, 0)
    assert values["request_success:stop"] + values["request_success:length"] == len(arrivals)
    assert values["generation_tokens"] == tallies["request_generation_tokens"].total == outputs
    assert values["prompt_tokens"] == tallies["request_prompt_tokens"].total == computed + cached == prompts
    assert values["prefix_cache_queries"] == prompts
    assert values["prefix_cache_hits"] == values["prompt_tokens_cached"] == cached
    assert tallies["request_prefill_kv_computed_tokens"].total == computed
    assert tallies["time_to_first_token_seconds"].count == len(arrivals)
    assert tallies["inter_token_latency_seconds"].count == outputs - len(arrivals)
    assert tallies["iteration_tokens_total"].total == computed + outputs
    assert tallies["request_num_preemptions"].total == values["num_preemptions"]


@given(all_limits(), all_arrivals())
def test_a_drained_engine_serves_like_a_fresh_one(limits, arrivals):
    def alone(at_s):
        return Arrival(at_s, prompt_tokens=150, output_tokens=40, max_tokens=40)

    used, fresh = engine(limits, [*arrivals, alone(1000.0)]), engine(limits, [alone(0.0)])
    used.advance(999.0)
    before_s = used.seen.tallies["e2e_request_latency_seconds"].total
    used.advance(FAR_S)
    fresh.advance(FAR_S)

    took_s = used.seen.tallies["e2e_request_latency_seconds"].total - before_s
    assert took_s == pytest.approx(fresh.seen.tallies["e2e_request_latency_seconds"].total, rel=1e-6)


@given(all_limits(), all_arrivals())
def test_tokens_scheduled_are_tokens_observed(limits, arrivals):
    model = engine(limits, arrivals)
    model.advance(FAR_S)
    values, work = model.seen.values, model.work()
    resumed = values["num_preemptions"]
    from_prefills = len(arrivals) + resumed

    # A request preempted within its prefill resumes without having had a token.
    assert values["generation_tokens"] - from_prefills <= work.decode_tokens
    assert work.decode_tokens <= values["generation_tokens"] - len(arrivals)
    assert work.prefill_tokens >= values["prompt_tokens_by_source:local_compute"]
    if not resumed:
        assert work.prefill_tokens == values["prompt_tokens_by_source:local_compute"]
        assert work.decode_tokens == values["generation_tokens"] - len(arrivals)


@given(all_limits(), all_arrivals())
def test_the_phases_of_a_request_add_up_to_its_whole_time(limits, arrivals):
    model = engine(limits, arrivals)
    model.advance(FAR_S)
    total = {name: tally.total for name, tally in model.seen.tallies.items()}
    outside_s = 0.003 * len(arrivals)

    assert total["request_inference_time_seconds"] == pytest.approx(
        total["request_prefill_time_seconds"] + total["request_decode_time_seconds"]
    )
    assert total["e2e_request_latency_seconds"] == pytest.approx(
        total["request_queue_time_seconds"] + total["request_inference_time_seconds"] + outside_s
    )
    assert total["inter_token_latency_seconds"] == pytest.approx(total["request_decode_time_seconds"])
    assert total["time_to_first_token_seconds"] == pytest.approx(
        total["request_queue_time_seconds"] + total["request_prefill_time_seconds"] + outside_s
    )


@given(all_limits(), all_arrivals(), st.lists(st.floats(0.0005, 0.5), min_size=1, max_size=60))
def test_how_finely_time_is_advanced_changes_nothing(limits, arrivals, steps_s):
    coarse, fine = engine(limits, arrivals), engine(limits, arrivals)
    for step in range(len(steps_s)):
        fine.advance(sum(steps_s[: step + 1]))
    coarse.advance(sum(steps_s))

    assert seen(fine) == seen(coarse)
    assert fine.work() == coarse.work()


class Reference:
    """The pool counted block by block."""

    def __init__(self, usable):
        self.usable, self.private, self.prefixes = usable, 0, {}

    def used(self):
        return self.private + sum(blocks for blocks, users in self.prefixes.values() if users)


MOVES = st.sampled_from(["take", "give", "publish", "hold", "release"])


@given(st.lists(st.tuples(MOVES, st.integers(0, 12)), max_size=80))
def test_the_pool_counts_as_if_block_by_block(moves):
    pool, reference = KvPool(41, BLOCK), Reference(40)
    for move, amount in moves:
        prefix = amount % 4
        cached = pool.cached(prefix)
        if move == "take":
            fits = amount <= reference.usable - reference.used()
            assert pool.take(amount) == fits
            reference.private += amount if fits else 0
        elif move == "give" and amount <= reference.private:
            pool.give(amount)
            reference.private -= amount
        elif move == "publish" and not cached and 0 < amount <= reference.private:
            pool.publish(prefix, amount)
            reference.private -= amount
            reference.prefixes[prefix] = [amount, 1]
        elif move == "hold" and cached and pool.revival(prefix) <= pool.free:
            pool.hold(prefix)
            reference.prefixes[prefix][1] += 1
        elif move == "release" and cached and reference.prefixes[prefix][1]:
            pool.release(prefix)
            reference.prefixes[prefix][1] -= 1

        assert pool.used == reference.used()
        in_use = {prefix for prefix, (_, users) in reference.prefixes.items() if users}
        assert all(pool.cached(prefix) == reference.prefixes[prefix][0] for prefix in in_use)
