"""memory-spike: GPU memory jumps, or the last of it goes, after the engine has taken what it preallocates."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import NamedTuple

from gputop_llm.model import Gpu, GpuProcess
from gputop_llm.model.symptom import Advice, Cause, Evidence, Severity, Subject, Symptom
from gputop_llm.symptoms.advice import LESS_GPU_MEMORY, SMALLER_CHUNKS
from gputop_llm.symptoms.checks import Check, State, all_in_turn, any_of, judged, over
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.evidence import limit, ranked, when
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.placement import instances, unplaced
from gputop_llm.symptoms.view import EngineView, GpuView, NodeView, known
from gputop_llm.units import pct, size


class _Used(NamedTuple):
    """What was used of a memory at one time and by whom, and what was left (of a shared one for all programs)."""

    used: int
    total: int
    left: int
    processes: tuple[GpuProcess, ...]

    @property
    def full_pct(self) -> float:
        return 100.0 * (1.0 - self.left / self.total)


def memory_spike(view: NodeView, limits: Limits) -> Iterator[Check]:
    """Used memory jumps within ten seconds, or grows past the last few percent."""
    yield from unplaced(view, "memory-spike")
    for index, users in view.users.items():
        gpu = view.gpus[index]
        for instance, engines in instances(users, gpu).items():
            yield _judge(view, gpu, instance, engines, limits)


def _judge(view: NodeView, gpu: GpuView, instance: int | None, engines: Sequence[EngineView], limits: Limits) -> Check:
    rule = "memory-spike"
    subject = gpu.subject if instance is None else gpu.instance(instance)
    if gpu.now.mig_enabled and instance is None:
        return Check(rule, subject, State.UNKNOWN, "MIG: which instance the engine's process is on")
    settled_s = _settled_since(view, engines, limits)
    if settled_s is None:
        return Check(rule, subject, State.CLEAR)
    read = gpu.each(f"memory of {instance}", partial(_use, instance))
    recent = known(read[bisect_left(gpu.readings(), settled_s, key=itemgetter(0)) :])
    if not recent or read[-1] is None:
        return Check(rule, subject, State.UNKNOWN, f"the used memory ({gpu.missing('mem_used_bytes')})")
    jump = over(_growth_pct(recent), limits, f"{rule}.jump_pct")
    filling = all_in_turn(
        partial(over, recent[-1].full_pct, limits, f"{rule}.full_pct"),
        partial(_growing, gpu, instance, settled_s, limits),
    )
    make = partial(_symptom, gpu, subject, engines[0], jump is not State.CLEAR, instance, settled_s, limits)
    return judged(rule, subject, any_of(jump, filling), "", make)


def _uses(readings: Sequence[tuple[float, Gpu]], instance: int | None, since_s: float) -> list[tuple[float, _Used]]:
    """(monotonic time, what was used) since then, oldest first."""
    return [(at, used) for at, gpu in readings if at >= since_s and (used := _use(instance, gpu)) is not None]


def _growing(gpu: GpuView, instance: int | None, since_s: float, limits: Limits) -> State:
    past = [used for _, used in _uses(gpu.past, instance, since_s)]
    return over(_growth_pct(past), limits, "memory-spike.growth_pct")


def _settled_since(view: NodeView, engines: Sequence[EngineView], limits: Limits) -> float | None:
    """From when on (monotonic) all engines on a GPU have answered and are old enough; None while one hasn't."""
    since = []
    for engine in engines:
        if engine.live is None:
            return None
        answered = next(at for at, frame in engine.past if frame.window is not None)
        started_s = engine.target.started_s if engine.target else None
        old = view.now.mono_s
        if started_s is not None:
            old += started_s + limits.value("memory-spike.settle_s") - view.now.at_s
            if old > view.now.mono_s:
                return None
            since.append(old)
        since.append(answered)
    return max(since)


def _use(instance: int | None, gpu: Gpu) -> _Used | None:
    if instance is None:
        left = gpu.mem_free_bytes
        if gpu.mem_used_bytes is None or not gpu.mem_total_bytes or left is None:
            return None
        return _Used(gpu.mem_used_bytes, gpu.mem_total_bytes, left, gpu.processes or ())
    for one in gpu.mig_instances:
        if one.gpu_instance == instance and one.mem_used_bytes is not None and one.mem_total_bytes:
            left = one.mem_total_bytes - one.mem_used_bytes
            return _Used(one.mem_used_bytes, one.mem_total_bytes, left, one.processes)
    return None


