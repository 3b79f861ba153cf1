"""What the rules said on a real H200 under real vLLM 0.24: by the GPM counters, never by utilisation alone."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.captures import CAPTURES


def recorded(name):
    with gzip.open(CAPTURES / f"h200/frames_symptoms_vllm-0.24_{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def active(frame):
    return {s["id"]: s for s in frame["symptoms"]["active"]}


@pytest.mark.parametrize("name", ["eager-4-streams", "graphs-4-streams"])
def test_a_small_batch_that_the_host_cannot_feed_is_host_bound_with_the_starved_gpu_below_it(name):
    frame = recorded(name)[-1]
    found = active(frame)
    assert found["host-bound"]["root"] is None
    assert found["gpu-starved"]["root"] == found["host-bound"]["key"]
    assert frame["gpus"][0]["gpm"]["sm_active_pct"] < 25
    core = next(p for p in frame["host"]["processes"] if p["role"] == "engine-core")
    assert core["main_thread_pct"] > 90


def test_full_utilisation_raises_nothing_where_the_counters_say_two_thirds():
    frame = recorded("8b-2-streams")[-1]
    gpu = frame["gpus"][0]
    assert gpu["util_pct"] == 100
    assert 60 < gpu["gpm"]["sm_active_pct"] < 75
    assert {s["severity"] for s in frame["symptoms"]["active"]} == {"note"}
    assert "the clients are the limit" in active(frame)["underloaded"]["headline"]
