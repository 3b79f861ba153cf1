"""What kind of standstill it is: a dead or stopped process, a hung front end, a spinning collective, a deadlock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from gputop_llm.model.symptom import Advice, Cause, Evidence
from gputop_llm.symptoms.evidence import gpu_names, ranked, when
from gputop_llm.symptoms.fresh import unmoved_s
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import data_parallel_number, data_parallel_rank, exchanges_tokens, rank_on
from gputop_llm.symptoms.processes import dead_processes, stopped_processes
from gputop_llm.symptoms.threads import HotThread, computing, hottest, serving
from gputop_llm.symptoms.view import EngineView, GpuView, LoadView, NodeView
from gputop_llm.units import pct, seconds

RULE = "stalled"

# Shorter than any standstill that is raised, so that nothing of the time before is in it.
_NOW_S = 5.0
# The first release whose gauges fall to 0 when all requests are aborted.
_GAUGES_FALL = (0, 32)


@dataclass(frozen=True, slots=True)
class Kind:
    """What a standstill looks like. `clause` ends the headline; `agreeing` of `signals` point the same way.

    `doubtful`: an idle engine whose page kept what ran before looks the same.
    """

    clause: str
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...]
    evidence: tuple[Evidence, ...]
    agreeing: int
    signals: int
    doubtful: bool = False


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The engine's GPUs by what their utilisation says; `known` are those that have one of their own."""

    known: tuple[GpuView, ...]
    spinning: tuple[GpuView, ...]
    idle: tuple[GpuView, ...]

    @property
    def all_idle(self) -> bool:
        return bool(self.known) and self.idle == self.known


def signs_of_work(engine: EngineView, limits: Limits) -> bool:
    """Whether GPUs compute, or the KV cache fills: a long prompt is prefilled in chunks that make no token."""
    usage = [value for _, value in engine.values("kv_usage_pct", _NOW_S)]
    return (len(usage) > 1 and usage[-1] > usage[0]) or _compute(engine.gpus, limits)


def _compute(gpus: Sequence[GpuView], limits: Limits) -> bool:
    for gpu in gpus:
        tensor, power = gpu.mean("gpm.tensor_pct", _NOW_S), gpu.mean("power_pct", _NOW_S)
        if tensor is not None:
            if tensor > limits.value(f"{RULE}.tensor_pct"):
                return True
        elif power is not None and power > limits.value(f"{RULE}.power_pct"):
            return True
    return False


def spins(engine: EngineView, limits: Limits) -> bool:
    """Whether a GPU of the engine reads busy."""
    return bool(_sort(engine.gpus, limits).spinning)


def front_end_hangs(engine: EngineView, limits: Limits, answered: bool) -> bool:
    """Whether the engine idles while its API server does not answer, or has no time left."""
    if not _idle(computing(engine), limits) or (engine.gpus and not _sort(engine.gpus, limits).all_idle):
        return False
    hot = hottest(serving(engine))
    return not answered or (hot is not None and hot.cpu_pct >= limits.value(f"{RULE}.busy_cpu_pct"))


def _idle(processes: Sequence[LoadView], limits: Limits) -> bool:
    known = [value for p in processes if (value := p.mean(lambda load: load.cpu_pct)) is not None]
    return bool(known) and max(known) <= limits.value(f"{RULE}.idle_cpu_pct")


def _sort(gpus: Sequence[GpuView], limits: Limits) -> _Gpus:
    known = tuple(g for g in gpus if not g.now.mig_enabled and g.mean("util_pct", _NOW_S) is not None)
    spin, idle = limits.value(f"{RULE}.spin_util_pct"), limits.value(f"{RULE}.idle_util_pct")
    return _Gpus(
        known,
        tuple(g for g in known if (g.mean("util_pct", _NOW_S) or 0.0) >= spin),
        tuple(g for g in known if (g.mean("util_pct", _NOW_S) or 0.0) <= idle),
    )


