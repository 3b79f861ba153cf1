"""Rules on engines that lack a signal: what can't be told is said so, and nothing healthy is raised."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.model import Frame
from gputop_llm.sampling.window import EngineTracker
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.symptoms.rules import stale, stalled
from tests.support import symptom_frames as sf
from tests.support.captures import read_page, scrape
from tests.support.symptom_frames import busy, cant_tell, raised_at, reports

STALLED = stalled.RULES
SGLANG = 'engine_type="unified",model_name="m",tp_rank="0"'
# Pages of busy engines: what moves step by step, and token counts that stand still until a request ends.
BUSY = {
    "llamacpp": lambda s: scrape("llamacpp-b11434-load").replace(
        "n_decode_total 2442", f"n_decode_total {2442 + 40 * s}"
    ),
    "tgi": lambda s: (
        "tgi_batch_current_size 16\ntgi_queue_size 0\ntgi_request_success 120\ntgi_request_generated_tokens_sum 9000\n"
        f'tgi_batch_inference_success{{method="decode"}} {900 + 40 * s}\n'
    ),
    "trtllm": lambda s: (
        f'trtllm_num_requests_running{{model_name="m"}} {8 + s % 2}\ntrtllm_num_requests_waiting{{model_name="m"}} 0\n'
        'trtllm_kv_cache_utilization{model_name="m"} 0.5\ntrtllm_generation_tokens_total{model_name="m"} 90\n'
    ),
    "triton": lambda s: (
        scrape("triton-trtllm-23.11")
        .replace('"iteration_counter"', '"x"')
        .replace('general_type="timestamp"', 'general_type="iteration_counter"')
        .replace("1700074049", str(1000 + 40 * s))
        .replace("0.4875", "0.5")
    ),
    "sglang": lambda s: (
        f"sglang:num_running_reqs{{{SGLANG}}} 16\nsglang:num_queue_reqs{{{SGLANG}}} 0\n"
        f'sglang:token_usage{{{SGLANG}}} 0.5\nsglang:generation_tokens_total{{model_name="m"}} 90\n'
        f'sglang:inter_token_latency_seconds_bucket{{model_name="m",le="+Inf"}} {100 + 600 * s}\n'
        f'sglang:inter_token_latency_seconds_sum{{model_name="m"}} {1 + 12 * s}\n'
    ),
}


def frames(page_at, seconds: int = 40, **more) -> list[Frame]:
    """One page a second, on a busy GPU."""
    tracker, windows = EngineTracker(), []
    for s in range(seconds):
        reading = read_page(page_at(s))
        windows.append((reading, tracker.push(reading, sf.MONO_S + s)))

    def edit(frame: Frame, s: int) -> Frame:
        reading, window = windows[s]
        (engine,) = frame.engines
        return replace(frame, engines=(replace(engine, scrape=replace(engine.scrape, value=reading), window=window),))

    return busy(seconds, edit=edit, **more)


@pytest.mark.parametrize("engine", BUSY)
def test_a_busy_engine_whose_tokens_are_counted_at_the_end_raises_nothing(engine):
    made = frames(BUSY[engine])
    raised = {s.id for report in reports(RULES, made) for s in report.active}
    # The recorded pages have a queue, and they stand still in it.
    assert raised <= {"queue-growing"}, raised


@pytest.mark.parametrize("engine", ["llamacpp", "tgi", "triton", "sglang"])
def test_steps_that_stand_still_while_requests_run_are_a_stall(engine):
    idle = {
        "util_pct": 100.0,
        "power_w": 150.0,
        "gpm.sm_active_pct": 1.0,
        "gpm.tensor_pct": 0.0,
        "gpm.dram_bw_pct": 0.5,
    }
    made = frames(lambda s: BUSY[engine](min(s, 10)), gpu=idle)
    assert 15 <= raised_at("stalled", STALLED, made) <= 35


def sglang_stops(gauges_fall_at_s: float) -> list[Frame]:
    """It has nothing more to do after 30 s, and says so later."""

    def page(second: int) -> str:
        text = BUSY["sglang"](min(second, 30))
        return text.replace("} 16\n", "} 0\n") if second >= gauges_fall_at_s else text

    worked = {"util_pct": 95.0, "power_w": 500.0, "gpm.sm_active_pct": 80.0, "gpm.tensor_pct": 20.0}
    idle = {"util_pct": 0.0, "power_w": 80.0, "gpm.sm_active_pct": 0.0, "gpm.tensor_pct": 0.0, "gpm.dram_bw_pct": 0.0}
    gpu = {name: lambda s, name=name: (worked if s <= 30 else idle).get(name, 30.0) for name in idle}
    return frames(page, 100, gpu=gpu)


def test_sglang_that_has_become_idle_and_says_so_half_a_minute_later_is_not_called_broken():
    raised = {s.id for report in reports(RULES, sglang_stops(61)) for s in report.active}
    assert raised <= {"underloaded"}, raised


def test_sglang_that_still_says_that_requests_run_when_it_would_have_said_otherwise_is_stalled():
    assert 70 <= raised_at("stalled", STALLED, sglang_stops(1000)) <= 80


def test_an_engine_without_a_live_signal_is_not_called_stalled():
    made = frames(lambda _: BUSY["trtllm"](0))
    assert raised_at("stalled", STALLED, made) is None
    (lacking,) = cant_tell("stalled", STALLED, made)
    assert lacking.needs == "a live progress signal: this engine's counters move only as requests end"


@pytest.mark.parametrize(
    ("rule", "engine", "needs"),
    [
        ("errors-rising", "llamacpp", "llama.cpp does not count requests"),
        ("errors-rising", "trtllm", "TensorRT-LLM counts failed requests as answers by HTTP status only"),
        ("errors-rising", "sglang", "this SGLang does not count requests that failed"),
        ("kv-pressure", "tgi", "TGI does not tell how full its KV cache is"),
        ("kv-pressure", "llamacpp", "llama.cpp no longer tells it (since 2025)"),
        ("ttft-high", "llamacpp", "llama.cpp does not measure it"),
        ("ttft-high", "triton", "Triton has no latency histograms"),
    ],
)
def test_what_an_engine_does_not_say_is_what_the_rule_lacks(rule, engine, needs):
    lacking = cant_tell(rule, RULES, frames(BUSY[engine], 12))
    assert [needs in one.needs for one in lacking] == [True], lacking


@pytest.mark.parametrize(("held_back", "raised"), [(True, False), (False, True)])
def test_an_answer_that_the_server_holds_back_is_no_slow_one(held_back, raised):
    made = busy(60, reading={"held_back": held_back}, scrape={"took_s": 2.0})
    assert (raised_at("metrics-stale", stale.RULES, made) is not None) is raised
