"""Decode held up by prefill on the same device: how often, and for how long.

Between two decode steps that follow each other, a prefill step delays the second by its time. A mixed step delays the
decode in its batch by what it takes beyond a usual decode step. Whether sequences really waited depends on whether they
were still running: known where the annotation of a step tells its decode batch, likely where the engine said that
requests ran throughout, else only possible.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.model.pace import EnginePace
from gputop_llm.timeline.intervals import overlap_with
from gputop_llm.timeline.model import I64
from gputop_llm.verdict.advice import OVERLAP
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage
from gputop_llm.verdict.facts import ms, share, span
from gputop_llm.verdict.step_marks import ANNOTATION, Marks, Phase
from gputop_llm.verdict.steps import nearest_rank

_WORTH_PCT = 5.0
_SEVERE_PCT = 25.0
_ENOUGH_DECODES = 5
_MOSTLY_PCT = 50.0
#: One that prefills, and one that waits for it.
_ENOUGH_RUNNING = 2
#: Annotations that tell how many sequences decode: only these prove that some went on after the prefill.
_TELLS_BATCH = re.compile(r"_generation_\d+\(|^step\[|^\[Executor\]")

CHUNKED = Advice(
    "let a prefill take fewer tokens of each step, so that decode goes on beside it",
    {"vllm": "--max-num-batched-tokens (down)"},
)
APART = Advice("or serve prefill on devices of its own (disaggregated prefill)")


@dataclass(frozen=True)
class Interference:
    """One device. `delays` of the decode steps that a prefill or mixed step held up, in ns, in time order.

    `decodes` are the steps that decode, mixed ones with them, `usual_ns` the median time of the `usuals`: those of
    them that do nothing else. The steps to blame took `blamed_ns`, with `busy_ns` of device work in them. `proven`
    is true if the annotations tell that sequences decoded.
    """

    device: int
    window_ns: int
    inferred: bool
    proven: bool
    decodes: int
    prefills: int
    usual_ns: float
    usuals: int
    delays: I64
    blamed_ns: int
    busy_ns: int

    @property
    def total_ns(self) -> int:
        """All delays."""
        return int(self.delays.sum())

    @property
    def busy_pct(self) -> float:
        """How much of the steps to blame the device worked."""
        return 100.0 * self.busy_ns / self.blamed_ns if self.blamed_ns else 0.0

    @property
    def pct(self) -> float:
        """All delays as a share of the window."""
        return 100.0 * self.total_ns / self.window_ns if self.window_ns else 0.0


def analyse(context: Context) -> tuple[Interference, ...]:
    """One entry for each device that ran both prefill and decode steps."""
    found = (_of_device(context, c, context.marks[c.device]) for c in context.coverage if c.device in context.marks)
    return tuple(f for f in found if f is not None)


def _of_device(context: Context, covered: DeviceCoverage, marks: Marks) -> Interference | None:
    phase, time = marks.phase, np.diff(marks.at)
    decode, prefill, mixed = (phase == p for p in (Phase.DECODE, Phase.PREFILL, Phase.MIXED))
    if marks.source != ANNOTATION:
        # What is inferred to be prefill may have served decode in the same batch: blame it for the rest only.
        mixed, prefill = prefill, mixed
    timed = np.ones(len(time), dtype=bool)
    if marks.open_end:
        timed[-1] = False
    if int((decode & timed).sum()) < _ENOUGH_DECODES or not (prefill | mixed).any():
        return None
    usual = float(np.median(time[decode & timed]))
    served = np.flatnonzero(decode | mixed)
    # Prefill between two steps that decode holds up the later one.
    before = np.concatenate(([0], np.cumsum(np.where(prefill, time, 0))))
    held = before[served[1:]] - before[served[:-1]]
    slower = np.where(mixed & timed, np.maximum(time - usual, 0), 0).astype(np.int64)
    delay = held + slower[served[1:]]
    delay = np.append(slower[served[:1]], delay)
    between = np.zeros(len(time), dtype=bool)
    between[served[0] : served[-1] + 1] = True
    blamed = (prefill & between) | (mixed & timed)
    return Interference(
        device=covered.device,
        window_ns=covered.window_ns,
        inferred=marks.source != ANNOTATION,
        proven=marks.source == ANNOTATION and bool(_TELLS_BATCH.search(marks.anchor)),
        decodes=len(served),
        prefills=int(blamed.sum()),
        usual_ns=usual,
        usuals=int((decode & timed).sum()),
        delays=delay[delay > 0],
        blamed_ns=int(time[blamed].sum()),
        busy_ns=int(overlap_with(marks.at[:-1][blamed], marks.at[1:][blamed], covered.busy).sum()),
    )


def findings(results: tuple[Interference, ...], context: Context, pace: EnginePace | None = None) -> list[Finding]:
    """Decode steps that wait for prefill, where that takes some of the window. About the device that it costs most.

    `pace` is what the engine said meanwhile: whether requests ran throughout.
    """
    worst = max(results, key=lambda r: r.pct, default=None)
    if worst is None or not len(worst.delays) or worst.pct < _WORTH_PCT:
        return []
    # An engine batches over many sequences; a plain loop may have finished those that it had.
    running = pace.fewest_running if pace is not None else None
    likely = worst.proven or context.engine is not None or (running is not None and running >= _ENOUGH_RUNNING)
    ordered = np.sort(worst.delays)
    often = 100.0 * len(ordered) / worst.decodes
    inferred = " (inferred)" if worst.inferred else ""
    severe = likely and worst.pct >= _SEVERE_PCT
    return [
        Finding(
            id="prefill-delays-decode",
            weight=Weight.SEVERE if severe else Weight.FINDING if likely else Weight.NOTE,
            headline=f"Prefill {'holds up' if likely else 'may hold up'} decode{inferred}: {len(ordered):,} of "
            f"{worst.decodes:,} steps that decode ({share(often)}) come {span(nearest_rank(ordered, 0.5))} later "
            f"(median), {span(float(ordered[-1]))} at worst; {share(worst.pct)} of the window",
            facts=(
                ms(
                    "delay of a held-up decode step, p50",
                    nearest_rank(ordered, 0.5),
                    _FORMULA,
                    f"{len(ordered):,} delays",
                ),
                ms("delay, p95", nearest_rank(ordered, 0.95), _FORMULA),
                ms("delay, longest", float(ordered[-1]), _FORMULA),
                ms("usual decode step", worst.usual_ns, "median of decode step times", f"{worst.usuals:,} steps"),
                Fact("decode steps held up", often, "%", "delays ÷ steps that decode", f"{worst.prefills:,} prefills"),
                Fact("delays, of the window", worst.pct, "%", "Σ delays ÷ window"),
                Fact("GPU busy in the steps to blame", worst.busy_pct, "%", "|∪ device activity in them| ÷ their time"),
                *_running_fact(running),
            ),
            cause=_cause(worst),
            advice=(CHUNKED, APART) if worst.busy_pct >= _MOSTLY_PCT else (OVERLAP, APART),
            recoverable_pct=worst.pct if likely else None,
            recoverable_formula="Σ delays ÷ window: for the latency of decode; the prefill itself must still be done"
            if likely
            else "can't be told: nothing says that sequences were decoding when the prefill came",
            confidence=_confidence(worst, context, running),
            refuted_by="the sequences that decoded before the prefill were finished by then",
            next_capture=None if worst.proven else "the same window with annotations of the engine's steps",
            subject=context.subject(worst.device),
        )
    ]


_FORMULA = "Σ time of prefill steps between two decode steps, or mixed step − median decode step"


def _cause(result: Interference) -> str:
    cause = "prefill takes the device between or within decode steps; streams that decode get no token meanwhile"
    if result.busy_pct < _MOSTLY_PCT:
        cause += (
            f"; the GPU is busy for only {share(result.busy_pct)} of these steps: the host's part of a prefill, "
            "not its kernels, takes most of the time"
        )
    return cause


def _running_fact(running: float | None) -> tuple[Fact, ...]:
    if running is None:
        return ()
    return (Fact("requests running, fewest", running, "", "min of the engine's own answers around the window"),)


def _confidence(result: Interference, context: Context, running: float | None) -> str:
    if result.proven:
        return "high: annotations tell the decode batch"
    phases = "phases are " + ("inferred" if result.inferred else "annotated, decode batches are not")
    if running is not None and running >= _ENOUGH_RUNNING:
        return f"medium: {phases}; {running:,.0f} requests or more ran throughout, by the engine's own count"
    if context.engine:
        return f"medium: {phases}"
    return "low: nothing tells whether sequences were waiting"
