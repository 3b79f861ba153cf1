"""host-bound: a thread of the engine fills its core, and the GPUs wait for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.advice import CUDA_GRAPHS, MORE_FRONT_ENDS, OVERLAP
from gputop_llm.symptoms.argv import has_flag
from gputop_llm.symptoms.checks import Check, State, all_in_turn, any_of, at_least, judged, under
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import gpu_names, limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import requests_run, running_needs
from gputop_llm.symptoms.rules.cpu import CPU_NOT_READ, quota_evidence, throttled_pct
from gputop_llm.symptoms.threads import HotThread, computing, hottest, serving
from gputop_llm.symptoms.view import EngineView, GpuView, LoadView, NodeView, mean_of
from gputop_llm.units import number, pct


class _Suspect(NamedTuple):
    """One process with the GPUs that it feeds. `sm_active_pct` may be their utilisation, which is never less."""

    hot: HotThread
    gpus: tuple[GpuView, ...]
    sm_active_pct: float | None
    exact: bool
    state: State


def host_bound(view: NodeView, limits: Limits) -> Iterator[Check]:
    """A thread of an engine core or worker fills its core while the GPUs that it feeds are not."""
    rule = "host-bound"
    for engine in view.engines:
        suspects = [s for process in computing(engine) if (s := _suspect(engine, process, limits)) is not None]
        if not suspects:
            yield Check(rule, engine.subject, State.UNKNOWN, CPU_NOT_READ)
            continue
        state = any_of(*(s.state for s in suspects))
        worst = max(suspects, key=lambda s: (s.state is State.RAISED, s.hot.cpu_pct))
        make = partial(_host_symptom, engine, worst, limits)
        yield judged(rule, engine.subject, state, partial(_host_needs, engine, worst, limits), make)


def _suspect(engine: EngineView, process: LoadView, limits: Limits) -> _Suspect | None:
    hot = hottest((process,))
    if hot is None:
        return None
    full = at_least(hot.cpu_pct, limits, "host-bound.thread_pct")
    if full is State.CLEAR:
        return _Suspect(hot, engine.gpus, None, True, full)
    mine = next((p.gpus for p in (engine.target.processes if engine.target else ()) if p.pid == process.now.pid), ())
    gpus = tuple(gpu for gpu in engine.gpus if gpu.index in mine) or engine.gpus
    sm, exact = _sm_active_pct(gpus)
    state = all_in_turn(
        lambda: full,
        partial(_idle, sm, exact, limits),
        partial(_running, engine, gpus, limits),
        partial(_waited_for, engine, gpus, limits),
    )
    return _Suspect(hot, gpus, sm, exact, state)


def _sm_active_pct(gpus: Sequence[GpuView]) -> tuple[float | None, bool]:
    """The mean over the GPUs and whether it is exact: without GPM it is utilisation, which SM active never exceeds."""
    sm = [gpu.mean("gpm.sm_active_pct") for gpu in gpus]
    exact = None not in sm
    if not exact:
        sm = [None if gpu.now.mig_enabled else gpu.mean("util_pct") for gpu in gpus]
    known = [value for value in sm if value is not None]
    return (mean_of(known) if len(known) == len(sm) else None), exact


def _idle(sm_active_pct: float | None, exact: bool, limits: Limits) -> State:
    state = under(sm_active_pct, limits, "host-bound.sm_active_pct")
    # An upper bound can prove that little works, not that much does.
    return state if exact or state is State.RAISED else State.UNKNOWN


def _running(engine: EngineView, gpus: Sequence[GpuView], limits: Limits) -> State:
    return requests_run(engine, limits, "host-bound", gpus[0] if gpus else None)


def _waited_for(engine: EngineView, gpus: Sequence[GpuView], limits: Limits) -> State:
    """Whether a busy thread says anything: engine cores and workers in processes of their own spin while they wait.

    Then a GPU that is never without a kernel isn't waiting for them (vLLM: shm_broadcast yields in a loop).
    """
    if not any(load.now.role == "worker" for load in engine.loads):
        return State.RAISED
    utils = [None if gpu.now.mig_enabled else gpu.mean("util_pct") for gpu in gpus]
    known = [util for util in utils if util is not None]
    return under(mean_of(known) if len(known) == len(utils) else None, limits, "host-bound.spinning_util_pct")


def _host_needs(engine: EngineView, worst: _Suspect, limits: Limits) -> str:
    if not worst.gpus:
        return "which GPUs the engine uses"
    if not worst.exact:
        gpu = worst.gpus[0]
        if gpu.now.mig_enabled:
            return "MIG: neither GPM counters nor utilisation are those of the instance"
        return f"GPM counters ({gpu.missing('gpm.sm_active_pct')})"
    return running_needs(engine, limits)


def _host_symptom(engine: EngineView, worst: _Suspect, limits: Limits) -> Symptom:
    hot, process = worst.hot, worst.hot.process
    of = "SM active" if worst.exact else "utilisation"
    names = gpu_names(worst.gpus)
    return Symptom(
        id="host-bound",
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=f"{hot.label}: {pct(hot.cpu_pct)} of a core, {of} {pct(worst.sm_active_pct)} on {names}",
        evidence=(
            *_thread_evidence(engine, limits),
            Evidence(
                f"{names} {of}",
                worst.sm_active_pct,
                "%",
                "GPM" if worst.exact else "NVML (SM active can't be more)",
                10.0,
                **limit(limits, "host-bound.sm_active_pct"),
            ),
            _rate(process, "ctx_voluntary_per_s", "voluntary context switches"),
            _rate(process, "ctx_involuntary_per_s", "involuntary context switches"),
            quota_evidence(process, limits),
            Evidence("top Python frame", None, "", "py-spy", missing="not sampled; the capture shows it"),
        ),
        causes=_host_causes(engine, worst, limits),
        advice=(
            OVERLAP,
            CUDA_GRAPHS,
            MORE_FRONT_ENDS,
            Advice(
                "log less",
                {
                    "vllm": "no --enable-log-requests; --disable-uvicorn-access-log",
                    "sglang": "no --log-requests",
                },
            ),
        ),
        refuted_by="SM active rises over the threshold although the thread stays as busy: it only spins while it waits",
        next_capture="py-spy",
        agreeing=2,
        signals=2,
        chart=f"target.{engine.frame.target_key}.engine_core_pct" if process.now.role == "engine-core" else None,
        chart_threshold=limits.value("host-bound.thread_pct"),
    )


def _thread_evidence(engine: EngineView, limits: Limits) -> list[Evidence]:
    """The busiest thread of each process."""
    found = []
    for process in engine.loads:
        hot = hottest((process,))
        name = hot.label if hot else f"{process.now.role} {process.now.pid}"
        compared = limit(limits, "host-bound.thread_pct") if process in computing(engine) else {}
        why = process.now.missing.get("main_thread_pct", "not read")
        found.append(
            Evidence(
                name,
                hot.cpu_pct if hot else None,
                "%",
                "/proc, of one core",
                10.0,
                missing=None if hot else why,
                **compared,
            )
        )
    return found


def _rate(process: LoadView, name: str, label: str) -> Evidence:
    value = process.mean(lambda load: getattr(load, name))
    missing = None if value is not None else process.now.missing.get(name, "not read")
    return Evidence(label, value, "/s", "/proc, main thread", 10.0, missing=missing)


def _host_causes(engine: EngineView, worst: _Suspect, limits: Limits) -> tuple[Cause, ...]:
    process = worst.hot.process
    cpu = process.mean(lambda load: load.cpu_pct)
    one_thread = cpu is not None and cpu < limits.value("host-bound.process_pct")
    text = f"the process takes {pct(cpu)} of a core in {number(process.now.threads)} threads"
    eager = has_flag(engine, "--enforce-eager", "--disable-cuda-graph")
    logs = has_flag(engine, "--enable-log-requests", "--log-requests")
    front = hottest(serving(engine))
    front_text = f"{front.label} takes {pct(front.cpu_pct)} of a core" if front else ""
    throttled, group = throttled_pct(process), process.now.cgroup
    quota = f"quota of {number(group.quota_cpus)} CPUs, {pct(throttled)} of its periods throttled" if group else ""
    limited = throttled is not None and throttled > limits.value("cpu-throttled.throttled_pct")
    return ranked(
        Cause(
            "the GIL: one Python thread does all the work",
            when(one_thread, text),
            when(cpu is not None and not one_thread, text),
        ),
        Cause(
            "eager mode: each kernel is launched from Python",
            when(eager, "started without CUDA graphs"),
            when(eager is False, "not started in eager mode"),
        ),
        Cause(
            "logging of each request",
            when(logs, "requests are logged"),
            when(logs is False, "no flag asks for logs of requests"),
        ),
        Cause(
            "tokenising in the process that serves HTTP",
            when(front is not None and front.cpu_pct >= limits.value("host-bound.thread_pct"), front_text),
            when(front is not None and front.cpu_pct < limits.clear("host-bound.thread_pct"), front_text),
        ),
        Cause(
            "the container's CPU limit",
            when(limited, quota),
            when(group is not None and group.quota_cpus is None, "no CPU quota")
            + when(throttled is not None and not limited, quota),
        ),
    )


RULES = (Rule("host-bound", "the CPU side of the engine is the limit", host_bound),)
