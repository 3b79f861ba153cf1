"""llama.cpp's traps: averages over other people's scrapes, a lifetime average, a high-water mark, counts at the end."""

from __future__ import annotations

import json

import pytest

from gputop_llm.errors import SourceError
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources.engines import llamacpp
from gputop_llm.sources.metrics import MetricsSource, probe
from tests.support.captures import read_page, scrape
from tests.support.http_server import HttpServer, page


def window():
    """From the page under load to the one after it, 5 s later."""
    tracker = EngineTracker()
    tracker.push(read_page(scrape("llamacpp-b11434-load")), 0.0)
    return tracker.push(read_page(scrape("llamacpp-b11434-after")), 5.0).total


def test_what_moves_live_makes_rates():
    live = window()
    assert live.steps_per_s == pytest.approx((2903 - 2442) / 5)
    assert live.prompt_computed_tokens_per_s == pytest.approx((3715 - 3384) / 5)
    assert live.prompt_cached_tokens_per_s == pytest.approx((5588 - 4790) / 5)
    assert live.prefix_hit_pct == pytest.approx(100 * 798 / (9303 - 8174))


def test_generated_tokens_are_counted_at_the_end_and_make_none():
    live = window()
    assert live.generation_tokens_per_s is None
    assert live.missing["generation_tokens_per_s"] == "llama.cpp counts generated tokens when a request ends"


def test_seconds_and_tokens_make_a_mean_and_no_quantiles():
    itl = window().latency["itl"]
    assert itl.count == 11351 - 9301
    assert itl.mean_s == pytest.approx((10.0637 - 8.30297) / (11351 - 9301))
    assert (itl.p50, itl.p95, itl.p99) == (None, None, None)


@pytest.mark.parametrize(
    "name", ["prompt_tokens_seconds", "predicted_tokens_seconds", "n_busy_slots_per_decode", "n_tokens_max"]
)
def test_averages_of_other_times_are_not_read(name):
    assert f"llamacpp:{name}" not in llamacpp.ENGINE.needed


def test_the_old_kv_gauge_is_a_share_of_one():
    (series,) = read_page("llamacpp:kv_cache_usage_ratio 0.25\n").series
    assert series.kv_usage_pct == 25


def test_speculation_shows_once_it_drafts():
    reading = read_page(scrape("llamacpp-b11434-load"))
    assert reading.missing["spec"] == "speculative decoding is off"
    drafting = scrape("llamacpp-b11434-load").replace("num_draft_tokens_total 0", "num_draft_tokens_total 30")
    drafting += 'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 9\n'
    counters = read_page(drafting).series[0].counters
    assert (counters["spec_draft_tokens"], counters["spec_accepted_at:0"]) == (30, 9)


def test_switched_off_metrics_say_how_to_switch_them_on():
    with HttpServer({"/metrics": page("{}", 501, "application/json")}) as server:
        source = MetricsSource(server.url)
        with pytest.raises(SourceError, match="--metrics"):
            source.poll()
        source.close()


def test_a_router_says_that_it_needs_a_model_and_is_read_with_one():
    def answer(exchange):
        named = exchange.path == "/metrics?model=m"
        exchange.reply(scrape("llamacpp-b11434-load") if named else "{}", 200 if named else 400, {})

    with HttpServer({"/metrics": answer}) as server:
        source = MetricsSource(server.url)
        with pytest.raises(SourceError, match=r"/metrics\?model=NAME"):
            source.poll()
        source.close()
        source = MetricsSource(f"{server.url}/metrics?model=m")
        assert source.poll().series[0].running == 4
        source.close()


def test_its_version_is_its_build():
    pages = {"/metrics": page(scrape("llamacpp-b11434-idle")), "/props": page('{"build_info": "b11434-0"}')}
    with HttpServer(pages) as server:
        source = MetricsSource(server.url)
        assert source.poll().version == "b11434-0"
        source.close()


@pytest.mark.parametrize("content_type", ["text/plain; version=0.0.4", "application/json; charset=utf-8"])
def test_a_page_that_came_as_one_json_string_is_read(content_type):
    text = scrape("llamacpp-b11434-load")
    with HttpServer({"/metrics": page(json.dumps(text), 200, content_type)}) as server:
        source = MetricsSource(server.url)
        reading = source.poll()
        source.close()
        assert probe(server.url)
    assert reading.series == read_page(text).series
    assert reading.skipped_lines == 0
