"""TensorRT-LLM: names with and without prefix, iterations as JSON, and its block on Triton's page."""

from __future__ import annotations

import json

import pytest

from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources import engines
from gputop_llm.sources.metrics import MetricsSource
from tests.support.captures import read_page, scrape
from tests.support.http_server import HttpServer, page

L = 'engine_type="trtllm",model_name="m"'
ITERATION = {
    "iter": 812,
    "iterLatencyMS": 15.5,
    "numActiveRequests": 5,
    "numQueuedRequests": 3,
    "maxNumActiveRequests": 10,
    "kvCacheStats": {
        "maxNumBlocks": 100,
        "freeNumBlocks": 60,
        "usedNumBlocks": 40,
        "reusedBlocks": 30,
        "missedBlocks": 10,
    },
    "inflightBatchingStats": {"numScheduledRequests": 5, "numContextRequests": 1, "numGenRequests": 4},
}


def one(text: str):
    """The only series of a page."""
    (series,) = read_page(text).series
    return series


# -- Prometheus ---------------------------------------------------------------


def test_new_names():
    series = one(
        f"trtllm_num_requests_running{{{L}}} 8\ntrtllm_num_requests_waiting{{{L}}} 2\n"
        f"trtllm_kv_cache_utilization{{{L}}} 0.44\ntrtllm_iteration_latency_seconds{{{L}}} 0.02\n"
        f"trtllm_prompt_tokens_total{{{L}}} 700\ntrtllm_generation_tokens_total{{{L}}} 90\n"
        f"trtllm_kv_cache_reused_blocks_total{{{L}}} 30\ntrtllm_kv_cache_missed_blocks_total{{{L}}} 10\n"
    )
    assert (series.model, series.running, series.waiting, series.kv_usage_pct) == ("m", 8, 2, pytest.approx(44))
    assert series.counters == {
        "prompt_tokens": 700,
        "generation_tokens": 90,
        "prefix_hits": 30,
        "prefix_queries": 40,
    }


def test_names_without_prefix_and_labels_that_say_nothing():
    labels = 'engine_type="undefined",model_name="undefined"'
    text = (
        f'time_to_first_token_seconds_bucket{{{labels},le="+Inf"}} 4\ntime_to_first_token_seconds_sum{{{labels}}} 2\n'
    )
    text += f'request_success_total{{{labels},finished_reason="stop"}} 4\n'
    reading = read_page(text)
    (series,) = reading.series
    assert (reading.engine, series.model, series.counters) == ("trtllm", None, {"finished:stop": 4})
    assert (series.histograms["ttft"].counts, series.histograms["ttft"].total) == ((4,), 2)


def test_tokens_counted_at_the_end_make_no_rate():
    text = f"trtllm_generation_tokens_total{{{L}}} 90\n"
    tracker = EngineTracker()
    tracker.push(read_page(text), 0.0)
    live = tracker.push(read_page(text), 10.0).total
    assert live.generation_tokens_per_s is None
    assert live.missing["generation_tokens_per_s"] == "TensorRT-LLM counts generated tokens when a request ends"
    assert read_page(text).progress == ()


def test_errors_by_http_status():
    text = f'trtllm_request_success_total{{{L},finished_reason="stop"}} 40\n'
    assert read_page(text).http == {}
    text += (
        f'trtllm_request_error_total{{{L},http_code="500"}} 2\ntrtllm_request_error_total{{{L},http_code="400"}} 1\n'
    )
    assert read_page(text).http == {"2xx": 40, "5xx": 2, "4xx": 1}


# -- JSON ---------------------------------------------------------------------


def test_the_newest_iteration_is_the_reading():
    reading = engines.read_json([{**ITERATION, "iter": 811, "numActiveRequests": 99}, ITERATION])
    (series,) = reading.series
    assert (reading.engine, series.running, series.waiting, series.kv_usage_pct) == ("trtllm", 5, 3, 40)
    assert series.counters == {"steps": 812, "prefix_hits": 30, "prefix_queries": 40}
    assert any("once" in note for note in reading.notes)
    # Its server may wait for an iteration for two seconds.
    assert reading.held_back


def test_no_iterations_are_not_an_idle_engine():
    reading = engines.read_json([])
    (series,) = reading.series
    assert (series.running, series.waiting, series.counters) == (None, None, {})
    assert "another reader" in reading.missing["running"]


def test_an_empty_answer_between_two_others_is_no_restart():
    tracker = EngineTracker()
    windows = [tracker.push(engines.read_json(answer), at) for at, answer in enumerate(([ITERATION], [], [ITERATION]))]
    assert not any(window.total.restarted for window in windows)


@pytest.mark.parametrize("other", [{"serve_mode": "simple"}, [1, 2], [{"name": "x"}], "text", None])
def test_other_json_is_nobody_s(other):
    assert engines.read_json(other) is None


def answer(value) -> tuple:
    return page(json.dumps(value), 200, "application/json")


def test_the_prometheus_page_is_preferred_so_that_nothing_is_taken_from_others():
    prometheus = f"trtllm_num_requests_running{{{L}}} 8\n"
    pages = {
        "/metrics": answer([ITERATION]),
        "/prometheus/metrics": page(prometheus),
        "/version": answer({"version": "1.3.0"}),
    }
    with HttpServer(pages) as server:
        source = MetricsSource(server.url)
        first, second = source.poll(), source.poll()
        source.close()
        assert [reading.series[0].running for reading in (first, second)] == [8, 8]
        assert second.version == "1.3.0"
        assert [request.path for request in server.requests].count("/metrics") == 1


def test_without_one_the_iterations_are_read():
    with HttpServer({"/metrics": answer([ITERATION])}) as server:
        source = MetricsSource(server.url)
        assert [source.poll().series[0].running for _ in range(2)] == [5, 5]
        source.close()
        assert [request.path for request in server.requests].count("/prometheus/metrics") == 1


# -- Triton -------------------------------------------------------------------


def test_a_share_that_contradicts_the_blocks_is_doubtful():
    reading = read_page(scrape("triton-trtllm-23.11"))
    assert reading.series[0].doubtful == ("kv_usage_pct",)
    agreeing = scrape("triton-trtllm-23.11").replace("0.4875", "0.00016")
    assert read_page(agreeing).series[0].doubtful == ()


def test_only_models_of_tensorrt_llm_are_series():
    text = scrape("triton-trtllm-23.11")
    for model in ("tensorrt_llm", "preprocessing"):
        text += f'nv_inference_request_success{{model="{model}",version="1"}} 12\n'
    text += 'nv_inference_request_failure{model="tensorrt_llm",reason="OTHER",version="1"} 1\n'
    text += 'nv_inference_request_failure{model="tensorrt_llm",reason="BACKEND",version="1"} 2\n'
    (series,) = read_page(text).series
    assert series.model == "tensorrt_llm"
    assert series.counters == {"steps": 0, "finished:done": 12, "finished:error": 3}
