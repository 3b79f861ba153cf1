"""Frames as a real node gives them, one builder per situation that a screen must show well."""

from __future__ import annotations

import json
from dataclasses import replace

from gputop_llm.model import (
    EngineFrame,
    EngineLive,
    EngineLog,
    EngineReading,
    EngineSeries,
    EngineWindow,
    Frame,
    Gpu,
    GpuNode,
    Host,
    LogSignal,
    LoraState,
    SpecDecode,
    Target,
    TargetList,
    TargetLog,
    TargetProcess,
)
from gputop_llm.model.symptom import Severity, SymptomReport
from tests.support.frame_parts import (  # noqa: F401
    AT_S,
    CAPTURES,
    GIB,
    KEY,
    MIB,
    MONO_S,
    STARTED_S,
    URL,
    engine,
    exactly,
    h200,
    host,
    latencies,
    live,
    node,
    part,
    reading,
    target,
    troubled,
    with_mig,
)
from tests.support.moving_frames import answering, moving  # noqa: F401

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL


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
        "symptoms": SymptomReport(judged=34),
    }
    return Frame(**{**given, **changes})


def one_gpu_loaded() -> Frame:
    """One H200 under vLLM 0.24, as recorded."""
    return frame(node([h200()]), (target(),), (engine(),))


def logged() -> Frame:
    """The same, with what its log says: a start, an exception that came again, a worker that died."""
    signals = (
        LogSignal("loading", NOTE, "Model loading took 2.32 GiB memory and 1.184 seconds", AT_S - 3600),
        LogSignal("memory", NOTE, "Available KV cache memory: 120.41 GiB", AT_S - 3590),
        LogSignal(
            "kv-pool",
            NOTE,
            "GPU KV cache size: 3,945,664 tokens, Maximum concurrency for 8,192 tokens per request: 481.65x",
            AT_S - 3589,
        ),
        LogSignal("exception", WARNING, "ValueError: bad [bold]mask[/]", AT_S - 70, "line", "serving.py:12 in chat", 3),
        LogSignal("died", CRITICAL, "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)", AT_S - 4, "read"),
    )
    log = EngineLog(("/var/log/vllm.log",), signals=signals, unread_bytes=3 << 20)
    return replace(one_gpu_loaded(), logs=(TargetLog(KEY, part(log)),))


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


def rank_unread() -> Frame:
    """As `eight_gpus`; the page of one of the two ranks refuses."""
    whole = eight_gpus()
    first, second = whole.engines
    pages = ("http://127.0.0.1:8000", "http://127.0.0.1:8001")
    why = f"cannot read {pages[1]}/metrics: nothing listens there (connection refused); is the engine up?"
    value = replace(first.scrape.value, series=first.scrape.value.series[:1], unread={pages[1]: why})
    unknown = EngineLive(None, None, missing=dict.fromkeys(("running", "generation_tokens_per_s"), "not all read"))
    window = EngineWindow(unknown, ranks=first.window.ranks[:1])
    found = whole.targets.value
    targets = (replace(found.targets[0], urls=pages), *found.targets[1:])
    return replace(
        whole,
        targets=part(replace(found, targets=targets)),
        engines=(replace(first, url=pages[0], scrape=part(value), window=window), second),
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
