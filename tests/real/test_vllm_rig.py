"""The rig itself: a real server comes up, answers, serves a load, and is gone afterwards."""

from __future__ import annotations

import pytest

from tests.real.load import run_load

pytestmark = pytest.mark.real


def titles(server):
    """The `VLLM::…` titles among the server's processes, sorted."""
    return sorted(line for line in server.pids().values() if line.startswith("VLLM::"))


def test_a_server_started_as_a_module_answers_and_serves_a_load(vllm_tiny):
    status, text = vllm_tiny.get("/metrics")
    assert status == 200
    assert "vllm:num_requests_running{" in text
    assert titles(vllm_tiny) == ["VLLM::EngineCore", "VLLM::Worker"]

    load = run_load(vllm_tiny.port, requests=12, concurrency=4, max_tokens=16)

    assert load.errors == []
    assert len(load.ttft_s) == 12
    assert 12 * 8 <= load.generation_tokens <= 12 * 16
    assert 0 < load.itl_mean_s < load.ttft_mean_s + max(load.e2e_s)
    assert max(load.e2e_s) <= load.duration_s


def test_the_12_layer_model_serves_a_load_with_every_token_streamed(vllm_small):
    load = run_load(vllm_small.port, requests=6, concurrency=3, max_tokens=24)

    assert load.errors == []
    # One chunk a token, but for those that the server merged.
    assert len(load.itl_s) + len(load.ttft_s) >= 0.9 * load.generation_tokens
    assert load.ttft_mean_s > load.itl_mean_s > 0.005


def test_tensor_parallel_has_one_worker_a_rank(vllm_tp2):
    assert titles(vllm_tp2) == ["VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1"]


def test_data_parallel_has_one_engine_a_rank(vllm_dp2):
    assert {"VLLM::EngineCore_DP0", "VLLM::EngineCore_DP1", "VLLM::DPCoordinator"} <= set(titles(vllm_dp2))


def test_two_api_servers_share_one_engine(vllm_api2):
    assert titles(vllm_api2) == ["VLLM::APIServer_0", "VLLM::APIServer_1", "VLLM::EngineCore", "VLLM::Worker"]
