"""GPU, host and target readings of the simulated node agree with each other and with what its engines do."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gputop_llm.demo.gpu_physics import SLICE_S, SimulatedGpu
from gputop_llm.demo.log import DemoLogSource
from gputop_llm.demo.node import SimulatedNode
from gputop_llm.demo.roofline import H200, LLAMA_8B, StepCost, Work
from gputop_llm.demo.scenarios import scenario
from gputop_llm.demo.wire import Answer, encode
from gputop_llm.errors import SourceError
from gputop_llm.gpus import find

HIGHEST_LINUX_PID = 1 << 22


def made(name="healthy", seed=7, gpus=1, engines=1, at_s=5.0):
    node = SimulatedNode(scenario(name), seed, gpus, engines, started_s=1_800_000_000.0)
    node.advance(at_s)
    return node


def reading(engines=1, **settings):
    return made(engines=engines, **settings).reading([8000 + number for number in range(engines)])


def test_a_difference_of_work_and_a_sum_have_every_field_of_it():
    names = [field.name for field in dataclasses.fields(Work)]
    earlier, now = Work(*range(1, len(names) + 1)), Work(*range(10, 10 * len(names) + 1, 10))

    assert now.since(earlier) == Work(*(9 * number for number in range(1, len(names) + 1)))
    earlier.add(now, 0.5)
    assert earlier == Work(*(6 * number for number in range(1, len(names) + 1)))


def test_the_same_seed_gives_the_same_node_however_often_it_is_polled():
    polled, left_alone = made(at_s=0.0), made(at_s=0.0)
    dice = random.Random(3)
    at_s = 0.0
    while at_s < 20:
        at_s += dice.uniform(0.01, 1.7)
        polled.advance(at_s)
        polled.metrics(0)
        polled.reading([8000])
    left_alone.advance(at_s)

    assert polled.reading([8000]) == left_alone.reading([8000])
    assert polled.metrics(0) == left_alone.metrics(0)


def test_another_seed_gives_another_node():
    assert made(seed=7).metrics(0) != made(seed=8).metrics(0)


def test_engines_of_one_node_see_different_traffic():
    node = made(gpus=2, engines=2)

    assert node.metrics(0) != node.metrics(1)


def test_a_serving_gpu_is_busy_and_its_figures_are_possible():
    (gpu,) = reading().gpus.gpus
    gpm = gpu.gpm

    assert gpu.util_pct >= 90
    assert gpm.graphics_pct == pytest.approx(gpu.util_pct, abs=1)
    assert 0 < gpm.sm_occupancy_pct < gpm.sm_active_pct < gpm.graphics_pct
    assert 0 < gpm.tensor_pct < gpm.dram_bw_pct < 100
    assert 200 < gpu.power_w < gpu.power_limit_w
    assert 35 < gpu.temp_c < gpu.temp_mem_c < gpu.temp_slowdown_c
    assert gpu.sm_clock_mhz == gpu.sm_clock_max_mhz
    assert LLAMA_8B.weight_bytes < gpu.mem_used_bytes < gpu.mem_total_bytes


def test_an_idle_gpu_cools_down_and_reads_zero():
    gpu = SimulatedGpu(0, H200, linked=False, dice=random.Random(1))
    busy = Work(busy_s=SLICE_S, sm_active_s=0.9 * SLICE_S, flop=0.3 * H200.bf16_flop_per_s * SLICE_S)
    for _ in range(400):
        gpu.advance(busy)
    hot = gpu.reading(0, ())
    for _ in range(400):
        gpu.advance(Work())
    cold = gpu.reading(0, ())

    assert (cold.util_pct, cold.gpm.sm_active_pct, cold.gpm.dram_bw_pct) == (0, 0, 0)
    assert cold.power_w < 130 < hot.power_w
    assert cold.temp_c < hot.temp_c
    assert cold.sm_clock_mhz < hot.sm_clock_mhz == 1980
    assert {reason.name for reason in cold.throttle if reason.active} == {"idle"}
    assert cold.energy_j > hot.energy_j


def test_power_and_temperature_lag_behind_the_load():
    gpu = SimulatedGpu(0, H200, linked=False, dice=random.Random(1))
    busy = Work(busy_s=SLICE_S, sm_active_s=SLICE_S, flop=0.3 * H200.bf16_flop_per_s * SLICE_S)
    power, temp = [], []
    for _ in range(240):
        gpu.advance(busy)
        now = gpu.reading(0, ())
        power.append(now.power_w)
        temp.append(now.temp_c)

    assert power[0] < 0.8 * power[-1]
    assert power[8] > 0.9 * power[-1]
    assert temp[8] < temp[-1] - 5
    assert temp == sorted(temp)


def test_above_its_limit_a_gpu_is_capped_and_says_so():
    gpu = SimulatedGpu(0, H200, linked=False, dice=random.Random(1))
    for _ in range(40):
        gpu.advance(Work(busy_s=SLICE_S, sm_active_s=SLICE_S, flop=H200.bf16_flop_per_s * SLICE_S))
    capped = gpu.reading(0, ())

    assert capped.sm_clock_mhz < capped.sm_clock_max_mhz
    assert capped.power_w == pytest.approx(700, rel=0.04)
    (reason,) = [r for r in capped.throttle if r.name == "sw_power_cap"]
    assert (reason.active, reason.share_pct) == (True, 100.0)


def test_prefill_shows_in_the_tensor_units_and_decode_in_the_memory():
    cost = StepCost(LLAMA_8B, H200)
    decode, prefill = cost.step(60, 120_000, []), cost.step(0, 0, [(8192, 0)])

    def share(work, amount, peak):
        return amount / work.elapsed_s / peak

    assert share(decode, decode.dram_bytes, H200.hbm_bytes_per_s) > 0.5
    assert share(decode, decode.flop, H200.bf16_flop_per_s) < 0.15
    assert share(prefill, prefill.dram_bytes, H200.hbm_bytes_per_s) < 0.05
    assert share(prefill, prefill.flop, H200.bf16_flop_per_s) > 0.5
    assert 0.009 < decode.elapsed_s < 0.014
    assert 0.15 < prefill.elapsed_s < 0.3


def test_eight_gpus_and_two_engines_are_two_tensor_parallel_targets():
    both = reading(gpus=8, engines=2)
    first, second = both.targets.targets

    assert (first.gpus, second.gpus) == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert first.urls == ("http://127.0.0.1:8000",)
    assert first.argv[:3] == ("/demo/venv/bin/vllm", "serve", "demo/llama-70b")
    assert "--tensor-parallel-size" in first.argv
    assert [p.rank for p in second.processes] == [None, None, "TP0", "TP1", "TP2", "TP3"]
    assert [p.role for p in second.processes] == ["api-server", "engine-core", *["worker"] * 4]
    assert len({p.pid for t in both.targets.targets for p in t.processes}) == 12
    assert all(gpu.util_pct > 80 and gpu.nvlink_tx_bytes_per_s > 1e9 for gpu in both.gpus.gpus)


def test_nvml_host_and_discovery_name_the_same_processes():
    both = reading(gpus=8, engines=2)
    discovered = {p.pid: p for t in both.targets.targets for p in t.processes}
    on_gpus = {process.pid: gpu.index for gpu in both.gpus.gpus for process in gpu.processes}

    assert {load.pid: load.role for load in both.host.processes} == {pid: p.role for pid, p in discovered.items()}
    assert {pid: p.gpus for pid, p in discovered.items() if p.gpus} == {pid: (i,) for pid, i in on_gpus.items()}
    for gpu in both.gpus.gpus:
        assert gpu.processes[0].mem_bytes == discovered[gpu.processes[0].pid].mem_bytes < gpu.mem_used_bytes


@pytest.mark.parametrize(("gpus", "engines"), [(1, 1), (8, 2), (2, 0)])
def test_no_simulated_pid_can_belong_to_a_real_process(gpus, engines):
    both = reading(gpus=gpus, engines=engines)
    pids = [p.pid for t in both.targets.targets for p in t.processes]
    pids += [thread.tid for load in both.host.processes for thread in load.top_threads]

    assert pids
    assert min(pids) > HIGHEST_LINUX_PID


def test_every_part_says_that_it_is_simulated():
    both = reading()

    assert "simulated" in both.gpus.gpus[0].name
    assert "simulated" in both.targets.notes[0]
    assert all("simulated" in note for t in both.targets.targets for note in t.notes)
    assert all("demo" in text for t in both.targets.targets for text in (t.key, t.model, t.user))
    assert all("simulated" in why for why in both.gpus.gpus[0].missing.values())


def test_its_gpus_are_in_the_table_of_gpus():
    (gpu,) = reading().gpus.gpus
    spec = find(gpu.name, gpu.mem_total_bytes)

    assert spec.name.startswith("H200")
    assert spec.mem_bytes_per_s == H200.hbm_bytes_per_s
    assert spec.peak_per_s("bf16") == pytest.approx(H200.bf16_flop_per_s, rel=0.01)
    assert spec.nvlink_bytes_per_s == H200.nvlink_bytes_per_s


def test_what_is_unknown_has_a_reason():
    for gpus in (1, 8):
        for gpu in reading(gpus=gpus).gpus.gpus:
            unknown = {f.name for f in dataclasses.fields(gpu) if getattr(gpu, f.name) is None}
            # Only a GPU that shares the host's memory has it.
            assert unknown - {"host_available_bytes"} == set(gpu.missing)


def test_the_engine_core_works_harder_under_more_requests():
    def core_pct(**settings):
        (core,) = [load for load in reading(**settings).host.processes if load.role == "engine-core"]
        return core.main_thread_pct

    assert 5 < core_pct(name="healthy") < 60
    assert core_pct(name="healthy", at_s=-59.5) < core_pct(name="healthy")


def test_without_an_engine_a_plain_cuda_program_uses_the_gpus():
    both = reading(gpus=2, engines=0)
    (target,) = both.targets.targets

    assert (target.engine, target.urls, target.gpus) == ("cuda", (), (0, 1))
    assert all(gpu.util_pct > 0 and gpu.processes[0].pid == target.root_pid for gpu in both.gpus.gpus)


def test_gpus_that_no_engine_gets_are_idle():
    both = reading(gpus=3, engines=2)

    assert [gpu.util_pct > 50 for gpu in both.gpus.gpus] == [True, True, False]
    assert both.gpus.gpus[2].processes == ()


@pytest.mark.parametrize(("gpus", "engines"), [(1, 1), (8, 2), (1, 0)])
def test_a_reading_comes_over_the_wire_unchanged(gpus, engines):
    sent = reading(gpus=gpus, engines=engines)
    answer = Answer(encode(sent))

    assert answer.gpus() == sent.gpus
    assert answer.host() == sent.host
    assert answer.targets() == sent.targets


@pytest.mark.parametrize("text", [b"", b"<html>", b"[]", b'{"gpus":3}', b'{"gpus":{"gpus":[{"colour":1}]}}'])
def test_an_answer_that_is_no_reading_gives_one_sentence(text):
    with pytest.raises(SourceError, match="its answer is not a reading"):
        Answer(text).gpus()


def test_two_answers_share_the_texts_that_they_have_in_common():
    first, second = (Answer(encode(reading())).gpus().gpus[0] for _ in range(2))

    assert first.name is second.name
    assert first.throttle[0].name is second.throttle[0].name
    assert all(first.missing[field] is second.missing[field] for field in first.missing)


@pytest.mark.parametrize("gpus", [1, 4])
def test_the_log_names_the_kv_pool_that_the_metrics_page_names(gpus):
    node = made(gpus=gpus)
    log = DemoLogSource(node.reading([8000]).targets.targets[0]).poll()
    (pool,) = [signal.text for signal in log.signals if signal.kind == "kv-pool"]
    limits = scenario("healthy").limits
    assert pool == f"GPU KV cache size: {limits.num_gpu_blocks * limits.block_size:,} tokens"
    assert [signal.kind for signal in log.signals] == ["loading", "memory", "kv-pool", "graphs", "start"]
