"""LMDeploy's page: vLLM-like names, gauges that count up, a histogram called total."""

from __future__ import annotations

import math

from tests.support.captures import read_page

L = 'engine="0",model_name="m"'
PAGE = "".join(
    f"lmdeploy:{name}{{{L}}} {value}\n"
    for name, value in {
        "num_requests_running": 3,
        "num_requests_waiting": 1,
        "num_api_requests_waiting": 9,
        "gpu_cache_usage_perc": 0.25,
        "prefix_cache_hit_rate": 0.5,
        "prompt_tokens_total": 700,
        "generation_tokens_total": 90,
        "num_requests_succeeded": 12,
        "num_requests_failed": 2,
        "iteration_tokens_total_count": 40,
        "iteration_tokens_total_sum": 790,
        "iter_token_latency_count": 90,
        "iter_token_latency_sum": 1.8,
    }.items()
)
PAGE += f'lmdeploy:iteration_tokens_total_bucket{{{L},le="+Inf"}} 40\n'
PAGE += f'lmdeploy:iter_token_latency_bucket{{{L},le="+Inf"}} 90\n'


def test_a_page_is_read_whole():
    reading = read_page(PAGE)
    (series,) = reading.series
    assert (reading.engine, series.model, series.rank) == ("lmdeploy", "m", "0")
    assert (series.running, series.waiting, series.kv_usage_pct) == (3, 1, 25)
    assert series.counters == {
        "prompt_tokens": 700,
        "generation_tokens": 90,
        "steps": 40,
        "finished:done": 12,
        "finished:error": 2,
    }
    itl = series.histograms["itl"]
    assert (itl.bounds, itl.counts, itl.total) == ((math.inf,), (90,), 1.8)
    assert set(series.histograms) == {"itl"}


def test_its_hit_rate_is_of_its_whole_life_and_not_shown_as_that_of_a_window():
    assert "whole life" in read_page(PAGE).missing["prefix_hit_pct"]


def test_steps_and_tokens_are_progress():
    assert read_page(PAGE).progress == ("steps", "generation_tokens")
