"""Which engine a page belongs to, and the field cases that concern a page of vLLM."""

from __future__ import annotations

import math

import pytest

from gputop_llm.model import EngineSeries
from gputop_llm.sources import engines
from gputop_llm.sources.metrics import MetricsSource
from tests.support.captures import case_json, case_page, read_page
from tests.support.http_server import HttpServer, page


def one(text: str) -> EngineSeries:
    """The only series of a page."""
    (series,) = read_page(text).series
    return series


# -- which engine ----------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("vllm:num_requests_running 1\n", "vllm"),
        ("sglang:num_running_reqs 1\n", "sglang"),
        ("llamacpp:requests_processing 0\n", "llamacpp"),
        ("tgi_queue_size 1\n", "tgi"),
        ("trtllm_num_requests_running 1\n", "trtllm"),
        ("time_to_first_token_seconds_count 1\n", "trtllm"),
        ('nv_trt_llm_request_metrics{request_type="waiting"} 1\n', "triton"),
        ("lmdeploy:num_requests_running 1\n", "lmdeploy"),
        ("dynamo_frontend_active_requests 1\n", "dynamo"),
        ("dynamo_component_x 1\nsglang:num_running_reqs 1\n", "sglang"),
        # An adapter of TGI's interface in front of vLLM, and a gateway's own measurements.
        ("tgi_request_count 1\ntgi_queue_size 0\nvllm:num_requests_running 1\n", "vllm"),
        ("time_to_first_token_seconds_count 1\nvllm:num_requests_running 1\n", "vllm"),
        ("e2e_request_latency_seconds_count 1\ntgi_queue_size 1\n", "tgi"),
        ("x_vllm: 1\nfoo 1\n", None),
    ],
)
def test_an_engine_is_known_by_its_prefix(text, engine):
    assert engines.recognise(text) == engine
    assert read_page(text).engine == (engine or "unknown")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("vllm:num_requests_running 1\n", "/version"),
        ("sglang:num_running_reqs 1\n", "/get_server_info"),
        # As it is called since the other one is deprecated.
        ("sglang:num_running_reqs 1\n", "/server_info"),
        ("tgi_queue_size 1\n", "/info"),
        ("trtllm_num_requests_running 1\n", "/version"),
    ],
)
def test_each_server_is_asked_for_its_version_where_it_tells_it(text, path):
    told = page('{"model": "m", "version": "1.2.3"}', 200, "application/json")
    with HttpServer({"/metrics": page(text), path: told}) as server:
        source = MetricsSource(server.url)
        assert source.poll().version == "1.2.3"
        source.close()


def test_models_of_vllm_behind_triton_stay_apart():
    text = "".join(f'vllm:prompt_tokens_total{{model="{name}",version="1"}} {n}\n' for name, n in (("a", 5), ("b", 7)))
    assert [(one.model, one.counters, one.doubtful) for one in read_page(text).series] == [
        ("a", {"prompt_tokens": 5}, ()),
        ("b", {"prompt_tokens": 7}, ()),
    ]


def test_servers_behind_vllm_s_router_add_up():
    gauge = 'vllm:num_requests_running{{server="http://10.0.0.{}:8000"}} {}\n'
    text = gauge.format(1, 5) + gauge.format(2, 7)
    assert [(one.rank, one.running, one.doubtful) for one in read_page(text).series] == [
        ("10.0.0.1:8000", 5, ()),
        ("10.0.0.2:8000", 7, ()),
    ]


def test_another_engine_is_named_and_not_taken_for_an_idle_one():
    reading = read_page("dynamo_frontend_active_requests 1\n")
    assert reading.series == ()
    assert "dynamo" in reading.problem


@pytest.mark.parametrize("engine", [e for e in engines.ENGINES.values() if e.prefixes], ids=lambda engine: engine.name)
def test_a_page_with_an_engine_s_names_and_nothing_of_its_load_is_a_problem(engine):
    reading = read_page(f"{engine.prefixes[0]}something_else 1\n")
    assert (reading.engine, reading.series) == (engine.name, ())
    assert reading.problem.startswith(f"the page has names of {engine.name}, but ")


