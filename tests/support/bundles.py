"""Folders of captures as the worker leaves them, with an engine whose pace is made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from gputop_llm.model.engine import Histogram
from gputop_llm.model.pace import EnginePace, PaceSample
from tests.support.synth import Simulation
from tests.support.synth_native import to_native

BEGAN_NS = 100_000_000_000
ENDED_NS = BEGAN_NS + 600_000_000
NS = 1_000_000_000
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, float("inf"))


def steps_schedule(steps: int = 40, ranks: int = 1, pause_ns: int = 900_000):
    """Each rank launches one kernel a step, and waits for it."""
    simulation = Simulation()
    for rank in range(ranks):
        host = simulation.host(simulation.process(4000 + rank), device=rank)
        for _ in range(steps):
            host.launch(7, 400_000, "gemm")
            host.launch(7, 100_000, "sample")
            host.run(pause_ns)
            host.sync(7)
    return simulation.schedule()


def pace(
    rate: Callable[[float], float],
    *,
    itl: Callable[[float], float] | None = None,
    seconds: tuple[float, float] = (-40.0, 12.0),
    period_s: float = 0.5,
    recovered: bool | None = None,
) -> EnginePace:
    """An engine that generates `rate(t)` tokens a second, `t` seconds after it was first touched.

    `itl` gives the inter-token time of the tokens of a moment.
    """
    samples, tokens, counts, at = [], 1_000_000.0, [0.0] * len(BOUNDS), seconds[0]
    while at <= seconds[1]:
        histogram = Histogram(BOUNDS, tuple(counts), None) if itl is not None else None
        samples.append(PaceSample(BEGAN_NS + round(at * NS), tokens, 32.0, histogram, 1.0))
        new = rate(at) * period_s
        tokens += new
        if itl is not None:
            counts = [c + (new if itl(at) <= bound else 0) for c, bound in zip(counts, BOUNDS, strict=True)]
        at += period_s
    return EnginePace(tuple(samples), BEGAN_NS, ENDED_NS, recovered)


def engine_lines(answers: Iterable[PaceSample]) -> str:
    """The samples as engine.jsonl has them."""
    lines = []
    for one in answers:
        itl = None
        if one.itl is not None:
            bounds = [None if bound == float("inf") else bound for bound in one.itl.bounds]
            itl = {"name": "itl", "bounds": bounds, "counts": list(one.itl.counts)}
        line = {"mono_ns": one.at_ns, "wall_s": one.at_ns / 1e9, "took_ns": 1, "generation_tokens": one.tokens}
        lines.append(json.dumps(line | {"running": one.running, "itl": itl, "started_s": one.started_s}))
    return "".join(f"{line}\n" for line in lines)


def capture_folder(
    path: Path,
    *,
    ranks: int = 1,
    answers: EnginePace | None = None,
    facts: dict[str, object] | None = None,
    frames: Iterable[str] = (),
    argv: Iterable[str] = ("python3", "-m", "vllm"),
) -> Path:
    """A whole capture of a target, one record for each rank."""
    path.mkdir(parents=True)
    schedule = steps_schedule(ranks=ranks)
    for rank in range(ranks):
        to_native(schedule, path / f"rank{rank}_pid{4000 + rank}.gtw", process=rank)
    plan = {
        "key": "vllm:1:2",
        "model": "meta/llama-1b",
        "window_s": 0.5,
        "at_s": 1_790_000_000.0,
        "argv": list(argv),
        "ranks": [{"number": n, "pid": 4000 + n} for n in range(ranks)],
    }
    told = {"schema": 1, "version": "0.1.0", "plan": plan, "outcome": "done"}
    if answers is not None:
        told |= {"touched_mono_ns": answers.began_ns, "ended_mono_ns": answers.ended_ns, "recovered": answers.recovered}
        (path / "engine.jsonl").write_text(engine_lines(answers.samples))
    (path / "capture.json").write_text(json.dumps(told | (facts or {})))
    if lines := list(frames):
        (path / "frames.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return path
