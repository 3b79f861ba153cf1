"""cpu-throttled: the engine does not get the CPU time that it wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Symptom
from gputop_llm.symptoms.checks import Check, State, any_of, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.view import EngineView, LoadView, NodeView, mean_of
from gputop_llm.units import number, pct

CPU_NOT_READ = "the CPU use of the engine's processes (they are on another host, or aren't watched)"


def quota_evidence(process: LoadView, limits: Limits) -> Evidence:
    """How much a process's CPU quota stops it."""
    value = throttled_pct(process)
    text = None
    if value is None and process.now.cgroup is not None and process.now.cgroup.quota_cpus is None:
        text = "no CPU quota"
    missing = None if value is not None or text else process.now.missing.get("cgroup", "needs two polls")
    return Evidence(
        "quota periods throttled",
        value,
        "%",
        "cgroup cpu.stat",
        10.0,
        text,
        missing=missing,
        **limit(limits, "cpu-throttled.throttled_pct"),
    )


def throttled_pct(process: LoadView) -> float | None:
    """The share of the quota's periods that were throttled, in percent; None without a quota."""
    return process.mean(lambda load: load.cgroup.throttled_pct if load.cgroup else None)


def cpu_throttled(view: NodeView, limits: Limits) -> Iterator[Check]:
    """The engine's CPU quota stops it, its main threads queue for a CPU, or other virtual machines take its cores."""
    rule = "cpu-throttled"
    steals = [host.steal_pct for host in view.hosts if host.steal_pct is not None]
    steal = mean_of(steals) if view.host is not None and view.host.steal_pct is not None else None
    for engine in view.engines:
        if not engine.loads:
            yield Check(rule, engine.subject, State.UNKNOWN, CPU_NOT_READ)
            continue
        quotas = [_quota_state(load, limits) for load in engine.loads]
        waits = [
            over(wait, limits, f"{rule}.run_wait_pct") for wait in map(run_wait_pct, engine.loads) if wait is not None
        ]
        state = any_of(*quotas, over(steal, limits, f"{rule}.steal_pct"), *waits)
        make = partial(_throttled_symptom, engine, steal, limits)
        yield judged(rule, engine.subject, state, partial(_needs, engine, quotas), make)


def _needs(engine: EngineView, quotas: Sequence[State]) -> str:
    if State.UNKNOWN not in quotas:
        return "CPU steal of the host (needs two polls)"
    unknown = engine.loads[quotas.index(State.UNKNOWN)]
    return f"CPU quota and throttling ({unknown.now.missing.get('cgroup', 'needs two polls')})"


def run_wait_pct(process: LoadView) -> float | None:
    """The share of the time in which a process's main thread waited for a CPU; None where the kernel doesn't tell."""
    return process.mean(lambda load: load.run_wait_pct)


def _quota_state(load: LoadView, limits: Limits) -> State:
    if load.now.cgroup is not None and load.now.cgroup.quota_cpus is None:
        return State.CLEAR
    return over(throttled_pct(load), limits, "cpu-throttled.throttled_pct")


def _of_quota(name: str, value: float | None, unit: str, **more: Any) -> Evidence:
    missing = None if value is not None else "no CPU quota"
    return Evidence(name, value, unit, "cgroup", 10.0, missing=missing, **more)


def _throttled_symptom(engine: EngineView, steal: float | None, limits: Limits) -> Symptom:
    worst = max(engine.loads, key=lambda load: throttled_pct(load) or 0.0)
    group = worst.now.cgroup
    throttled = throttled_pct(worst)
    used = worst.mean(lambda load: load.cgroup.used_cpus if load.cgroup else None)
    lost = worst.mean(lambda load: load.cgroup.throttled_s_per_s if load.cgroup else None)
    quota = group.quota_cpus if group else None
    by_quota = throttled is not None and throttled > limits.clear("cpu-throttled.throttled_pct")
    waiting = max(engine.loads, key=lambda load: run_wait_pct(load) or 0.0)
    wait = run_wait_pct(waiting)
    by_wait = wait is not None and wait > limits.clear("cpu-throttled.run_wait_pct")
    by_steal = steal is not None and steal > limits.clear("cpu-throttled.steal_pct")
    name = "throttled_pct" if by_quota else "steal_pct" if by_steal else "run_wait_pct"
    if by_quota:
        headline = f"CPU quota of {number(quota)} cores stops the engine in {pct(throttled)} of all periods"
    elif by_steal:
        headline = f"{pct(steal)} of the CPU time goes to other virtual machines (steal)"
    else:
        headline = f"the {waiting.now.role}'s main thread waits {pct(wait)} of the time for a free CPU"
    threads = sum(load.now.threads or 0 for load in engine.loads)
    return Symptom(
        id="cpu-throttled",
        subject=engine.subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=(
            quota_evidence(worst, limits),
            _of_quota("thread time lost to throttling per second", lost, "s"),
            _of_quota("CPU quota (cores)", quota, ""),
            _of_quota("CPU used (cores)", used, "", threshold=quota, threshold_origin="quota"),
            Evidence(
                "CPU steal",
                steal,
                "%",
                "/proc/stat, of all cores",
                10.0,
                missing=None if steal is not None else "needs two polls",
                **limit(limits, "cpu-throttled.steal_pct"),
            ),
            Evidence(
                f"run-queue wait, {waiting.now.role}",
                wait,
                "%",
                "/proc/PID/schedstat, main thread",
                10.0,
                missing=None if wait is not None else waiting.now.missing.get("run_wait_pct", "needs two polls"),
                **limit(limits, "cpu-throttled.run_wait_pct"),
            ),
        ),
        causes=ranked(
            Cause(
                "the container's CPU limit is too small",
                when(by_quota, f"uses {number(used)} of {number(quota)} CPUs on average, and more in bursts"),
                when(group is not None and quota is None, "no CPU quota"),
            ),
            Cause(
                "more threads than the quota has CPUs: a burst spends a period's time at once",
                when(
                    by_quota and quota is not None and threads > quota,
                    f"{threads} threads share {number(quota)} CPUs",
                ),
            ),
            Cause(
                "other programs on this machine want the same CPUs",
                when(by_wait and not by_quota, f"its main thread waits {pct(wait)} of the time"),
                when(wait is not None and not by_wait, f"its main thread waits {pct(wait)} of the time only"),
            ),
            Cause(
                "the host is shared with other virtual machines",
                when(by_steal, f"{pct(steal)} of the CPU time is stolen"),
                when(steal is not None and not by_steal, f"{pct(steal)} of the CPU time is stolen"),
            ),
        ),
        advice=(
            Advice("raise or drop the container's CPU limit: resources.limits.cpu in Kubernetes, docker --cpus"),
            Advice("fewer threads: OMP_NUM_THREADS no higher than the quota"),
        ),
        refuted_by="no throttled period, no run-queue wait and no steal for 10 s under the same load",
        agreeing=by_quota + by_steal + by_wait + bool(lost),
        signals=4,
        chart="host.steal_pct" if name == "steal_pct" else f"target.{engine.frame.target_key}.{name}",
        chart_threshold=limits.value(f"cpu-throttled.{name}"),
    )


RULES = (Rule("cpu-throttled", "the engine does not get the CPU time that it wants", cpu_throttled),)