def test_no_two_engines_begin_their_names_alike():
    prefixes = [prefix for engine in engines.ENGINES.values() for prefix in engine.prefixes]
    assert not [(a, b) for a in prefixes for b in prefixes if a != b and a.startswith(b)]


def test_a_page_of_vllm_without_request_metrics_is_a_problem():
    assert "--disable-log-stats" in read_page("vllm:nixl_num_failed 1\n").problem


# -- field cases -----------------------------------------------------------


def test_case_11_what_is_no_number_is_unknown():
    series = one(case_page(11, "vllm"))
    assert (series.running, series.kv_usage_pct, series.counters) == (3, None, {})


def test_case_11_minus_nan_is_unknown_and_the_rest_of_the_page_is_right():
    reading = read_page(case_page(11, "llamacpp"))
    (series,) = reading.series
    assert (reading.engine, reading.skipped_lines, reading.problem) == ("llamacpp", 0, None)
    assert (series.running, series.waiting) == (0, 0)
    assert series.counters == {"prompt_tokens_computed": 0, "steps": 0}


def test_case_13_process_metrics_only_say_why_and_show_no_idle_engine():
    reading = read_page(case_page(13))
    assert reading.series == ()
    assert "process metrics" in reading.problem
    assert "--disable-log-stats" in reading.problem
    assert "PROMETHEUS_MULTIPROC_DIR" in reading.problem


def test_case_14_names_are_kept_character_for_character_and_apart():
    models = {series.running: series.model for series in read_page(case_page(14)).series}
    expected = case_json(14, "names")
    assert [models[i + 1] for i in range(len(expected))] == expected
    assert len(set(models.values())) == 8


def test_case_15_by_engine_and_once():
    series = read_page(case_page(15)).series
    assert [(s.rank, s.running, s.waiting, s.kv_usage_pct) for s in series] == [
        ("0", 10, 0, pytest.approx(40)),
        ("1", 12, 1, pytest.approx(44)),
    ]
    assert all(s.doubtful == () for s in series)


def test_case_17_the_newest_series_is_the_state():
    reading = read_page(case_page(17))
    assert reading.lora.running == ("sql-lora", 'chat/tr"x')
    assert reading.lora.waiting == ()
    assert reading.lora.max_adapters == 4
    (series,) = reading.series
    assert (series.model, series.running) == ("org/model-a", 5)
    assert 1.79596402e09 not in series.counters.values()
    # Wherever it stands on the page.
    backwards = "\n".join(reversed(case_page(17).splitlines())) + "\n"
    assert read_page(backwards).lora == reading.lora


@pytest.mark.parametrize("form", ["openmetrics", "classic_created"])
def test_case_18_both_forms_give_the_same(form):
    reading = read_page(case_page(18, form))
    (series,) = reading.series
    assert series.counters == {"finished:stop": 120}
    ttft = series.histograms["ttft"]
    assert (ttft.bounds, ttft.counts, ttft.total) == ((0.1, 0.5, math.inf), (60, 110, 120), 40.5)
    assert series.running == (4 if form == "openmetrics" else None)
    assert reading.started_s == 1.79596384708e9
    assert reading.skipped_lines == 0


def test_case_19_good_lines_are_used():
    reading = read_page(case_page(19))
    (series,) = reading.series
    assert (series.running, series.waiting, series.counters) == (7, 2, {"generation_tokens": 500})
    assert (reading.skipped_lines, reading.problem) == (2, None)
    assert reading.first_skipped.startswith("gateway_key_days")


def test_case_20_the_same_twice_counts_once():
    reading = read_page(case_page(20, "same"))
    (series,) = reading.series
    assert (series.running, series.counters["generation_tokens"], series.doubtful) == (12, 500_000, ())
    assert reading.notes == ()


@pytest.mark.parametrize("name", ["differ", "differ-reordered"])
def test_case_20_two_values_for_one_series_are_doubtful_in_either_order(name):
    reading = read_page(case_page(20, name))
    (series,) = reading.series
    assert (series.running, series.counters["generation_tokens"]) == (12, 500_000)
    assert series.doubtful == ("generation_tokens", "running")
    assert any("two values for one series" in note for note in reading.notes)
