"""Frames as a real node would give them: GPU values recorded on an H200 under vLLM 0.24, the rest consistent with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from math import inf, sin
from pathlib import Path

from gputop_llm.model import (
    CgroupCpu,
    EngineFrame,
    EngineLive,
    EngineReading,
    EngineSeries,
    EngineWindow,
    Frame,
    Gpm,
    Gpu,
    GpuNode,
    GpuProcess,
    Host,
    Latency,
    LoraState,
    MigInstance,
    Part,
    ProcessLoad,
    Quantile,
    SpecDecode,
    Target,
    TargetList,
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
                cgroup=CgroupCpu("/kubepods/pod7", 2, 32.0, 1.36, 0.0, 0.0, 9 * GIB, 64 * GIB),
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


# -- frames -----------------------------------------------------------------


def frame(gpus: GpuNode | None, targets: tuple[Target, ...] = (), engines: tuple[EngineFrame, ...] = (), **changes):
    """A frame of these parts, in focus the first target unless told otherwise."""
    given = {
        "seq": 12,
        "at_s": AT_S,
        "mono_s": MONO_S,
        "period_s": 1.0,
        "gpus": part(gpus),
        "host": part(host()),
        "targets": part(TargetList(targets), age_s=1.1),
        "engines": engines,
        "focus": targets[0].key if targets else None,
    }
    return Frame(**{**given, **changes})


def one_gpu_loaded() -> Frame:
    """One H200 under vLLM 0.24, as recorded."""
    return frame(node([h200()]), (target(),), (engine(),))


def tp2() -> Frame:
    """Two GPUs of one engine: tensor parallel, a worker each."""
    workers = tuple(
        TargetProcess(
            640 + rank,
            624,
            "worker",
            f"VLLM::Worker_TP{rank}",
            rank=f"TP{rank}",
            gpus=(rank,),
            gpus_from="inferred",
            mem_bytes=None,
            nvml_pid=None,
            state="R",
            start_s=STARTED_S + 9,
            note="NVML names a process of the host that can't be seen from this PID namespace",
        )
        for rank in range(2)
    )
    base = target()
    core = replace(base.processes[1], gpus=(), gpus_from=None, mem_bytes=None, nvml_pid=None)
    both = replace(base, processes=(base.processes[0], core, *workers), container="docker 3f1c9a77b2d0")
    return frame(node([h200(0), h200(1, 2, 641)]), (both,), (engine(),))


def eight_gpus() -> Frame:
    """Eight GPUs, two engines of four; the one in focus has two DP ranks; one GPU is in trouble."""
    gpus = [h200(i, 1 + i % 3, 700 + i) for i in range(8)]
    gpus[5] = troubled(gpus[5])
    cores = tuple(
        TargetProcess(
            700 + rank,
            600,
            "engine-core",
            f"VLLM::EngineCore_DP{rank}",
            rank=f"DP{rank}",
            gpus=(2 * rank, 2 * rank + 1),
            gpus_from="nvml",
            mem_bytes=76_382_470_144,
            nvml_pid=700 + rank,
            state="R",
            start_s=STARTED_S,
        )
        for rank in range(2)
    )
    first = replace(target(gpus=()), processes=(target().processes[0], *cores))
    second = replace(
        target(
            "2600@1795960000",
            2600,
            2624,
            (4, 5, 6, 7),
            model="Qwen/Qwen3-32B",
            urls=("http://127.0.0.1:8001/metrics",),
            argv=("vllm", "serve", "Qwen/Qwen3-32B", "--port", "8001"),
        )
    )
    ranks = (replace(live("0", share=0.5), running=25.0), replace(live("1", share=0.5), running=7.0, waiting=3.0))
    busy = EngineWindow(
        replace(live(), waiting=3.0, waiting_by_reason={"capacity": 3.0, "deferred": 0.0}, latency=latencies(2.2)),
        ranks=ranks,
    )
    series = tuple(EngineSeries("/models/llama-1b", str(r), running=16.0, waiting=0.0) for r in range(2))
    return frame(
        node(gpus),
        (first, second),
        (
            engine(window=busy, value=reading(series=series)),
            engine(second.key, second.urls[0], EngineWindow(live(None, "Qwen/Qwen3-32B", 0.3))),
        ),
    )


def gpu_without_engine() -> Frame:
    """One GPU with a process that is no engine."""
    other = Target(
        "900@1",
        "cuda",
        900,
        ("python", "train.py", "--lr", "3e-4"),
        processes=(
            TargetProcess(
                900, 1, "other", "python train.py --lr 3e-4", gpus=(0,), gpus_from="nvml", mem_bytes=8 * GIB, state="R"
            ),
        ),
        user="alice",
        started_s=AT_S - 90_000,
    )
    return frame(node([h200(pid=900)]), (other,), (), focus=None, host=part(host(())))


def no_gpu() -> Frame:
    """An engine on a node whose driver can't be read."""
    problem = (
        "NVML can't be used: the driver's library (580.159) and its kernel module (570.86) differ; reboot the node"
    )
    lonely = replace(target(gpus=()), processes=(target().processes[0],))
    return frame(GpuNode(problem=problem), (lonely,), (engine(),))