def diagnose(view: NodeView, engine: EngineView, rank: str | None, limits: Limits, answered: bool, runs: bool) -> Kind:
    """What kind it is, with what speaks for and against each other kind.

    Args:
        rank: the only data-parallel rank that stands still; None for the whole engine.
        answered: the metrics page still answers.
        runs: something runs by the engine's gauge.
    """
    its = tuple(g for g in engine.gpus if rank is None or data_parallel_rank(engine, g) in (rank, None))
    gpus = _sort(its, limits)
    dead, stopped = dead_processes(view, engine), stopped_processes(engine)
    hung = front_end_hangs(engine, limits, answered)
    hot = hottest(computing(engine))
    idle_host = _idle(computing(engine), limits)
    looping = hot is not None and hot.cpu_pct >= limits.value(f"{RULE}.busy_cpu_pct")
    working = signs_of_work(engine, limits) if rank is None else _compute(its, limits)
    # Where others compute too, the GPU says nothing of this engine.
    alone = tuple(g for g in gpus.known if _is_alone(engine, g, limits))
    quiet = all(g in gpus.idle for g in alone) and not (working and alone)
    quiet = quiet and bool(gpus.known) and _idle(_cores(engine, rank), limits)
    # A rank that hangs would keep all others from their next step.
    others_go_on = rank is not None and exchanges_tokens(engine) and unmoved_s(engine)[0] < _NOW_S
    doubtful = runs and (quiet or others_go_on) and not (dead or stopped or hung)
    kept = _keeps_gauges(engine) if doubtful else None
    clause = _clause(engine, gpus, dead, stopped, hung, idle_host, looping, hot)
    if kept is not None:
        if not (gpus.all_idle and idle_host):
            waits = "its engine core waits" if quiet else "the other ranks go on"
            clause = f"{gpu_names(gpus.known)} idle, {waits}" if gpus.all_idle else waits
        clause += f"; stuck, or nothing runs and vLLM {kept} kept its gauge"
    kinds = (bool(dead), bool(stopped), hung, bool(gpus.spinning), gpus.all_idle and not hung)
    return Kind(
        clause=clause,
        causes=ranked(
            Cause(
                "a process of the engine is dead, and the others wait for it",
                dead,
                when(not dead and bool(engine.target), "all of its processes are there"),
            ),
            Cause(
                "a process is stopped: by SIGSTOP, a debugger, or a frozen container",
                tuple(f"{name} is stopped (state T)" for name in stopped),
                when(not stopped and bool(engine.target), "none of its processes is stopped"),
            ),
            _front_end(engine, gpus, hung, answered, idle_host),
            _collective(engine, gpus, working, limits),
            _deadlock(gpus, hot, idle_host, looping, hung),
            _stale_gauge(engine, gpus, kept),
            *_paused(engine, quiet and not (dead or stopped or hung)),
            Cause(
                "a very long prompt is being prefilled: its chunks make no token",
                when(working, "GPUs compute, or the KV cache fills"),
                when(bool(gpus.known) and not working, "no tensor-core work or high power, and a still KV cache"),
            ),
        ),
        advice=_advice(engine, bool(stopped), bool(dead)),
        evidence=tuple(_gpu_evidence(its)),
        agreeing=any(kinds) + (not working and bool(gpus.known or engine.processes)),
        signals=2,
        doubtful=kept is not None,
    )


def _clause(
    engine: EngineView,
    gpus: _Gpus,
    dead: tuple[str, ...],
    stopped: tuple[str, ...],
    hung: bool,
    idle_host: bool,
    looping: bool,
    hot: HotThread | None,
) -> str:
    if dead:
        return dead[0] + (f" (and {len(dead) - 1} more)" if len(dead) > 1 else "")
    if stopped:
        more = f", {len(stopped) - 1} more" if len(stopped) > 1 else ""
        # Of one GPU it says nothing more; of several, that the others wait for it in a collective.
        waits = bool(gpus.spinning) and len(engine.gpus) > 1
        return f"{stopped[0]} is stopped (state T){more}" + (f", {_spin(gpus.spinning)}" if waits else "")
    if hung:
        return "the API server hangs, the engine idles"
    if gpus.spinning and gpus.idle:
        late = gpus.idle[0]
        rank = rank_on(engine, late)
        return f"{late.subject.label}{f' ({rank})' if rank else ''} idles, {_spin(gpus.spinning)}"
    if gpus.spinning:
        return f"{_spin(gpus.spinning)} at {_mean(gpus.spinning)}{_power(gpus.spinning)}"
    if gpus.all_idle:
        host = "its processes wait" if idle_host else f"{hot.label} loops" if looping and hot else "a deadlock?"
        return f"{gpu_names(gpus.known)} idle at {_mean(gpus.known)}, {host}"
    if gpus.known:
        return f"{gpu_names(gpus.known)} at {_mean(gpus.known)}"
    if idle_host:
        return "its processes wait: a deadlock"
    return f"{hot.label} loops" if looping and hot else "what it hangs in can't be told without GPU utilisation"


