"""SGLang's renames and traps, release by release."""

from __future__ import annotations

import math

import pytest

from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources.engines import sglang
from tests.support.captures import read_page, scrape

TP = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
FRONT = 'engine_type="unified",model_name="m"'


def one(text: str):
    """The only series of a page."""
    (series,) = read_page(text).series
    return series


def histogram(name: str, labels: str, *counts: float, total: float = 1.0) -> str:
    lines = [f'sglang:{name}_bucket{{le="{le}",{labels}}} {n}' for le, n in zip(("0.1", "+Inf"), counts, strict=True)]
    return (
        "\n".join([*lines, f"sglang:{name}_count{{{labels}}} {counts[-1]}", f"sglang:{name}_sum{{{labels}}} {total}"])
        + "\n"
    )


def realtime(compute: float, cache: float, decode: float, labels: str = TP) -> str:
    modes = {"prefill_compute": compute, "prefill_cache": cache, "decode": decode}
    return "".join(f'sglang:realtime_tokens_total{{mode="{mode}",{labels}}} {n}\n' for mode, n in modes.items())


# -- tokens ------------------------------------------------------------------


def test_realtime_counters_are_the_source_of_all_token_rates():
    at_end = f"sglang:prompt_tokens_total{{{FRONT}}} 900\nsglang:generation_tokens_total{{{FRONT}}} 20\n"
    assert one(at_end + realtime(971, 3829, 50)).counters == {
        "prompt_tokens_computed": 971,
        "prompt_tokens_cached": 3829,
        "prompt_tokens": 4800,
        "generation_tokens": 50,
        "prefix_queries": 4800,
        "prefix_hits": 3829,
    }


def test_before_a_mode_was_seen_nothing_that_is_counted_as_requests_end_stands_for_it():
    page = f"sglang:prompt_tokens_total{{{FRONT}}} 900\n"
    assert one(page + f'sglang:realtime_tokens_total{{mode="decode",{TP}}} 50\n').counters == {"generation_tokens": 50}


def test_without_them_no_rate_is_made_of_what_is_counted_as_requests_end():
    page = f"sglang:num_running_reqs{{{FRONT}}} 3\nsglang:prompt_tokens_total{{{FRONT}}} 100\n"
    page += f"sglang:generation_tokens_total{{{FRONT}}} 10\n"
    tracker = EngineTracker()
    tracker.push(read_page(page), 0.0)
    live = tracker.push(read_page(page), 10.0).total
    assert (live.running, live.prompt_tokens_per_s, live.generation_tokens_per_s) == (3, None, None)
    assert live.missing["prompt_tokens_per_s"].startswith("SGLang counts prompt tokens when a request ends")
    assert live.missing["generation_tokens_per_s"].startswith("SGLang counts generated tokens when a request ends")


def test_with_them_rates_are_those_of_the_window():
    tracker = EngineTracker()
    tracker.push(read_page(realtime(1000, 3000, 50)), 0.0)
    live = tracker.push(read_page(realtime(1100, 3300, 250)), 10.0).total
    assert (live.prompt_tokens_per_s, live.prompt_computed_tokens_per_s) == (40, 10)
    assert (live.generation_tokens_per_s, live.prefix_hit_pct) == (20, 75)


def test_cached_tokens_of_all_sources_add_up():
    text = f"sglang:prompt_tokens_total{{{FRONT}}} 100\n" + "".join(
        f'sglang:cached_tokens_total{{cache_source="{source}",{FRONT}}} {n}\n'
        for source, n in (("device", 30), ("host", 10))
    )
    series = one(text)
    assert (series.counters["prefix_hits"], series.counters["prefix_queries"]) == (40, 100)
    assert series.doubtful == ()


@pytest.mark.parametrize("name", ["gen_throughput", "cache_hit_rate", "utilization", "fwd_occupancy"])
def test_gauges_that_freeze_or_mislead_are_not_read(name):
    assert f"sglang:{name}" not in sglang.ENGINE.needed
    text = f"sglang:num_running_reqs{{{TP}}} 0\n"
    assert one(text + f"sglang:{name}{{{TP}}} NaN\n") == one(text) == one(text + f"sglang:{name}{{{TP}}} 812\n")


# -- ranks and labels --------------------------------------------------------------


def rank(dp: int, tp: int, running: float, usage: float) -> str:
    labels = f'dp_rank="{dp}",engine_type="unified",model_name="m",tp_rank="{tp}"'
    return f"sglang:num_running_reqs{{{labels}}} {running}\nsglang:token_usage{{{labels}}} {usage}\n" + realtime(
        10, 0, 5, labels
    )


def test_all_schedulers_of_a_rank_count_once_and_its_first_one_speaks():
    text = rank(0, 0, 3, 0.1) + rank(0, 1, 3, 0.1) + rank(1, 3, 4, 0.3) + rank(1, 2, 4, 0.2)
    series = read_page(text).series
    assert [(s.rank, s.running, s.kv_usage_pct, s.counters["generation_tokens"]) for s in series] == [
        ("0", 3, pytest.approx(10), 5),
        ("1", 4, pytest.approx(20), 5),
    ]
    assert all(s.doubtful == () for s in series)


@pytest.mark.parametrize("name", ["pp_rank", "tp_rank", "moe_ep_rank"])
def test_the_first_scheduler_is_that_of_the_lowest_stage_and_ranks(name):
    """Later pipeline stages and experts tell less of the same load."""
    others = {"pp_rank": 0, "tp_rank": 0, "moe_ep_rank": 0}
    text = ""
    for at, running in ((10, 9), (2, 5), (0, 4)):
        labels = ",".join(f'{label}="{n}"' for label, n in {**others, name: at}.items())
        text += f'sglang:num_running_reqs{{engine_type="unified",model_name="m",{labels}}} {running}\n'
    series = one(text)
    assert (series.running, series.doubtful) == (4, ())