def nothing_known() -> Frame:
    """Everything was asked and nothing could be learned."""
    gpu = Gpu(0, missing={"util_pct": "Not Supported", "gpm": "GPM needs Hopper or newer"})
    blank = EngineWindow(EngineLive(None, None, missing={"itl": "the page has no inter-token latency histogram"}))
    bare = Target(KEY, "vllm", urls=(URL,), urls_from="flag")
    return frame(
        GpuNode((gpu,)),
        (bare,),
        (engine(window=blank, value=EngineReading("vllm")),),
        host=part(Host(missing={"cpu_pct": "/proc/stat can't be read: permission denied"})),
    )


def unreachable() -> Frame:
    """The engine stopped answering 42 s ago; the last good values are kept."""
    stale = engine(
        age_s=42.3,
        error="cannot read http://127.0.0.1:8000/metrics: no answer within 2 s; the process is alive, it may be stuck",
        period_s=5.0,
    )
    return frame(node([h200()]), (target(),), (stale,))


def everything_on() -> Frame:
    """Spec decode, LoRA, two models, skipped lines, doubtful and missing values: what the engine screen must hold."""
    spec = SpecDecode(61.4, 2.84, 310.2, (82.0, 60.1, 41.9))
    total = replace(
        live(model=None),
        spec=spec,
        latency={},
        doubtful=("steps_per_s", "tokens_per_step"),
        missing={"ttft": "there are several models on the page", "mean_prompt_tokens": "no such histogram"},
        restarted=True,
    )
    models = (replace(live(model="base"), spec=spec), live(model="sql-lora", share=0.1))
    value = reading(
        lora=LoraState(("sql-lora", "chat-lora"), ("code-lora",), 4),
        notes=("two API servers: step counts are wrong in this version of vLLM",),
        missing={"mean_prompt_tokens": "no such histogram"},
        skipped_lines=3,
        first_skipped='vllm:broken{x="1" 12',
        sleeping="awake",
    )
    return frame(node([h200()]), (target(),), (engine(window=EngineWindow(total, models), value=value),))


def markup_names() -> tuple[str, ...]:
    """The names of field case 14."""
    return tuple(json.loads((CAPTURES / "field-cases" / "14-markup-in-names" / "names.json").read_text()))


def markup_in_names() -> Frame:
    """Field case 14: eight models and a process whose names look like markup."""
    names = markup_names()
    process = json.loads((CAPTURES / "field-cases" / "14-markup-in-names" / "procs.json").read_text())[0]
    title = " ".join(process["cmdline"])
    models = tuple(replace(live(model=name), running=float(at + 1)) for at, name in enumerate(names))
    targets = tuple(
        replace(
            target(f"{510 + at}@1", 510 + at),
            argv=tuple(process["cmdline"]),
            model=name,
            user=name[:8],
            processes=(TargetProcess(510 + at, 1, "api-server", f"{title} {name}", state="S"),),
            notes=(f"note on {name}",),
        )
        for at, name in enumerate(names)
    )
    window = EngineWindow(replace(live(model=None), latency={}), models)
    error = f"cannot read {URL}: the model {names[4]} is not there"
    return frame(
        node([h200(pid=510)]),
        targets,
        (engine("510@1", window=window, error=error, value=reading(notes=tuple(f"seen {n}" for n in names))),),
        notes=(f"attached to vllm {names[0]} (pid 510)",),
    )


