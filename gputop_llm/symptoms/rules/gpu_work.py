"""gpu-busy-not-working and gpu-starved: what utilisation hides, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from gputop_llm.model.symptom import Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import CUDA_GRAPHS, FEWER_GPUS_A_COPY, LARGER_BATCHES, MORE_FRONT_ENDS, OVERLAP
from gputop_llm.symptoms.argv import has_flag
from gputop_llm.symptoms.checks import Check, State, all_in_turn, all_of, any_of, at_least, judged, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_number, limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import groups, of_rank_on, requests_run, running_needs, unplaced
from gputop_llm.symptoms.threads import computing, hottest
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView
from gputop_llm.units import number, pct

MIG = "MIG: utilisation isn't defined for the parent GPU"


def busy_not_working(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Utilisation near 100 % while few SMs work; without GPM: while power and memory traffic are low."""
    rule = "gpu-busy-not-working"
    yield from unplaced(view, rule)
    for index, engines in view.users.items():
        gpu = view.gpus[index]
        if gpu.now.mig_enabled:
            yield Check(rule, gpu.subject, State.UNKNOWN, MIG)
            continue
        busy = at_least(gpu.mean("util_pct"), limits, f"{rule}.util_pct")
        if gpu.mean("gpm.sm_active_pct") is not None:
            idle = under(gpu.mean("gpm.sm_active_pct"), limits, f"{rule}.sm_active_pct")
        else:
            idle = all_of(
                under(gpu.mean("power_pct"), limits, f"{rule}.power_pct"),
                under(gpu.mean("mem_util_pct"), limits, f"{rule}.mem_util_pct"),
            )
        make = partial(_busy_symptom, gpu, engines[0], limits)
        yield judged(rule, gpu.subject, all_of(busy, idle), partial(_busy_needs, gpu), make)


def _busy_needs(gpu: GpuView) -> str:
    if gpu.mean("util_pct") is None:
        return f"utilisation ({gpu.missing('util_pct')})"
    gpm = f"GPM counters ({gpu.missing('gpm.sm_active_pct')})"
    if gpu.mean("power_pct") is None:
        return f"{gpm}, or power and its limit ({_power_missing(gpu)})"
    return f"{gpm}, or memory utilisation ({gpu.missing('mem_util_pct')})"


def _power_missing(gpu: GpuView) -> str:
    return gpu.missing("power_w" if gpu.now.power_w is None else "power_limit_w")


def _busy_symptom(gpu: GpuView, engine: EngineView, limits: Limits) -> Symptom:
    rule = "gpu-busy-not-working"
    util, sm, occupancy = gpu.mean("util_pct"), gpu.mean("gpm.sm_active_pct"), gpu.mean("gpm.sm_occupancy_pct")
    power, memory, dram = gpu.mean("power_pct"), gpu.mean("mem_util_pct"), gpu.mean("gpm.dram_bw_pct")
    if sm is not None:
        headline = f"{gpu.subject.label} reads {pct(util)} busy, but its SMs work only {pct(sm)} of the time"
    else:
        headline = f"{gpu.subject.label} reads {pct(util)} busy at {pct(power)} of its power limit"
        headline += f", memory {pct(memory)} busy"
    signals = [
        None if value is None else under(value, limits, f"{rule}.{name}") is State.RAISED
        for value, name in (
            (sm, "sm_active_pct"),
            (occupancy, "occupancy_pct"),
            (power, "power_pct"),
            (memory, "mem_util_pct"),
        )
    ]
    if power is None:
        power_evidence = Evidence(
            f"{gpu.subject.label} power", None, "%", "NVML, of the enforced limit", 10.0, missing=_power_missing(gpu)
        )
    else:
        power_evidence = gpu_number(
            gpu, "power_pct", "power", "%", "NVML, of the enforced limit", **limit(limits, f"{rule}.power_pct")
        )
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            gpu_number(gpu, "util_pct", "utilisation", "%", "NVML", **limit(limits, f"{rule}.util_pct")),
            gpu_number(gpu, "gpm.sm_active_pct", "SM active", "%", "GPM", **limit(limits, f"{rule}.sm_active_pct")),
            gpu_number(gpu, "gpm.sm_occupancy_pct", "SM occupancy", "%", "GPM"),
            gpu_number(gpu, "gpm.tensor_pct", "tensor pipe", "%", "GPM"),
            gpu_number(gpu, "gpm.dram_bw_pct", "DRAM bandwidth", "%", "GPM"),
            power_evidence,
            gpu_number(gpu, "mem_util_pct", "memory utilisation", "%", "NVML", **limit(limits, f"{rule}.mem_util_pct")),
        ),
        causes=_busy_causes(gpu, engine, occupancy, dram, limits),
        advice=(CUDA_GRAPHS, LARGER_BATCHES, FEWER_GPUS_A_COPY),
        refuted_by=f"SM active over {limits.clear(f'{rule}.sm_active_pct'):.0f} % while the same requests run",
        next_capture="nsys",
        agreeing=sum(bool(s) for s in signals),
        signals=sum(s is not None for s in signals),
        chart=f"gpu.{gpu.index}.{'util_pct' if sm is None else 'sm_active_pct'}",
        chart_threshold=limits.value(f"{rule}.{'util_pct' if sm is None else 'sm_active_pct'}"),
    )