def _spin(gpus: Sequence[GpuView]) -> str:
    return f"{gpu_names(gpus)} {'spins' if len(gpus) == 1 else 'spin'}"


def _mean(gpus: Sequence[GpuView]) -> str:
    return pct(fmean(gpu.mean("util_pct", _NOW_S) or 0.0 for gpu in gpus))


def _power(gpus: Sequence[GpuView]) -> str:
    """Power of limit of all of them, where known: " on 220 of 700 W"."""
    watts = [gpu.mean("power_w", _NOW_S) for gpu in gpus]
    limits = [gpu.now.power_limit_w for gpu in gpus]
    if any(w is None for w in watts) or not all(limits):
        return ""
    return f" on {sum(w or 0.0 for w in watts):.0f} of {sum(x or 0.0 for x in limits):.0f} W"


def _gpu_evidence(gpus: Sequence[GpuView]) -> list[Evidence]:
    found = []
    for gpu in gpus:
        util, watts, top = gpu.mean("util_pct", _NOW_S), gpu.mean("power_w", _NOW_S), gpu.now.power_limit_w
        if gpu.now.mig_enabled:
            util = None
        why = "MIG: utilisation isn't defined for the parent GPU" if gpu.now.mig_enabled else gpu.missing("util_pct")
        found.append(
            Evidence(
                f"{gpu.subject.label} utilisation", util, "%", "NVML", _NOW_S, missing=why if util is None else None
            )
        )
        found.append(
            Evidence(
                f"{gpu.subject.label} power",
                watts,
                "W",
                "NVML",
                _NOW_S,
                text=f"{watts:.0f} of {top:.0f} W" if watts is not None and top else None,
                missing=gpu.missing("power_w") if watts is None else None,
            )
        )
    return found


def _front_end(engine: EngineView, gpus: _Gpus, hung: bool, answered: bool, idle_host: bool) -> Cause:
    took, hot = engine.frame.scrape.took_s, hottest(serving(engine))
    return Cause(
        "the front end hangs: the API server does not take what the engine made",
        when(hung, "the engine's processes and GPUs are idle")
        + when(hung and not answered, f"no answer: {engine.frame.scrape.error or 'the page is old'}")
        + when(hung and answered and hot is not None, f"{hot.label} takes {pct(hot.cpu_pct)} of a core" if hot else ""),
        when(answered and not hung and took is not None, f"the metrics page answers in {seconds(took)}")
        + when(bool(gpus.spinning), f"{gpu_names(gpus.spinning)} busy" if gpus.spinning else ""),
    )


def _collective(engine: EngineView, gpus: _Gpus, working: bool, limits: Limits) -> Cause:
    spinning = tuple(
        f"{gpu.subject.label} reads {pct(gpu.mean('util_pct'))} busy{_power((gpu,))}" for gpu in gpus.spinning
    )
    return Cause(
        "a collective that never ends (NCCL): ranks spin for one that does not come"
        if len(engine.gpus) > 1
        else "a kernel that never ends: a collective (NCCL) or a lock on the GPU that it spins on",
        spinning
        + when(
            bool(gpus.spinning and gpus.idle),
            f"{gpu_names(gpus.idle)} idle while others spin" if gpus.idle else "",
        ),
        when(gpus.all_idle, f"{gpu_names(gpus.known)} idle" if gpus.known else "")
        + when(working and bool(gpus.spinning), "the GPUs compute, or the KV cache fills"),
    )