def _growth_pct(uses: Sequence[_Used]) -> float:
    """How much more is used now than at the lowest before, in percent of the total."""
    return 100.0 * (uses[-1].used - min([use.used for use in uses])) / uses[-1].total


def _symptom(
    gpu: GpuView,
    subject: Subject,
    engine: EngineView,
    jump: bool,
    instance: int | None,
    since_s: float,
    limits: Limits,
) -> Symptom:
    uses = _uses(gpu.readings() if jump else gpu.past, instance, since_s)
    (before_s, before), (now_s, now) = min(uses, key=lambda use: use[1].used), uses[-1]
    span_s = now_s - before_s
    grown = now.used - before.used
    full = now.full_pct > limits.value("memory-spike.full_pct")
    headline = (
        f"{subject.label} memory grew by {size(grown)} in {span_s:.0f} s to {pct(now.full_pct)}, {size(now.left)} left"
    )
    name = f"{subject.label} memory"
    return Symptom(
        id="memory-spike",
        subject=subject,
        severity=Severity.CRITICAL if full else Severity.WARNING,
        headline=headline,
        evidence=(
            Evidence(f"{name} before", before.used, "B", f"NVML, {span_s:.0f} s ago"),
            Evidence(f"{name} now", now.used, "B", f"NVML, of {size(now.total)}"),
            Evidence(
                f"{name}, growth",
                100.0 * grown / now.total,
                "%",
                "NVML, of the total",
                span_s,
                **limit(limits, "memory-spike.jump_pct"),
            ),
            Evidence(
                f"{name}, used", now.full_pct, "%", "NVML, of the total", **limit(limits, "memory-spike.full_pct")
            ),
            *(_of_process(pid, was, is_now) for pid, was, is_now in _by_process(before, now)),
        ),
        causes=_causes(engine, before, now),
        advice=(
            LESS_GPU_MEMORY,
            SMALLER_CHUNKS,
            Advice("let PyTorch's allocator grow its segments: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        ),
        refuted_by="used memory back to what it was, and no allocation that failed in the engine's log",
        next_capture="kineto",
        agreeing=1 + full,
        signals=2,
        chart=f"gpu.{gpu.index}.mem_used_pct",
        chart_threshold=limits.value("memory-spike.full_pct"),
    )


def _by_process(before: _Used, now: _Used) -> list[tuple[int, int | None, int | None]]:
    """(PID, bytes before, bytes now) of each process, those that grew most first."""
    was = {p.pid: p.mem_bytes for p in before.processes}
    found = [(p.pid, was.get(p.pid), p.mem_bytes) for p in now.processes]
    return sorted(found, key=lambda f: (f[1] or 0) - (f[2] or 0))[:5]


def _of_process(pid: int, was: int | None, now: int | None) -> Evidence:
    missing = "the driver does not tell it" if now is None else None
    text = None if now is None else f"{size(was or 0)} before, {size(now)} now"
    return Evidence(f"PID {pid}", now, "B", "NVML", text=text, missing=missing)


def _causes(engine: EngineView, before: _Used, now: _Used) -> tuple[Cause, ...]:
    own = {p.nvml_pid or p.pid for p in (engine.target.processes if engine.target else ())}
    mine = other = 0
    for pid, was, is_now in _by_process(before, now):
        grown = (is_now or 0) - (was or 0)
        mine, other = (mine + grown, other) if pid in own else (mine, other + grown)
    prefill = engine.mean("prompt_computed_tokens_per_s")
    grew, others = f"the engine's processes grew by {size(mine)}", f"other processes grew by {size(other)}"
    return ranked(
        Cause(
            "a peak of activations: a large batch of prompt tokens, or long logits",
            when(mine > 0 and bool(prefill), f"{grew}, and prompts are being computed"),
            when(mine <= 0 and other > 0, others) + when(prefill == 0, "no prompt tokens are computed"),
        ),
        Cause(
            "fragmentation: the allocator takes new segments because its free ones don't fit",
            when(mine > 0, grew),
            when(mine <= 0 and other > 0, others),
        ),
        Cause("another process on this GPU", when(other > 0, others), when(other <= 0 and mine > 0, grew)),
    )


RULES = (Rule("memory-spike", "GPU memory jumps, or runs out", memory_spike),)