def _busy_causes(
    gpu: GpuView, engine: EngineView, occupancy: float | None, dram: float | None, limits: Limits
) -> tuple[Cause, ...]:
    rule = "gpu-busy-not-working"
    hot = hottest(computing(engine))
    running = engine.mean("running")
    peers = next((group for group in groups(engine) if gpu in group), (gpu,))
    others = [other for other in peers if other is not gpu]
    others_busy = bool(others) and all(
        at_least(other.mean("util_pct"), limits, f"{rule}.util_pct") is State.RAISED for other in others
    )
    host_bound = hot is not None and hot.cpu_pct >= limits.value("host-bound.thread_pct")
    return ranked(
        Cause(
            "small kernels: the GPU waits between them for the host to launch the next",
            when(
                has_flag(engine, "--enforce-eager", "--disable-cuda-graph"), "started without CUDA graphs (eager mode)"
            )
            + when(host_bound, f"{hot.label} takes {hot.cpu_pct:.0f} % of a core" if hot else ""),
            when(
                hot is not None and hot.cpu_pct < limits.clear("host-bound.thread_pct"),
                f"the busiest thread takes {hot.cpu_pct:.0f} % of a core: the host keeps up" if hot else "",
            ),
        ),
        Cause(
            "latency-bound kernels: too little work in each to fill the SMs",
            when(
                occupancy is not None and occupancy < limits.value(f"{rule}.occupancy_pct"),
                f"SM occupancy {pct(occupancy, 1)}",
            )
            + when(
                running is not None and running < limits.value(f"{rule}.batch"),
                f"{number(running)} sequences running",
            ),
            when(
                dram is not None and dram >= limits.clear("bandwidth-bound.dram_bw_pct"),
                f"DRAM bandwidth at {pct(dram)}: memory works hard",
            )
            + when(
                running is not None and running >= limits.value(f"{rule}.batch"),
                f"{number(running)} sequences running",
            ),
        ),
        Cause(
            "NCCL spin-wait: the kernel that runs waits for another GPU",
            when(others_busy, f"all {len(peers)} GPUs that work together read busy"),
            when(not others, "no other GPU takes part in its steps"),
        ),
    )