def _deadlock(gpus: _Gpus, hot: HotThread | None, idle_host: bool, looping: bool, hung: bool) -> Cause:
    return Cause(
        "a deadlock or an endless loop on the host: a lock, a scheduler, I/O",
        when(gpus.all_idle and not hung, f"{gpu_names(gpus.known)} idle" if gpus.known else "")
        + when(idle_host and not hung and not gpus.spinning, "the engine's processes use no CPU: they wait")
        + when(looping and not gpus.spinning, f"{hot.label} takes {pct(hot.cpu_pct)} of a core" if hot else ""),
        when(bool(gpus.spinning), f"{gpu_names(gpus.spinning)} busy" if gpus.spinning else ""),
    )


def _stale_gauge(engine: EngineView, gpus: _Gpus, kept: str | None) -> Cause:
    reading = engine.frame.scrape.value
    version = reading.version if reading and reading.engine == "vllm" else None
    before = _keeps_gauges(engine)
    why = "GPUs and engine core are idle" if gpus.all_idle else "its engine core is idle, or the other ranks go on"
    return Cause(
        "nothing runs: the gauge kept its value when all requests were aborted (vLLM before 0.32)",
        when(kept is not None, f"vLLM {kept}; {why}"),
        when(version is not None and before is None, f"vLLM {version}")
        + when(bool(gpus.spinning) and kept is None, f"{gpu_names(gpus.spinning)} busy" if gpus.spinning else "")
        + when(reading is not None and reading.engine != "vllm", "this is no vLLM"),
    )


def _paused(engine: EngineView, quiet: bool) -> tuple[Cause, ...]:
    if engine.kind != "vllm" or not quiet:
        return ()
    text = "it was paused on purpose (POST /pause keeps the requests), as while a trainer loads new weights"
    return (Cause(text, ("its engine core has nothing to do",)),)


def _cores(engine: EngineView, rank: str | None) -> tuple[LoadView, ...]:
    """The engine cores, or what computes where there are none; of one data-parallel rank where they are titled so.

    Workers of an idle vLLM may spin for the next message of their core.
    """
    titles = {p.pid: p.rank for p in (engine.target.processes if engine.target else ())}
    own = tuple(p for p in computing(engine) if rank in (None, data_parallel_number(titles.get(p.now.pid))))
    found = own or computing(engine)
    return tuple(p for p in found if p.now.role == "engine-core") or found


def _is_alone(engine: EngineView, gpu: GpuView, limits: Limits) -> bool:
    """Whether nobody else is seen to compute there; one who is only there makes no GPU read busy."""
    processes = engine.target.processes if engine.target else ()
    if any(p.gpus and p.gpus_from != "nvml" for p in processes):
        # Those that NVML lists may be the engine's own, by PIDs that can't be seen here.
        return True
    own, idle = {p.nvml_pid or p.pid for p in processes}, limits.value(f"{RULE}.idle_util_pct")
    others = [p for p in gpu.now.processes or () if p.pid not in own and p.kind != "graphics"]
    return not any((p.sm_util_pct or 0.0) > idle for p in others)


def _keeps_gauges(engine: EngineView) -> str | None:
    """The version of a vLLM whose gauges stay as they were when all requests are aborted; None for any other."""
    reading = engine.frame.scrape.value
    version = reading.version if reading and reading.engine == "vllm" else None
    return version if version is not None and _release(version) < _GAUGES_FALL else None


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])


def _advice(engine: EngineView, stopped: bool, dead: bool) -> tuple[Advice, ...]:
    pids = [str(p.pid) for p in (engine.target.processes if engine.target else ()) if p.pid is not None]
    first = "before anything is restarted, dump the stacks of every rank and compare them side by side"
    found = [Advice(f"{first}: py-spy dump --pid N, for {', '.join(pids)}" if pids else first)]
    if stopped:
        found.append(Advice("let a stopped process go on: kill -CONT PID; or find out who stopped it"))
    if dead:
        found.append(
            Advice("look for its death in the kernel log (OOM killer, Xid) and the engine's log; then restart")
        )
    found.append(
        Advice(
            "let a hang end by itself next time",
            {
                "vllm": "environment: VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS (300 by default)",
                "sglang": "--watchdog-timeout (300 by default)",
                "trtllm": "its hang detector writes all stacks to the log after 300 s",
            },
        )
    )
    return tuple(found)
