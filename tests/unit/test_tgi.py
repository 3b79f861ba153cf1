"""TGI's page and its traps: no "_total", no model, lengths as histograms, batches, a summary."""

from __future__ import annotations

import math

import pytest

from gputop_llm.sampling.window import EngineTracker
from tests.support.captures import read_page

# Written in the shape of TGI's page: types without help, blank lines between families.
PAGE = """# TYPE tgi_request_count counter
tgi_request_count 130

# TYPE tgi_request_success counter
tgi_request_success 120

# TYPE tgi_request_failure counter
tgi_request_failure{err="overloaded"} 5
tgi_request_failure{err="generation"} 2
tgi_request_failure{err="validation"} 1

# TYPE tgi_batch_inference_count counter
tgi_batch_inference_count{method="prefill"} 41
tgi_batch_inference_count{method="decode"} 900

# TYPE tgi_batch_inference_success counter
tgi_batch_inference_success{method="prefill"} 40
tgi_batch_inference_success{method="decode"} 899

# TYPE tgi_queue_size gauge
tgi_queue_size 7

# TYPE tgi_batch_current_size gauge
tgi_batch_current_size 16

# TYPE tgi_request_skipped_tokens summary
tgi_request_skipped_tokens{quantile="0.5"} 0
tgi_request_skipped_tokens_sum 11
tgi_request_skipped_tokens_count 120

# TYPE tgi_request_input_length histogram
tgi_request_input_length_bucket{le="40.96"} 100
tgi_request_input_length_bucket{le="+Inf"} 128
tgi_request_input_length_sum 5120
tgi_request_input_length_count 128

# TYPE tgi_request_generated_tokens histogram
tgi_request_generated_tokens_bucket{le="40.96"} 60
tgi_request_generated_tokens_bucket{le="+Inf"} 120
tgi_request_generated_tokens_sum 9600
tgi_request_generated_tokens_count 120

# TYPE tgi_request_queue_duration histogram
tgi_request_queue_duration_bucket{le="0.00015000000000000001"} 3
tgi_request_queue_duration_bucket{le="+Inf"} 120
tgi_request_queue_duration_sum 2.5
tgi_request_queue_duration_count 120

# TYPE tgi_batch_inference_duration histogram
tgi_batch_inference_duration_bucket{method="decode",le="0.1"} 899
tgi_batch_inference_duration_bucket{method="decode",le="+Inf"} 899
tgi_batch_inference_duration_sum{method="decode"} 18
tgi_batch_inference_duration_count{method="decode"} 899
tgi_batch_inference_duration_bucket{method="prefill",le="0.1"} 30
tgi_batch_inference_duration_bucket{method="prefill",le="+Inf"} 40
tgi_batch_inference_duration_sum{method="prefill"} 4.5
tgi_batch_inference_duration_count{method="prefill"} 40
"""


def one(text: str = PAGE):
    """The only series of a page."""
    (series,) = read_page(text).series
    return series


def test_a_page_is_read_whole():
    reading, series = read_page(PAGE), one()
    assert (reading.engine, reading.problem, reading.skipped_lines) == ("tgi", None, 0)
    assert (series.model, series.rank, series.running, series.waiting) == (None, None, 16, 7)
    assert series.counters == {
        "prompt_tokens": 5120,
        "generation_tokens": 9600,
        "steps": 939,
        "finished:done": 120,
        "finished:rejected": 5,
        "finished:error": 3,
    }


def test_prefill_is_that_of_batches_and_decode_steps_are_not_added_to_it():
    prefill = one().histograms["prefill"]
    assert (prefill.bounds, prefill.counts, prefill.total) == ((0.1, math.inf), (30, 40), 4.5)


def test_bounds_are_numbers():
    assert one().histograms["queue"].bounds == (0.00015000000000000001, math.inf)


@pytest.mark.parametrize(
    ("figure", "reason"),
    [
        ("kv_usage_pct", "TGI does not tell how full its KV cache is"),
        ("ttft", "TGI does not measure the first token: see queue and prefill (per batch)"),
        ("generation_tokens_per_s", "TGI counts generated tokens when a request ends"),
        ("prefix_hit_pct", "TGI does not count prefix-cache hits"),
    ],
)
def test_what_it_cannot_say_has_a_reason(figure, reason):
    assert read_page(PAGE).missing[figure] == reason


def test_steps_make_a_rate_and_tokens_that_are_counted_at_the_end_make_none():
    tracker = EngineTracker()
    tracker.push(read_page(PAGE), 0.0)
    later = PAGE.replace('success{method="decode"} 899', 'success{method="decode"} 1099')
    later = later.replace("generated_tokens_sum 9600", "generated_tokens_sum 9900")
    live = tracker.push(read_page(later), 10.0).total
    assert (live.steps_per_s, live.generation_tokens_per_s) == (20, None)
    assert read_page(PAGE).progress == ("steps",)