def starved(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Requests run, and the GPU has nothing to do for much of the time."""
    rule = "gpu-starved"
    yield from unplaced(view, rule)
    for index, engines in view.users.items():
        gpu = view.gpus[index]
        if gpu.now.mig_enabled:
            yield Check(rule, gpu.subject, State.UNKNOWN, MIG)
            continue
        util = gpu.mean("util_pct")
        needs = f"utilisation ({gpu.missing('util_pct')})" if util is None else running_needs(engines[0], limits)
        state = all_in_turn(
            partial(under, util, limits, f"{rule}.util_pct"),
            partial(_running, engines, gpu, limits),
        )
        yield judged(rule, gpu.subject, state, needs, partial(_starved_symptom, view, gpu, engines[0], limits))


def _running(engines: Sequence[EngineView], gpu: GpuView, limits: Limits) -> State:
    """Whether requests run on a GPU all the time, of any engine; unknown if that would decide it."""
    return any_of(*(requests_run(engine, limits, "gpu-starved", gpu) for engine in engines))


def _starved_symptom(view: NodeView, gpu: GpuView, engine: EngineView, limits: Limits) -> Symptom:
    rule = "gpu-starved"
    util, running, waiting = gpu.mean("util_pct"), *(of_rank_on(engine, gpu, name) for name in ("running", "waiting"))
    hot = hottest(computing(engine))
    busy_thread = hot is not None and hot.cpu_pct >= limits.value("host-bound.thread_pct")
    headline = f"{gpu.subject.label} is busy only {pct(util)} of the time with {number(running)} requests running"
    if busy_thread and hot:
        headline += f"; a thread at {hot.cpu_pct:.0f} % CPU"
    source = f"{engine.kind} /metrics"
    # Of one of several ranks it is the newest scrape's.
    window_s = 10.0 if len(engine.ranks) <= 1 else None
    return Symptom(
        id=rule,
        subject=gpu.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            gpu_number(gpu, "util_pct", "utilisation", "%", "NVML", **limit(limits, f"{rule}.util_pct")),
            *(
                Evidence(name, value, "", source, window_s, missing="not on the page" if value is None else None)
                for name, value in (("running", running), ("waiting", waiting))
            ),
            Evidence(
                f"busiest thread ({hot.label})" if hot else "busiest thread",
                hot.cpu_pct if hot else None,
                "%",
                "/proc, of one core",
                10.0,
                threshold=limits.value("host-bound.thread_pct"),
                threshold_origin=limits.origin("host-bound.thread_pct"),
                missing=None if hot else "the CPU use of the engine's processes isn't read",
            ),
        ),
        causes=_starved_causes(view, engine, limits),
        advice=(OVERLAP, CUDA_GRAPHS, MORE_FRONT_ENDS),
        refuted_by=f"utilisation over {limits.clear(f'{rule}.util_pct'):.0f} % with the same number running",
        next_capture="kineto",
        agreeing=1 + busy_thread + bool(waiting),
        signals=3,
        chart=f"gpu.{gpu.index}.util_pct",
        chart_threshold=limits.value(f"{rule}.util_pct"),
    )


def _starved_causes(view: NodeView, engine: EngineView, limits: Limits) -> tuple[Cause, ...]:
    hot = hottest(computing(engine))
    text = f"{hot.label} takes {hot.cpu_pct:.0f} % of a core" if hot else ""
    busy = hot is not None and hot.cpu_pct >= limits.value("host-bound.thread_pct")
    relaxed = hot is not None and hot.cpu_pct < limits.clear("host-bound.thread_pct")
    host = view.host
    iowait = host.iowait_pct if host else None
    waits = iowait is not None and iowait > limits.value("gpu-starved.iowait_pct")
    swaps = bool(host and host.swap_in_bytes_per_s)
    return ranked(
        Cause("the host is the limit: Python, scheduler or tokeniser", when(busy, text), when(relaxed, text)),
        Cause(
            "each step waits for the one before: results are copied back before the next is scheduled",
            when(has_flag(engine, "--disable-overlap-schedule", "--no-async-scheduling"), "started without overlap")
            + when(relaxed, f"no thread is busy all the time ({text})"),
            when(has_flag(engine, "--async-scheduling"), "started with --async-scheduling") + when(busy, text),
        ),
        Cause(
            "the host waits for a disk, or for memory that was swapped out",
            when(waits, f"{pct(iowait, 1)} of CPU time waits for I/O") + when(swaps, "pages are being swapped in"),
            when(iowait is not None and not waits and not swaps, f"{pct(iowait, 1)} of CPU time waits for I/O"),
        ),
    )


RULES = (
    Rule("gpu-busy-not-working", "the GPU reads busy, but little of it works", busy_not_working),
    Rule("gpu-starved", "requests run, and the GPU waits for work", starved),
)
