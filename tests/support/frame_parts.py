"""Parts of frames as a real node gives them: GPU values recorded on an H200 under vLLM 0.24, the rest fits them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

from gputop_llm.model import (
    CgroupCpu,
    EngineFrame,
    EngineLive,
    EngineReading,
    EngineSeries,
    EngineWindow,
    Gpm,
    Gpu,
    GpuNode,
    GpuProcess,
    Host,
    Latency,
    MigInstance,
    Part,
    ProcessLoad,
    Quantile,
    Target,
    TargetProcess,
    ThreadLoad,
    ThrottleReason,
    XidEvent,
)

CAPTURES = Path(__file__).parents[2] / "captures"
AT_S = 1_795_968_526.0
MONO_S = 5000.0
STARTED_S = AT_S - 724.0
MIB = 1024.0**2
GIB = 1024**3
KEY = "624@1795967802"
URL = "http://127.0.0.1:8000/metrics"


@cache
def _recorded(name: str) -> dict:
    return json.loads((CAPTURES / "h200" / f"{name}.json").read_text())


def part(value, *, age_s: float = 0.2, took_s: float = 0.0004, error: str | None = None, period_s: float = 1.0) -> Part:
    """A value that was read a moment ago."""
    return Part(value, AT_S - age_s, MONO_S - age_s, age_s, took_s, error, period_s, polls=9)


# -- GPUs -------------------------------------------------------------------


def h200(index: int = 0, recording: int = 1, pid: int | None = 624) -> Gpu:
    """One H200 as recorded under load."""
    raw = _recorded(f"nvml_vllm-load-{recording}")
    gpm = {name.removeprefix("NVML_GPM_METRIC_"): value[1] for name, value in raw["gpm"].items() if value[0] == 0}
    fields = {name.removeprefix("FI:NVML_FI_DEV_"): value[1] for name, value in raw.items() if name.startswith("FI:")}
    process = GpuProcess(pid, "compute", 76_382_470_144, float(raw["ProcUtil"][0]["smUtil"]), None) if pid else None
    return Gpu(
        index=index,
        uuid=f"GPU-5b1c7a{index:02x}-4f2e-9d41-8c55-0a6be1d2c3f4",
        name=raw["Name"],
        architecture="hopper",
        pci_bus_id=f"00000000:{0x1B + 0x10 * index:02X}:00.0",
        util_pct=float(raw["UtilizationRates"]["gpu"]),
        mem_util_pct=float(raw["UtilizationRates"]["memory"]),
        mem_used_bytes=raw["MemoryInfo_v2"]["used"],
        mem_total_bytes=raw["MemoryInfo_v2"]["total"],
        sm_clock_mhz=float(raw["Clock1"]),
        sm_clock_max_mhz=float(raw["MaxClock1"]),
        mem_clock_mhz=float(raw["Clock2"]),
        mem_clock_max_mhz=float(raw["MaxClock2"]),
        mem_bus_width_bits=raw["MemoryBusWidth"],
        power_w=raw["PowerUsage"] / 1000,
        power_limit_w=raw["EnforcedPowerLimit"] / 1000,
        energy_j=raw["TotalEnergyConsumption"] / 1000,
        temp_c=float(raw["Temperature"]),
        temp_mem_c=float(fields["MEMORY_TEMP"]),
        temp_slowdown_c=float(raw["TempThr1"]),
        temp_shutdown_c=float(raw["TempThr0"]),
        throttle=(
            ThrottleReason("idle", False, None, "bit"),
            ThrottleReason("sw_power_cap", False, 0.0, "counter"),
            ThrottleReason("hw_thermal", False, 0.0, "counter"),
            ThrottleReason("hw_power_brake", False, 0.0, "counter"),
        ),
        pcie_tx_bytes_per_s=gpm["PCIE_TX_PER_SEC"] * MIB,
        pcie_rx_bytes_per_s=gpm["PCIE_RX_PER_SEC"] * MIB,
        pcie_gen=raw["CurrPcieLinkGeneration"],
        pcie_gen_max=raw["MaxPcieLinkGeneration"],
        pcie_width=raw["CurrPcieLinkWidth"],
        pcie_width_max=raw["MaxPcieLinkWidth"],
        pcie_replays=raw["PcieReplayCounter"],
        ecc_uncorrected=0,
        ecc_corrected=0,
        remapped_rows=0,
        remap_pending=False,
        remap_failed=False,
        mig_enabled=False,
        gpm=Gpm(
            interval_s=1.0,
            graphics_pct=gpm["GRAPHICS_UTIL"],
            sm_active_pct=gpm["SM_UTIL"],
            sm_occupancy_pct=gpm["SM_OCCUPANCY"],
            tensor_pct=gpm["ANY_TENSOR_UTIL"],
            tensor_hmma_pct=gpm["HMMA_TENSOR_UTIL"],
            tensor_imma_pct=gpm["IMMA_TENSOR_UTIL"],
            tensor_dfma_pct=gpm["DFMA_TENSOR_UTIL"],
            fp32_pct=gpm["FP32_UTIL"],
            fp16_pct=gpm["FP16_UTIL"],
            fp64_pct=gpm["FP64_UTIL"],
            integer_pct=gpm["INTEGER_UTIL"],
            dram_bw_pct=gpm["DRAM_BW_UTIL"],
            pcie_tx_bytes_per_s=gpm["PCIE_TX_PER_SEC"] * MIB,
            pcie_rx_bytes_per_s=gpm["PCIE_RX_PER_SEC"] * MIB,
        ),
        processes=(process,) if process else (),
        missing={
            "fan_pct": "Not Supported",
            "nvlink_tx_bytes_per_s": "Not Supported",
            "nvlink_rx_bytes_per_s": "Not Supported",
            "nvlink_errors": "Not Supported",
        },
    )


def node(gpus: Iterable[Gpu]) -> GpuNode:
    """A node with those GPUs, on the driver of the recording."""
    return GpuNode(tuple(gpus), driver="580.159.04", cuda="13.0")


def troubled(gpu: Gpu) -> Gpu:
    """The same GPU capped, hot, on half its link and with errors."""
    assert gpu.throttle is not None
    capped = tuple(replace(t, active=True, share_pct=62.0) if t.name == "sw_power_cap" else t for t in gpu.throttle)
    return replace(
        gpu,
        util_pct=100.0,
        power_w=698.0,
        temp_c=86.0,
        sm_clock_mhz=1410.0,
        throttle=capped,
        pcie_width=8,
        pcie_replays=14,
        ecc_uncorrected=2,
        remap_pending=True,
        xids=(XidEvent(AT_S - 75, 63),),
        nvlink_tx_bytes_per_s=212.4 * GIB,
        nvlink_rx_bytes_per_s=208.9 * GIB,
        nvlink_errors=0,
        missing={"fan_pct": "Not Supported"},
    )


def with_mig(gpu: Gpu) -> Gpu:
    """The same GPU cut into two MIG slices; the parent has no utilisation of its own."""
    why = "NVML gives no utilisation for a GPU in MIG mode"
    slices = (
        MigInstance(
            1, 0, "MIG-1a", "3g.71gb", 40 * GIB, 70 * GIB, 60, (GpuProcess(624, "compute", 39 * GIB, None, 1),)
        ),
        MigInstance(2, 0, "MIG-2b", "3g.71gb", 0, 70 * GIB, 60),
    )
    return replace(
        gpu,
        mig_enabled=True,
        mig_instances=slices,
        util_pct=None,
        mem_util_pct=None,
        gpm=None,
        missing={**gpu.missing, "util_pct": why, "mem_util_pct": why, "gpm": why},
    )


# -- engine -----------------------------------------------------------------


def exactly(value: float) -> Quantile:
    """A quantile inside a narrow bucket."""
    return Quantile(value * 0.8, value * 1.2, value)


def latencies(scale: float = 1.0) -> dict[str, Latency]:
    """What vLLM 0.24 said under the recorded load: the bucket bounds are coarse for all but TTFT."""
    small = Quantile(0.0, 0.3, None)
    return {
        "ttft": Latency(755, 0.0501 * scale, exactly(0.047 * scale), exactly(0.072 * scale), exactly(0.097 * scale)),
        "itl": Latency(96_640, 0.00274 * scale, *[Quantile(0.0, 0.01, None)] * 3),
        "tpot": Latency(755, 0.00274 * scale, *[Quantile(0.0, 0.01, None)] * 3),
        "queue": Latency(755, 0.000069, small, small, small),
        "prefill": Latency(755, 0.0246 * scale, small, small, small),
        "decode": Latency(755, 0.348 * scale, exactly(0.37), exactly(0.49), exactly(0.50)),
        "e2e": Latency(755, 0.400 * scale, exactly(0.41), exactly(0.495), Quantile(0.5, 1.9, None)),
    }


def live(rank: str | None = None, model: str | None = "/models/llama-1b", share: float = 1.0) -> EngineLive:
    """The recorded load over a window of 10 s; `share` of it for one rank of several."""
    return EngineLive(
        model=model,
        rank=rank,
        window_s=10.0,
        running=32 * share,
        waiting=0.0,
        waiting_by_reason={"capacity": 0.0, "deferred": 0.0},
        kv_usage_pct=0.42,
        requests_per_s=75.5 * share,
        prompt_tokens_per_s=19_800.0 * share,
        prompt_computed_tokens_per_s=10_900.0 * share,
        prompt_cached_tokens_per_s=8_870.0 * share,
        generation_tokens_per_s=9_702.0 * share,
        steps_per_s=332.6,
        tokens_per_step=61.9 * share,
        preemptions_per_s=0.0,
        prefix_hit_pct=44.9,
        prefix_hit_lifetime_pct=43.1,
        finished_per_s={"length": 75.5 * share, "stop": 0.0, "abort": 0.0, "error": 0.0},
        mean_prompt_tokens=256.0,
        mean_generation_tokens=128.0,
        latency=latencies(),
    )


def reading(**changes) -> EngineReading:
    """One scrape of vLLM 0.24; raw series as short as they may be."""
    given = {
        "engine": "vllm",
        "series": (EngineSeries("/models/llama-1b", "0", running=32.0, waiting=0.0),),
        "version": "0.24.0",
        "started_s": STARTED_S,
        "cache_config": {
            "block_size": "16",
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "gpu_memory_utilization": "0.5",
            "num_gpu_blocks": "137333",
            "kv_cache_size_tokens": "2197328",
            "kv_cache_max_concurrency": "536.45703125",
        },
        "missing": {"lora": "the engine was started without --enable-lora"},
    }
    return EngineReading(**{**given, **changes})


def engine(key: str = KEY, url: str = URL, window: EngineWindow | None = None, **scrape) -> EngineFrame:
    """One endpoint, scraped 0.3 s ago."""
    value = scrape.pop("value", reading())
    return EngineFrame(
        key, url, part(value, age_s=scrape.pop("age_s", 0.3), took_s=0.0042, **scrape), window or EngineWindow(live())
    )


# -- targets and host -------------------------------------------------------


def target(key: str = KEY, root: int = 600, core: int = 624, gpus: tuple[int, ...] = (0,), **changes) -> Target:
    """vLLM with one API server and one engine core."""
    processes = (
        TargetProcess(root, 1, "api-server", "vllm serve /models/llama-1b --port 8000", state="S", start_s=STARTED_S),
        TargetProcess(
            core,
            root,
            "engine-core",
            "VLLM::EngineCore",
            gpus=gpus,
            gpus_from="nvml",
            mem_bytes=76_382_470_144,
            nvml_pid=core,
            state="R",
            start_s=STARTED_S + 8,
        ),
    )
    given = {
        "key": key,
        "engine": "vllm",
        "root_pid": root,
        "argv": ("vllm", "serve", "/models/llama-1b", "--port", "8000"),
        "model": "/models/llama-1b",
        "version": "0.24.0",
        "urls": (URL,),
        "urls_from": "argv",
        "processes": processes,
        "api_servers": 1,
        "user": "svc-llm",
        "started_s": STARTED_S,
    }
    return Target(**{**given, **changes})


def host(processes: tuple[ProcessLoad, ...] | None = None) -> Host:
    """A node with 192 cores; the engine core keeps one of them busy."""
    if processes is None:
        processes = (
            ProcessLoad(
                600,
                "api-server",
                "S",
                cpu_pct=31.4,
                rss_bytes=int(1.9 * GIB),
                swap_bytes=0,
                threads=41,
                top_threads=(ThreadLoad(600, "vllm", 29.8),),
                main_thread_pct=29.8,
                ctx_voluntary_per_s=5200.0,
                ctx_involuntary_per_s=14.0,
                io_wait_pct=0.0,
            ),
            ProcessLoad(
                624,
                "engine-core",
                "R",
                cpu_pct=104.2,
                rss_bytes=int(4.6 * GIB),
                swap_bytes=0,
                threads=105,
                top_threads=(
                    ThreadLoad(624, "VLLM::EngineCor", 96.8),
                    ThreadLoad(905, "output-thread", 5.9),
                    ThreadLoad(911, "zmq-io", 1.1),
                ),
                main_thread_pct=96.8,
                ctx_voluntary_per_s=2210.0,
                ctx_involuntary_per_s=61.0,
                io_wait_pct=0.0,
                cgroup=CgroupCpu("/kubepods/pod7", 2, 32.0, 1.36, 0.0, 0.0, 9 * GIB, 64 * GIB, 0.0, 0.0),
            ),
        )
    return Host(
        cores=192,
        cpu_pct=3.1,
        iowait_pct=0.1,
        steal_pct=0.0,
        load_1m=4.72,
        mem_total_bytes=2015 * GIB,
        mem_available_bytes=1873 * GIB,
        swap_used_bytes=0,
        swap_in_bytes_per_s=0.0,
        swap_out_bytes_per_s=0.0,
        processes=processes,
    )
