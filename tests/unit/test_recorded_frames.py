"""Frames recorded on a real H200 under vLLM 0.24 say what was true there."""

from __future__ import annotations

import gzip
import itertools
import json
from statistics import fmean

import pytest

from tests.support.captures import CAPTURES


@pytest.fixture(scope="module")
def frames():
    with gzip.open(CAPTURES / "h200/frames_vllm-0.24_load.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_one_frame_a_second_each_of_the_documented_schema(frames):
    assert len(frames) == 30
    assert {f["schema"] for f in frames} == {1}
    gaps = [b["at_s"] - a["at_s"] for a, b in itertools.pairwise(frames)]
    assert fmean(gaps) == pytest.approx(1.0, abs=0.05)


def test_the_engine_was_found_and_its_gpu_mapped_by_nvml(frames):
    for frame in frames:
        target = next(t for t in frame["targets"] if t["key"] == frame["focus"])
        assert (target["engine"], target["orphan"]) == ("vllm", False)
        assert frame["engines"][0]["reading"]["version"] == "0.24.0"
        core = next(p for p in target["processes"] if p["role"] == "engine-core")
        assert (core["gpus"], core["gpus_from"]) == ([0], "nvml")


def test_utilisation_reads_twice_what_the_sms_do(frames):
    """The gap that no utilisation number shows: a small model keeps a quarter of the SMs busy."""
    util = fmean(f["gpus"][0]["util_pct"] for f in frames)
    sm_active = fmean(f["gpus"][0]["gpm"]["sm_active_pct"] for f in frames)
    assert 35 < util < 50
    assert 20 < sm_active < 31
    assert all(f["gpus"][0]["gpm"]["tensor_pct"] < 10 for f in frames)


def test_the_load_was_32_streams_of_128_tokens_each(frames):
    totals = [f["engines"][0]["total"] for f in frames]
    assert max(t["running"] for t in totals) == 32
    assert all(t["mean_generation_tokens"] == 128 for t in totals)
    assert all(t["mean_prompt_tokens"] == 256 for t in totals)
    # The load generator counted 8,796 tokens/s over its 100 s.
    assert fmean(t["generation_tokens_per_s"] for t in totals) == pytest.approx(8796, rel=0.1)


def test_the_engine_core_thread_was_the_busiest_of_the_host(frames):
    cores = [next(p for p in f["host"]["processes"] if p["role"] == "engine-core") for f in frames]
    assert fmean(p["main_thread_pct"] for p in cores) > 80


def test_what_the_card_lacks_is_null_with_its_reason(frames):
    gpu = frames[-1]["gpus"][0]
    assert gpu["fan_pct"] is None
    assert "not supported" in gpu["missing"]["fan_pct"]
    assert gpu["nvlink_tx_bytes_per_s"] is None
    assert "NVLink" in gpu["missing"]["nvlink_tx_bytes_per_s"]
