"""noisy-neighbour: somebody else computes, or takes memory, on the engine's GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from gputop_llm.model import GpuProcess, Target, TargetProcess
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Subject, Symptom
from gputop_llm.symptoms.advice import LESS_GPU_MEMORY
from gputop_llm.symptoms.checks import Check, State, any_of, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import instances, unplaced
from gputop_llm.symptoms.view import MEAN_S, EngineView, GpuView, NodeView
from gputop_llm.units import pct, size

_HEADLINE_CHARS = 100
# Work of its clients, the engine among them, is done in its name.
_MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """A process that isn't the engine's. `growth_pct` is of the GPU's memory, over the kept time."""

    now: GpuProcess
    sm_pct: float | None
    growth_pct: float | None
    owner: Target | None
    process: TargetProcess | None
    state: State

    @property
    def who(self) -> str:
        """Whose it is and what it runs, in a few letters: "alice: python train.py"."""
        title = (self.process.title if self.process else "") or "no command line"
        user = self.owner.user if self.owner else None
        return f"{user}: {title}" if user else title


def noisy_neighbour(view: NodeView, limits: Limits) -> Iterator[Check]:
    """A process outside the engine's tree with SM utilisation, or with memory that grows."""
    rule = "noisy-neighbour"
    yield from unplaced(view, rule)
    listed = view.now.targets.value.targets if view.now.targets.value else ()
    owners = {p.nvml_pid: (t, p) for t in listed for p in t.processes if p.nvml_pid is not None}
    for index, users in view.users.items():
        gpu = view.gpus[index]
        for instance, engines in instances(users, gpu).items():
            subject = gpu.subject if instance is None else gpu.instance(instance)
            if gpu.now.processes is None:
                needs = f"the list of processes on the GPU ({gpu.missing('processes')})"
                yield Check(rule, subject, State.UNKNOWN, needs)
                continue
            # Where engines share a GPU, each is the other's neighbour: judged from the one in focus.
            engine = next((e for e in engines if e.frame.target_key == view.now.focus), engines[0])
            found = _neighbours(gpu, engine, instance, owners, limits)
            memory_unknown = "processes.mem_bytes" in gpu.now.missing
            state = any_of(State.UNKNOWN if memory_unknown else State.CLEAR, *(n.state for n in found))
            make = partial(_symptom, gpu, subject, engine, found, limits)
            yield judged(rule, subject, state, _needs(gpu), make)


def _neighbours(
    gpu: GpuView,
    engine: EngineView,
    instance: int | None,
    owners: dict[int, tuple[Target, TargetProcess]],
    limits: Limits,
) -> list[_Neighbour]:
    own = {p.nvml_pid or p.pid for p in (engine.target.processes if engine.target else ())}
    slices = [one.mem_total_bytes for one in gpu.now.mig_instances if one.gpu_instance == instance]
    total = gpu.now.mem_total_bytes if instance is None else next(iter(slices), None)
    found = []
    for process in gpu.now.processes or ():
        owner, seen = owners.get(process.pid, (None, None))
        if process.pid in own or seen is None:
            # One that discovery hasn't looked at yet may be the engine's own.
            continue
        if seen.title.partition(" ")[0].endswith(_MPS_SERVER):
            continue
        if seen.unseen == "pid-namespace":
            # NVML names PIDs of the host here: it may well be the engine itself.
            continue
        if instance is not None and process.gpu_instance != instance:
            # It computes on SMs and memory of its own.
            continue
        sm, growth = _sm_pct(gpu, process), _growth_pct(gpu, process, total)
        state = any_of(over(sm, limits, "noisy-neighbour.sm_pct"), over(growth, limits, "noisy-neighbour.growth_pct"))
        found.append(_Neighbour(process, sm, growth, owner, seen, state))
    return sorted(found, key=lambda n: (n.state is not State.RAISED, -(n.sm_pct or 0.0), -(n.now.mem_bytes or 0)))


def _sm_pct(gpu: GpuView, process: GpuProcess) -> float | None:
    past = [p.sm_util_pct for _, g in gpu.readings() for p in g.processes or () if p.pid == process.pid]
    known = [value for value in past if value is not None]
    return fmean(known) if known and process.sm_util_pct is not None else None


