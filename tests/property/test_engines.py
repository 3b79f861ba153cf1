"""Whatever a page or a command line holds, no engine's module raises, and what it reads makes sense."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.sampling.window import EngineTracker
from gputop_llm.sources import engines
from gputop_llm.sources.launch import program_of
from tests.support.captures import read_page

LABELS = ("model_name", "model", "engine", "dp_rank", "tp_rank", "pp_rank", "priority", "is_streaming", "mode", "le")
LABELS += ("method", "err", "stage", "request_type", "kv_cache_block_type", "finished_reason", "http_code", "position")
WORDS = ("0", "1", "", "x", "prefill", "decode", "prefill_forward", "waiting", "fraction", "used", "max", "+Inf", "0.5")
VALUES = ("0", "1", "12.5", "1e9", "NaN", "+Inf", "-Inf", "-1")

_label = st.tuples(st.sampled_from(LABELS), st.sampled_from(WORDS))


def lines(engine):
    names = st.sampled_from(sorted(engine.needed))
    labels = st.dictionaries(st.sampled_from(LABELS), st.sampled_from(WORDS), max_size=4)
    return st.lists(st.tuples(names, labels, st.sampled_from(VALUES)), max_size=30)


def page_of(rows) -> str:
    def one(name, labels, value) -> str:
        return f"{name}{{{','.join(f'{key}={json.dumps(text)}' for key, text in labels.items())}}} {value}\n"

    return "".join(one(*row) for row in rows)


@settings(deadline=None)
@given(
    st.sampled_from(sorted(e.name for e in engines.ENGINES.values() if e.prefixes)).flatmap(
        lambda name: st.tuples(*[lines(engines.ENGINES[name])] * 2)
    )
)
def test_any_page_makes_a_reading_without_numbers_that_are_none(pages):
    tracker = EngineTracker()
    for at, rows in enumerate(pages):
        reading = read_page(page_of(rows))
        window = tracker.push(reading, 5.0 * at)
        for one in reading.series:
            numbers = [one.running, one.waiting, one.kv_usage_pct, *one.counters.values()]
            assert all(value is None or math.isfinite(value) for value in numbers)
            assert all(histogram.bounds[-1] == math.inf for histogram in one.histograms.values())
        assert window.total.generation_tokens_per_s is None or window.total.generation_tokens_per_s >= 0


_keys = st.sampled_from(("iter", "numActiveRequests", "kvCacheStats", "usedNumBlocks", "maxNumBlocks"))
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.just(10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
)


@given(_json)
def test_any_json_is_an_engine_s_or_nobody_s(page):
    reading = engines.read_json(page)
    for one in reading.series if reading else ():
        numbers = [one.running, one.waiting, one.kv_usage_pct, *one.counters.values()]
        assert all(value is None or math.isfinite(value) for value in numbers)


_argv = st.lists(
    st.sampled_from(
        (
            *(
                "python3",
                "-m",
                "-c",
                "-W",
                "sglang.launch_server",
                "sglang",
                "serve",
                "--port",
                "--port=0",
                "-p",
                "8080",
            ),
            *("llama-server", "-m", "--host", "::", "trtllm-serve", "tritonserver", "--metrics-port=x"),
            *("lmdeploy", "--port=0"),
            *("api_server", "text-generation-launcher", "text-generation-router", "/v/bin/sglang/launch_server.py", ""),
        )
    )
    | st.text(max_size=4),
    max_size=8,
)


@given(_argv)
def test_any_command_line_is_one_engine_s_at_most(argv):
    program_of(argv)
    launches = [launch for engine in engines.ENGINES.values() if (launch := engine.launch(argv)) is not None]
    assert len(launches) <= 1
    assert all(url.startswith("http") for launch in launches for url in launch.urls)
