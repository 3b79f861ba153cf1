"""Scenarios of what limits a GPU at work, and of who else uses it."""

from __future__ import annotations

from gputop_llm.demo.causes import in_between, near_miss, raising
from gputop_llm.demo.pace import Pace
from gputop_llm.demo.requests import Limits
from gputop_llm.demo.sensors import (
    GIB,
    cgroup_says,
    gpm_says,
    gpu_says,
    host_says,
    more_memory,
    neighbour,
)
from gputop_llm.demo.traffic import CHAT, Stream, always

# Half of the healthy load, so that slower steps do not fill the KV cache.
_LIGHT = CHAT.at((0.0, 2.2))
_PREFILL = Stream(
    name="documents",
    rates=((0.0, 1.0),),
    prompt=always(8192),
    output=always(2),
    even=True,
    prefix_blocks=192,
    prefix_share=1.0,
    prefixes=4,
)

SCENARIOS = (
    raising(
        "gpu-busy-not-working",
        "steps hold the GPU three times as long for the same work: utilisation near 100 %, SM active near 30 %",
        streams=(_LIGHT,),
        pace=Pace(kernels=3.0),
    ),
    near_miss(
        "gpu-busy-not-working",
        "steps hold the GPU a quarter longer for the same work: SM active stays above 60 %",
        streams=(_LIGHT,),
        pace=Pace(kernels=1.25),
    ),
    raising(
        "gpu-starved",
        "each step waits 12 ms for something outside, without using the CPU: the GPU is busy half of the time",
        streams=(_LIGHT,),
        pace=Pace(wait_s=12e-3),
    ),
    near_miss(
        "gpu-starved",
        "each step waits 3 ms for something outside: the GPU is busy two thirds of the time",
        streams=(_LIGHT,),
        pace=Pace(wait_s=3e-3),
    ),
    raising(
        "host-bound",
        "the engine core computes 15 ms in each step before the GPU gets its work: one core is full, the GPU waits",
        streams=(_LIGHT,),
        pace=Pace(wait_s=15e-3, cpu_s=30e-3),
    ),
    near_miss(
        "host-bound",
        "the engine core takes 85 % of one core, and the GPU waits 2.5 ms for it in each step",
        streams=(_LIGHT,),
        pace=Pace(wait_s=2.5e-3, cpu_s=7e-3),
    ),
    raising(
        "cpu-throttled",
        "the container's CPU limit stops its processes in two of five periods",
        readings=(cgroup_says(quota_cpus=1.0, throttled_pct=40.0, throttled_s_per_s=0.5),),
    ),
    near_miss(
        "cpu-throttled",
        "the container's CPU limit stops its processes in one of twenty-five periods",
        readings=(cgroup_says(quota_cpus=2.0, throttled_pct=4.0, throttled_s_per_s=0.02),),
    ),
    raising(
        "cpu-throttled",
        "other virtual machines take 12 % of the CPU time (steal)",
        variant="steal",
        readings=(host_says(steal_pct=12.0),),
    ),
    near_miss(
        "cpu-throttled",
        "other virtual machines take 4 % of the CPU time",
        variant="steal",
        readings=(host_says(steal_pct=4.0),),
    ),
    raising(
        "bandwidth-bound",
        "decode kernels get 85 % of the memory bandwidth: the limit of decode (nothing is wrong)",
        streams=(_LIGHT,),
        pace=Pace(kernels=0.68),
    ),
    near_miss(
        "bandwidth-bound",
        "decode kernels get 70 % of the memory bandwidth",
        streams=(_LIGHT,),
        pace=Pace(kernels=0.85),
    ),
    raising(
        "compute-bound",
        "documents of 8,000 tokens keep the tensor cores at work: the limit of prefill (nothing is wrong)",
        streams=(CHAT.at((0.0, 2.0)), in_between(_PREFILL, 6.3, 1.0)),
        limits=Limits(max_num_batched_tokens=2048),
        usual=Pace(kernels=0.72),
    ),
    near_miss(
        "compute-bound",
        "documents of 8,000 tokens keep the tensor cores at work at half of their peak",
        streams=(CHAT.at((0.0, 2.0)), in_between(_PREFILL, 4.4, 1.0)),
        limits=Limits(max_num_batched_tokens=2048),
        usual=Pace(kernels=0.72),
    ),
    raising(
        "comm-bound",
        "four GPUs wait for each other's data in every layer: all read busy, few SMs work, the links carry much",
        gpus=4,
        streams=(_LIGHT,),
        pace=Pace(kernels=2.0),
        readings=(
            gpu_says(None, nvlink_tx_bytes_per_s=180e9, nvlink_rx_bytes_per_s=180e9),
            gpm_says(None, nvlink_tx_bytes_per_s=180e9, nvlink_rx_bytes_per_s=180e9),
        ),
    ),
    near_miss(
        "comm-bound",
        "the links of four GPUs carry as much, while three fifths of their SMs work",
        gpus=4,
        streams=(_LIGHT,),
        pace=Pace(kernels=1.25),
        readings=(
            gpu_says(None, nvlink_tx_bytes_per_s=180e9, nvlink_rx_bytes_per_s=180e9),
            gpm_says(None, nvlink_tx_bytes_per_s=180e9, nvlink_rx_bytes_per_s=180e9),
        ),
    ),
    raising(
        "comm-bound",
        "one of four GPUs is done early and idles, the others are busy: the ranks' utilisation is 40 points apart",
        variant="straggler",
        gpus=4,
        streams=(_LIGHT,),
        readings=(gpu_says(2, util_pct=55.0),),
    ),
    near_miss(
        "comm-bound",
        "the utilisation of four GPUs is 26 points apart",
        variant="straggler",
        gpus=4,
        streams=(_LIGHT,),
        readings=(gpu_says(2, util_pct=71.0),),
    ),
    raising(
        "copy-bound",
        "the GPU takes in 25 GB/s over PCIe while it decodes: 40 % of what gen 5 ×16 can carry",
        readings=(gpu_says(0, pcie_rx_bytes_per_s=25e9), gpm_says(0, pcie_rx_bytes_per_s=25e9)),
    ),
    near_miss(
        "copy-bound",
        "the GPU takes in 17 GB/s over PCIe while it decodes: 27 % of what gen 5 ×16 can carry",
        readings=(gpu_says(0, pcie_rx_bytes_per_s=17e9), gpm_says(0, pcie_rx_bytes_per_s=17e9)),
    ),
    raising(
        "memory-spike",
        "the engine takes 12 GiB more at once",
        when=(20.0, 21.0),
        lasts=(20.0, 65.0),
        readings=(more_memory(12 * GIB),),
    ),
    near_miss(
        "memory-spike",
        "the engine takes 6 GiB more at once: under 5 % of the GPU's memory",
        readings=(more_memory(6 * GIB),),
    ),
    raising(
        "noisy-neighbour",
        "somebody's notebook computes on the engine's GPU",
        readings=(neighbour(sm_pct=30.0, mem_bytes=3 * GIB),),
    ),
    near_miss(
        "noisy-neighbour",
        "somebody's notebook holds 1 GiB on the engine's GPU, and hardly computes",
        readings=(neighbour(sm_pct=4.0, mem_bytes=1 * GIB),),
    ),
    raising(
        "noisy-neighbour",
        "somebody's notebook takes more and more memory of the engine's GPU",
        variant="growing",
        readings=(neighbour(sm_pct=1.0, mem_bytes=2 * GIB, grows_bytes_per_s=0.25 * GIB),),
    ),
)
