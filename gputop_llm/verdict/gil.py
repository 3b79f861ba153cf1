"""Signs that host threads hold each other up at Python's interpreter lock (GIL), where the record can show any.

Two signs, each on the thread that submits the device's work:
- its pauses between operators are longer when they begin while another thread of the process is inside of its own, and
  the two take turns instead of overlapping;
- it waits on a condition in pieces of at most the interpreter's switch interval (5 ms) while the device is dry.
Neither proves it: threads that hand work to each other look alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gputop_llm.model.advice import Advice
from gputop_llm.model.finding import Fact, Finding, Weight
from gputop_llm.timeline.intervals import clip, intersect, length, union
from gputop_llm.verdict.context import Context
from gputop_llm.verdict.coverage import DeviceCoverage, Intervals
from gputop_llm.verdict.facts import share, span
from gputop_llm.verdict.idle import Began, contains

#: A thread with operators in less of the window than this has nothing to contend for.
_ACTIVE_SHARE = 0.1
#: Threads that overlap less than this part of what chance would give take turns.
_TURNS_SHARE = 0.2
_ENOUGH = 50
_LONGER = 2.0
#: A pause beyond this is no pause between operators.
_LONGEST_PAUSE_NS = 20_000_000
#: CPython waits for the GIL in steps of sys.getswitchinterval(), 5 ms unless changed; some scheduling delay on top.
_SWITCH_NS = 6_000_000
_CONDITION_WAITS = ("pthread_cond_timedwait", "pthread_cond_clockwait")
_DRY_WORTH_PCT = 5.0


@dataclass(frozen=True)
class Contention:
    """Two threads of one process: `thread` submits the work of `device`.

    `overlap_ns` is how long both were inside of operators or calls, `chance_ns` what independent threads would overlap.
    Pauses are medians (ns) between operators of `thread`, begun with the other one inside (`pause_with_ns`) or not.
    `condition_waits` and their time are those of `thread` up to 6 ms while the device was dry.
    """

    device: int
    window_ns: int
    thread: int
    other: int
    overlap_ns: int
    chance_ns: float
    handovers: int
    pause_with_ns: float | None
    pause_alone_ns: float | None
    condition_waits: int
    condition_ns: int

    @property
    def takes_turns(self) -> bool:
        """The first sign."""
        return (
            self.handovers >= _ENOUGH
            and self.overlap_ns < _TURNS_SHARE * self.chance_ns
            and self.pause_with_ns is not None
            and self.pause_alone_ns is not None
            and self.pause_with_ns >= _LONGER * self.pause_alone_ns
        )

    @property
    def waits_on_condition(self) -> bool:
        """The second sign."""
        return self.condition_waits >= _ENOUGH and 100 * self.condition_ns >= _DRY_WORTH_PCT * self.window_ns


def analyse(context: Context) -> tuple[Contention, ...]:
    """One entry for each device whose process has a second busy thread; none where that isn't recorded."""
    found = []
    for covered in context.coverage:
        submitters = context.submitters[covered.device]
        if len(submitters):
            found += _of_thread(context, covered, int(submitters[0]))
    return tuple(found)


def _of_thread(context: Context, covered: DeviceCoverage, thread: int) -> list[Contention]:
    timeline = context.timeline
    process = timeline.threads[thread].process
    others = [
        (number, _inside(context, number))
        for number, described in enumerate(timeline.threads)
        if number != thread and described.process == process and bool((timeline.cpu_ops.thread == number).any())
    ]
    gaps = context.idle[covered.device].gaps
    dry = gaps.began == Began.DRY
    waits = timeline.os_waits
    names = [i for i, text in enumerate(timeline.strings) if text in _CONDITION_WAITS]
    short = (waits.thread == thread) & np.isin(waits.name_id, names) & (waits.end - waits.start <= _SWITCH_NS)
    waited = intersect(union(waits.start[short], waits.end[short]), (gaps.start[dry], gaps.end[dry]))
    if not others and not len(waited[0]):
        return []
    own = _inside(context, thread)
    needed = _ACTIVE_SHARE * timeline.window_ns
    busy = [(number, inside) for number, inside in others if length(*inside) >= needed]
    if length(*own) < needed or not (busy or len(waited[0])):
        return []
    number, inside = max(busy, key=lambda other: length(*other[1]), default=(-1, (own[0][:0], own[1][:0])))
    pause_with, pause_alone = _pauses(own, inside)
    return [
        Contention(
            device=covered.device,
            window_ns=timeline.window_ns,
            thread=thread,
            other=number,
            overlap_ns=length(*intersect(own, inside)),
            chance_ns=length(*own) * length(*inside) / timeline.window_ns,
            handovers=_handovers(own, inside),
            pause_with_ns=pause_with,
            pause_alone_ns=pause_alone,
            condition_waits=int(short.sum()),
            condition_ns=length(*waited),
        )
    ]