def several_candidates() -> Frame:
    """Two engines and nothing in focus yet."""
    return replace(eight_gpus(), focus=None)


def histogram_bounds() -> tuple[float, ...]:
    """vLLM's TTFT buckets."""
    return (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, inf)


# -- movement ---------------------------------------------------------------


def moving(base: Frame, seconds: int, start: int = 0) -> Iterator[Frame]:
    """`seconds` frames, one a second, whose load goes up and down; the last one ends at `base`'s time."""
    for at in range(start, seconds):
        swing = 1.0 + 0.45 * sin(at / 9.0) + 0.15 * sin(at / 2.3)
        back = seconds - 1 - at
        yield replace(
            base,
            seq=base.seq + at,
            at_s=base.at_s - back,
            mono_s=base.mono_s - back,
            gpus=replace(base.gpus, value=_scaled_node(base.gpus.value, swing)),
            engines=tuple(_scaled_engine(e, swing) for e in base.engines),
            host=replace(base.host, value=_scaled_host(base.host.value, swing)),
        )


def _times(value, factor: float, top: float | None = None):
    if value is None:
        return None
    return value * factor if top is None else min(top, value * factor)


def _scaled_node(nodes: GpuNode | None, swing: float) -> GpuNode | None:
    if nodes is None:
        return None
    gpus = []
    for gpu in nodes.gpus:
        by = swing + 0.05 * gpu.index
        gpm = gpu.gpm
        if gpm is not None:
            scaled = {
                name: _times(getattr(gpm, name), by, 100.0)
                for name in ("sm_active_pct", "tensor_pct", "dram_bw_pct", "sm_occupancy_pct")
            }
            gpm = replace(gpm, **scaled)
        gpus.append(
            replace(
                gpu,
                util_pct=_times(gpu.util_pct, by, 100.0),
                power_w=_times(gpu.power_w, 0.6 + 0.4 * by),
                pcie_rx_bytes_per_s=_times(gpu.pcie_rx_bytes_per_s, by),
                pcie_tx_bytes_per_s=_times(gpu.pcie_tx_bytes_per_s, by),
                gpm=gpm,
            )
        )
    return replace(nodes, gpus=tuple(gpus))


def _scaled_engine(one: EngineFrame, swing: float) -> EngineFrame:
    if one.window is None:
        return one

    def scaled(it: EngineLive) -> EngineLive:
        names = (
            "requests_per_s",
            "prompt_computed_tokens_per_s",
            "prompt_cached_tokens_per_s",
            "generation_tokens_per_s",
            "steps_per_s",
            "kv_usage_pct",
        )
        changes = {name: _times(getattr(it, name), swing) for name in names}
        ttft = it.latency.get("ttft")
        latency = dict(it.latency)
        if ttft is not None:
            mean = _times(ttft.mean_s, swing)
            latency["ttft"] = Latency(
                round(ttft.count * swing),
                mean,
                *(exactly(q.value * swing) for q in (ttft.p50, ttft.p95, ttft.p99) if q and q.value),
            )
        running = None if it.running is None else float(round(it.running * swing))
        return replace(it, **changes, running=running, latency=latency)

    window = one.window
    return replace(
        one,
        window=EngineWindow(
            scaled(window.total), tuple(scaled(m) for m in window.models), tuple(scaled(r) for r in window.ranks)
        ),
    )


def _scaled_host(value: Host | None, swing: float) -> Host | None:
    if value is None:
        return None
    processes = tuple(
        replace(p, main_thread_pct=_times(p.main_thread_pct, swing, 100.0), cpu_pct=_times(p.cpu_pct, swing))
        for p in value.processes
    )
    return replace(
        value, cpu_pct=_times(value.cpu_pct, swing), load_1m=_times(value.load_1m, swing), processes=processes
    )