def _growth_pct(gpu: GpuView, process: GpuProcess, total: int | None) -> float | None:
    """Growth since its lowest of the kept time, in percent of `total`; a process that is new grew from nothing."""
    if process.mem_bytes is None or not total:
        return None
    listed = [{p.pid: p.mem_bytes for p in g.processes} for _, g in gpu.past if g.processes is not None]
    past = [found.get(process.pid, 0) for found in listed]
    low = min((used for used in past if used is not None), default=0)
    return 100.0 * (process.mem_bytes - low) / total


def _needs(gpu: GpuView) -> str:
    for name in ("processes.mem_bytes", "processes.sm_util_pct"):
        if name in gpu.now.missing:
            return f"{'memory' if 'mem' in name else 'SM utilisation'} by process ({gpu.missing(name)})"
    return "SM utilisation and memory of the other processes"


def _symptom(
    gpu: GpuView, subject: Subject, engine: EngineView, found: Sequence[_Neighbour], limits: Limits
) -> Symptom:
    noisy = [n for n in found if n.state in (State.RAISED, State.BETWEEN)] or list(found)
    worst = noisy[0]
    more = f" and {len(noisy) - 1} more" if len(noisy) > 1 else ""
    loud = worst.sm_pct is not None and worst.sm_pct > limits.clear("noisy-neighbour.sm_pct")
    growing = worst.growth_pct is not None and worst.growth_pct > limits.clear("noisy-neighbour.growth_pct")
    begin, end = f"{subject.label} also works for PID {worst.now.pid} (", f"){more}: "
    end += f"SM {pct(worst.sm_pct)}" if loud else f"+{pct(worst.growth_pct)} memory"
    headline = begin + _cut(worst.who, _HEADLINE_CHARS - len(begin) - len(end)) + end
    evidence: list[Evidence] = []
    for n in noisy[:5]:
        evidence += _of_neighbour(gpu, n, limits)
    orphan = bool(worst.owner and worst.owner.orphan)
    served = bool(worst.owner and worst.owner.engine not in ("cuda", "unknown"))
    return Symptom(
        id="noisy-neighbour",
        subject=subject,
        severity=Severity.WARNING,
        headline=headline,
        evidence=tuple(evidence),
        causes=ranked(
            Cause(
                "a co-tenant: somebody else's work was placed on this GPU",
                when(not orphan, _cut(worst.who, _HEADLINE_CHARS)),
            ),
            Cause("what is left of an engine whose server was killed", when(orphan, "its parent is gone")),
            Cause("a second engine on the same GPU", when(served and not orphan, _cut(worst.who, _HEADLINE_CHARS))),
        ),
        advice=(
            Advice("move one of the two to another GPU: CUDA_VISIBLE_DEVICES, or the scheduler that placed it"),
            LESS_GPU_MEMORY,
        ),
        refuted_by="the engine as slow as now while the other process is idle",
        agreeing=1 + (loud and growing),
        signals=2,
        chart=f"gpu.{gpu.index}.mem_used_pct" if growing and not loud else f"gpu.{gpu.index}.util_pct",
    )


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _of_neighbour(gpu: GpuView, n: _Neighbour, limits: Limits) -> list[Evidence]:
    name = f"PID {n.now.pid}"
    return [
        Evidence(f"{name}, whose and what", None, "", "NVML, /proc", text=_cut(n.who, 3 * _HEADLINE_CHARS)),
        Evidence(
            f"{name}, SM utilisation",
            n.sm_pct,
            "%",
            "NVML",
            MEAN_S,
            missing=None if n.sm_pct is not None else gpu.missing("processes.sm_util_pct"),
            **limit(limits, "noisy-neighbour.sm_pct"),
        ),
        Evidence(
            f"{name}, memory",
            n.now.mem_bytes,
            "B",
            "NVML",
            missing=None if n.now.mem_bytes is not None else gpu.missing("processes.mem_bytes"),
            text=None if n.now.mem_bytes is None else f"{size(n.now.mem_bytes)}, grew by {pct(n.growth_pct, 1)} of all",
        ),
    ]


RULES = (Rule("noisy-neighbour", "somebody else works on the engine's GPU", noisy_neighbour),)