def test_what_the_front_end_counts_for_all_ranks_is_no_rank_and_makes_no_sum_unknown():
    text = rank(0, 0, 3, 0.1) + rank(1, 2, 4, 0.2) + histogram("time_to_first_token_seconds", FRONT, 1, 2)
    tracker = EngineTracker()
    tracker.push(read_page(text), 0.0)
    window = tracker.push(read_page(text), 10.0)
    assert [live.rank for live in window.ranks] == ["0", "1"]
    assert (window.total.running, window.total.kv_usage_pct) == (7, pytest.approx(20))
    assert "ttft" in window.total.latency


def test_the_row_without_a_priority_is_the_sum_of_the_others():
    text = "".join(
        f'sglang:num_running_reqs{{priority="{name}",{TP}}} {n}\n' for name, n in (("1", 2), ("", 3), ("5", 1))
    )
    assert (one(text).running, one(text).doubtful) == (3, ())


def test_streamed_and_other_requests_add_up_and_are_not_the_same_thing_twice():
    name = "time_to_first_token_seconds"
    text = histogram(name, f'is_streaming="True",{FRONT}', 1, 4, total=2.5)
    text += histogram(name, f'is_streaming="False",{FRONT}', 2, 3, total=0.5)
    ttft = one(text).histograms["ttft"]
    assert (ttft.bounds, ttft.counts, ttft.total) == ((0.1, math.inf), (3, 7), 3.0)


def pool(dp: int, tokens: str) -> str:
    return f'sglang:max_total_num_tokens{{dp_rank="{dp}",engine_type="unified",model_name="m",tp_rank="0"}} {tokens}\n'


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (pool(0, "38141.0"), {"kv_cache_size_tokens": "38141"}),
        (pool(0, "38141") + pool(1, "38141"), {"kv_cache_size_tokens": "38141"}),
        (pool(0, "38141") + pool(1, "40000"), {}),
        (pool(0, "NaN"), {}),
        (rank(0, 0, 1, 0.5), {}),
    ],
)
def test_the_size_of_the_kv_pool_is_that_of_each_rank(text, config):
    reading = read_page(text)
    assert reading.cache_config == config
    assert ("cache_config" in reading.missing) is not bool(config)
    assert not any("pool_tokens" in series.counters for series in reading.series)


# -- renames -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("inter_token_latency_seconds", "itl"),
        ("time_per_output_token_seconds", "itl"),
        ("request_time_per_output_token_seconds", "tpot"),
        ("queue_time_seconds", "queue"),
        ("queue_time_s", "queue"),
    ],
)
def test_histograms_by_all_their_names(name, ours):
    assert set(one(histogram(name, FRONT, 1, 2)).histograms) == {ours}


def test_prefill_and_decode_are_stages_and_other_stages_are_not_added_to_them():
    stages = ("prefill_forward", "decode_forward", "tokenize", "prefill_waiting")
    text = "".join(
        histogram("per_stage_req_latency_seconds", f'stage="{stage}",{TP}', i, i + 1, total=i)
        for i, stage in enumerate(stages)
    )
    found = one(text).histograms
    assert {name: (h.counts, h.total) for name, h in found.items()} == {"prefill": ((0, 1), 0), "decode": ((1, 2), 1)}


@pytest.mark.parametrize("name", ["num_retracted_requests_total", "num_retracted_requests", "total_retracted_reqs"])
def test_a_retraction_is_a_preemption(name):
    assert one(f"sglang:{name}{{{TP}}} 4\n").counters == {"preemptions": 4}


def test_retractions_of_0_5_6_are_the_sum_of_a_histogram_and_counted_once_beside_a_counter():
    text = histogram("num_retractions", TP, 5, 7, total=3)
    assert one(text).counters == {"preemptions": 3}
    assert one(text + f"sglang:num_retracted_requests_total{{{TP}}} 4\n").counters == {"preemptions": 4}


def test_retractions_by_process_are_not_read():
    assert read_page(f'sglang:num_retracted_reqs{{pid="4711",{TP}}} 3\n').series == ()


def test_finished_and_aborted_requests():
    text = f"sglang:num_requests_total{{{FRONT}}} 90\n"
    assert read_page(text).missing["failures"] == "this SGLang does not count requests that failed"
    reading = read_page(text + f"sglang:num_aborted_requests_total{{{FRONT}}} 3\n")
    assert reading.series[0].counters == {"finished:done": 90, "finished:abort": 3}
    assert "failures" not in reading.missing


def test_tokens_that_arrive_are_progress_also_where_they_are_counted_only_at_the_end():
    reading = read_page(scrape("sglang-0.4.x"))
    assert reading.progress == ("prompt_tokens_computed", "itl_observations")
    assert reading.series[0].counters["itl_observations"] == 1
    assert "generation_tokens" in read_page(realtime(1, 1, 1)).progress


def test_of_data_parallel_ranks_without_a_name_on_the_page_it_is_said_that_one_stands_for_all():
    words = ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--enable-metrics"]
    (note,) = sglang.read_launch([*words, "--dp-size", "2"]).notes
    assert note == (
        "2 data-parallel ranks: where its page names none (older SGLang), load and KV cache are those of one rank, "
        "not of the engine"
    )
    assert sglang.read_launch(words).notes == ()