def _inside(context: Context, thread: int) -> Intervals:
    """When a thread was inside of operators or API calls."""
    timeline = context.timeline
    ops, calls = timeline.cpu_ops.thread == thread, timeline.calls.thread == thread
    start = np.concatenate((timeline.cpu_ops.start[ops], timeline.calls.start[calls]))
    end = np.concatenate((timeline.cpu_ops.end[ops], timeline.calls.end[calls]))
    return union(*clip(start, end, timeline.start, timeline.end))


def _handovers(own: Intervals, other: Intervals) -> int:
    """How often the two alternate."""
    starts = np.concatenate((own[0], other[0]))
    of_other = np.concatenate((np.zeros(len(own[0]), dtype=np.bool_), np.ones(len(other[0]), dtype=np.bool_)))
    sequence = of_other[np.argsort(starts, kind="stable")]
    return int((sequence[1:] != sequence[:-1]).sum())


def _pauses(own: Intervals, other: Intervals) -> tuple[float | None, float | None]:
    """Median pause of the one thread, begun with the other inside or not; None below 50 of a kind."""
    start, end = own[1][:-1], own[0][1:]
    pause = end - start
    kept = pause <= _LONGEST_PAUSE_NS
    with_other = contains(other, start)
    found = []
    for rows in (kept & with_other, kept & ~with_other):
        found.append(float(np.median(pause[rows])) if int(rows.sum()) >= _ENOUGH else None)
    return found[0], found[1]


def findings(results: tuple[Contention, ...], context: Context) -> list[Finding]:
    """Signs of GIL contention, where the device loses time and the record has them."""
    for result in results:
        dry_pct = 100.0 * context.idle[result.device].began_ns[Began.DRY] / max(1, result.window_ns)
        if dry_pct >= _DRY_WORTH_PCT and (result.takes_turns or result.waits_on_condition):
            return [_finding(result, dry_pct, context)]
    return []


def _finding(result: Contention, dry_pct: float, context: Context) -> Finding:
    thread = context.thread_label(result.thread)
    facts = [Fact("GPU waits for the host", dry_pct, "%", "Σ gaps of a dry device ÷ window")]
    said = []
    lost = 0.0
    if result.takes_turns and result.pause_with_ns is not None and result.pause_alone_ns is not None:
        other = context.thread_label(result.other)
        said.append(
            f"{thread} pauses {span(result.pause_with_ns)} between operators while {other} is inside of one, "
            f"{span(result.pause_alone_ns)} otherwise"
        )
        facts += [
            Fact("pause with the other thread inside", result.pause_with_ns / 1e3, "µs", "median"),
            Fact("pause otherwise", result.pause_alone_ns / 1e3, "µs", "median"),
            Fact("both inside of operators", result.overlap_ns / 1e6, "ms", "|∪ of the one ∩ ∪ of the other|"),
            Fact("both inside, by chance", result.chance_ns / 1e6, "ms", "product of both shares of the window"),
            Fact("handovers", float(result.handovers), "", "changes of the thread that begins next"),
        ]
        lost = dry_pct * (1.0 - result.pause_alone_ns / result.pause_with_ns)
    if result.waits_on_condition:
        condition_pct = 100.0 * result.condition_ns / result.window_ns
        said.append(f"{thread} waits {share(condition_pct)} of the window on a condition in steps of up to 6 ms")
        facts.append(
            Fact(
                "condition waits while the GPU is dry",
                condition_pct,
                "%",
                "∪ waits of up to 6 ms ∩ gaps of a dry device ÷ window",
                f"{result.condition_waits:,} waits",
            )
        )
        lost = max(lost, condition_pct)
    return Finding(
        id="gil-contention",
        weight=Weight.FINDING,
        headline="Signs of threads waiting for Python's interpreter lock: " + said[0],
        facts=tuple(facts),
        cause="; ".join(said),
        advice=(
            Advice(
                "move the other thread's work into a process of its own, or out of Python",
                {"vllm": "--api-server-count (up)", "sglang": "--tokenizer-worker-num (up)"},
            ),
        ),
        recoverable_pct=min(dry_pct, lost),
        recoverable_formula="idle of a dry device × (1 − pause alone ÷ pause with the other thread), "
        "or condition waits while the device is dry, ÷ window",
        confidence="low: threads that hand work to each other look alike",
        refuted_by="py-spy dump --gil (or record --gil) shows the submitting thread holding the lock at these times",
        next_capture="py-spy record --gil for some seconds on this process",
        subject=context.subject(result.device),
    )
