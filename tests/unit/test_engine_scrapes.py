"""Every recorded page of an engine other than vLLM is read to the exact values that it holds.

The tables were copied from the pages' own lines, not from what the program says.
"""

from __future__ import annotations

import math

import pytest

from tests.support.captures import OTHER_PAGES, read_page, scrape

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

# page, engine, model, running, waiting, KV in %, and every counter.
VALUES = [
    (
        *("llamacpp-b11434-idle", "llamacpp", None, 0, 0, None),
        {
            "prompt_tokens_computed": 0,
            "prompt_tokens_cached": 0,
            "prompt_tokens": 0,
            "generation_tokens": 0,
            "steps": 0,
            "prefix_queries": 0,
            "prefix_hits": 0,
        },
    ),
    (
        *("llamacpp-b11434-load", "llamacpp", None, 4, 6, None),
        {
            "prompt_tokens_computed": 3384,
            "prompt_tokens_cached": 4790,
            "prompt_tokens": 8174,
            "generation_tokens": 9301,
            "steps": 2442,
            "prefix_queries": 8174,
            "prefix_hits": 4790,
        },
    ),
    (
        *("llamacpp-b11434-after", "llamacpp", None, 0, 0, None),
        {
            "prompt_tokens_computed": 3715,
            "prompt_tokens_cached": 5588,
            "prompt_tokens": 9303,
            "generation_tokens": 11351,
            "steps": 2903,
            "prefix_queries": 9303,
            "prefix_hits": 5588,
        },
    ),
    (
        *("sglang-0.4.x", "sglang", LLAMA, 0, 0, 0),
        {"prompt_tokens": 7, "generation_tokens": 8, "itl_observations": 1},
    ),
    # Its own share is 0.4875, though 1 of 6239 blocks is used.
    ("triton-trtllm-23.11", "triton", "tensorrt_llm", 1, 1, 48.75, {"steps": 0}),
    (
        *("trtllm-1.1-dynamo-docsample", "trtllm", "Qwen/Qwen3-0.6B", None, None, None),
        {"finished:stop": 150, "finished:length": 5},
    ),
]

INF = math.inf
# page, and of each histogram: its bounds, cumulative counts and sum.
HISTOGRAMS = {
    "llamacpp-b11434-idle": {"itl": ((INF,), (0,), 0)},
    "llamacpp-b11434-load": {"itl": ((INF,), (9301,), 8.30297)},
    "llamacpp-b11434-after": {"itl": ((INF,), (11351,), 10.0637)},
    "sglang-0.4.x": {
        "ttft": (
            (
                *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25),
                *(0.5, 0.75, 1, 2.5, 5, 7.5, 10, 15, 20, 25, 30, INF),
            ),
            (*[0] * 9, *[1] * 12),
            0.30457592010498047,
        ),
        "itl": (
            (
                *(0.005, 0.01, 0.015, 0.02, 0.025, 0.03),
                *(0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, INF),
            ),
            (*[0] * 6, *[1] * 13),
            0.0381757915019989,
        ),
        "e2e": (
            (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, INF),
            (0, *[1] * 15),
            0.30521273612976074,
        ),
    },
    "triton-trtllm-23.11": {},
    # The sample leaves buckets out, the last one too: it has the count of all.
    "trtllm-1.1-dynamo-docsample": {
        "ttft": ((0.01, 0.05, INF), (0, 12, 150), 8.75),
        "tpot": ((0.1, INF), (120, 150), 12.5),
        "queue": ((1, INF), (140, 150), 32.1),
        "e2e": ((0.5, INF), (25, 150), 45.2),
    },
}


def test_no_recorded_page_is_left_out_of_the_tables():
    pages = {path.stem for path in OTHER_PAGES}
    assert pages == {row[0] for row in VALUES} == set(HISTOGRAMS)


@pytest.mark.parametrize("row", VALUES, ids=lambda row: row[0])
def test_gauges_and_counters(row):
    page, engine, model, running, waiting, kv, counters = row
    reading = read_page(scrape(page))
    (one,) = reading.series
    assert (reading.engine, reading.problem, reading.skipped_lines) == (engine, None, 0)
    assert (one.model, one.running, one.waiting) == (model, running, waiting)
    # One rank: without a name, or the first.
    assert one.rank in (None, "0")
    assert one.kv_usage_pct == (None if kv is None else pytest.approx(kv))
    assert one.counters == counters


@pytest.mark.parametrize("page", HISTOGRAMS)
def test_histograms(page):
    (one,) = read_page(scrape(page)).series
    found = {name: (h.bounds, h.counts, h.total) for name, h in one.histograms.items()}
    assert found == HISTOGRAMS[page]


@pytest.mark.parametrize("page", HISTOGRAMS)
def test_whatever_is_absent_has_a_reason(page):
    reading = read_page(scrape(page))
    (one,) = reading.series
    have = {*one.counters, *one.histograms}
    for figure in ("running", "waiting", "kv_usage_pct"):
        assert (getattr(one, figure) is None) == (figure in reading.missing), figure
    for latency in ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"):
        assert (latency in have) != (latency in reading.missing), latency
